// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package golabels

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
)

const base = 0xc000000000

// image is the memory of a process. It begins at the address base.
type image []byte

func (m *image) put(b []byte) (address uint64) {
	address = base + uint64(len(*m))
	*m = append(*m, b...)
	return address
}

// set adds a set of labels with the given number of labels and the given capacity.
func (m *image) set(n, room uint64, pairs ...string) (address uint64) {
	le := binary.LittleEndian
	var list []byte
	for _, text := range pairs {
		list = le.AppendUint64(list, m.put([]byte(text)))
		list = le.AppendUint64(list, uint64(len(text)))
	}
	set := le.AppendUint64(nil, m.put(list))
	return m.put(le.AppendUint64(le.AppendUint64(set, n), room))
}

func (m *image) memory(keys ...string) *memory {
	return &memory{
		keys: append([]string{samples.LabelTraceID, samples.LabelSpanID}, keys...),
		fetch: func(_ int, address uint64, b []byte) int {
			if address < base || address > base+uint64(len(*m)) {
				return 0
			}
			return copy(b, (*m)[address-base:])
		},
	}
}

func TestLabelsOfAGoroutine(t *testing.T) {
	trace, span := strings.Repeat("0a", 16), strings.Repeat("0b", 8)
	link := samples.ParseLink(trace, span)
	require.True(t, link.Valid())
	long := strings.Repeat("x", maxText+1)
	var many []string
	for range maxSet + 1 {
		many = append(many, "key", "value")
	}
	for name, c := range map[string]struct {
		pairs   []string
		n, room uint64 // 0 means the correct number
		want    labels
		bad     bool
	}{
		"none":                     {},
		"a span":                   {pairs: []string{"span_id", span, "trace_id", trace}, want: labels{link: link}},
		"half a span":              {pairs: []string{"trace_id", trace}},
		"not the ids of a span":    {pairs: []string{"span_id", trace, "trace_id", span}},
		"a route":                  {pairs: []string{"http.route", "/a", "other", "x"}, want: labels{text: "http.route\x00/a\x00"}},
		"a key of the same length": {pairs: []string{"http.rouge", "/a"}},
		"an empty value":           {pairs: []string{"http.route", ""}},
		"a label twice":            {pairs: []string{"http.route", "a", "http.route", "b"}, want: labels{text: "http.route\x00a\x00"}},
		"a forged label":           {pairs: []string{"http.route", "a\x00rpc.method\x00b"}, want: labels{text: "http.route\x00a?rpc.method?b\x00"}},
		"a long value":             {pairs: []string{"http.route", long}, want: labels{text: "http.route\x00" + long[1:] + "\x00", cut: true}},
		"too many":                 {pairs: many, bad: true},
		"more than there are":      {pairs: []string{"other", "x"}, n: 2, room: 2, bad: true},
		"a number of the sky":      {pairs: []string{"other", "x"}, n: 1 << 62, room: 1 << 63, bad: true},
		"more than there is room":  {pairs: []string{"other", "x"}, n: 1, room: 0, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			var m image
			n, room := c.n, c.room
			if n == 0 {
				n = uint64(len(c.pairs) / 2)
				room = n
			}
			at := m.set(n, room, c.pairs...)
			got := m.memory("http.route", "rpc.method").labels(at)
			c.want.address, c.want.valid = at, !c.bad
			require.Equal(t, c.want, got)
		})
	}
	var m image
	require.Equal(t, labels{valid: true}, m.memory().labels(0), "no labels")
	for _, at := range []uint64{1, base, base - 1, 1<<64 - 8} {
		require.Equal(t, labels{address: at}, m.memory().labels(at))
	}
}

func FuzzLabels(f *testing.F) {
	var m image
	at := m.set(2, 2, "http.route", "/a", "trace_id", "b")
	f.Add([]byte(m), at-base)
	f.Fuzz(func(t *testing.T, b []byte, at uint64) {
		m := image(b)
		reads := 0
		memory := m.memory("http.route")
		fetch := memory.fetch
		memory.fetch = func(pid int, address uint64, b []byte) int {
			reads++
			return fetch(pid, address, b)
		}
		l := memory.labels(base + at)
		if !l.valid && (l.text != "" || l.link.Valid()) {
			t.Fatal("labels of an unreadable set")
		}
		if most := len("http.route\x00\x00") + maxText; len(l.text) > most {
			t.Fatalf("%d bytes of labels", len(l.text))
		}
		if reads > 2+2*maxSet {
			t.Fatalf("%d reads", reads)
		}
	})
}
