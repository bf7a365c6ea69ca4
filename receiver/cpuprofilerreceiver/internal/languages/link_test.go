// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// These constants describe a thread's TLS variable in an image.
const (
	descriptor = 0x12000
	arguments  = 0x12100
	vector     = 0x12200
	block      = 0x12400
	record     = 0x12800
	module     = 3
	variable   = 0x110
)

// publish makes the thread of an image publish a span. The variable is in a module that was
// loaded after the program's start.
func (m *image) publish(span byte) {
	m.put(descriptor, 0x99, arguments)
	m.put(arguments, module, variable)
	m.put(control+dtvAt, vector)
	m.put(vector+module*dtvEntry, block)
	m.put(block+variable, record)
	m.write(record, span)
}

func (m *image) write(at uint64, span byte) {
	for i := range m.bytes[at : at+recordValid] {
		m.bytes[int(at)+i] = span
	}
	m.bytes[at+recordValid] = 1
}

func linkOf(span byte) (l samples.Link) {
	for i := range l.TraceID {
		l.TraceID[i] = span
	}
	for i := range l.SpanID {
		l.SpanID[i] = span
	}
	return l
}

// TestLinkOfASampleThatIsReadAtOnce reads the span of a thread in both kinds of TLS
// variables.
func TestLinkOfASampleThatIsReadAtOnce(t *testing.T) {
	for name, place := range map[string]func(*image){
		"loaded later": func(m *image) { m.publish(7) },
		"loaded at the start": func(m *image) {
			offset := uint64(0x40)
			m.put(descriptor, 0x99, -offset)
			m.put(control-offset, record)
			m.write(record, 7)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newImage(layouts["3.12"])
			place(m)
			w, of := newTestWalker(t, m.l, m.read)
			w.process.context = descriptor
			require.True(t, w.Walk(of, sample(w.now)))
			require.Equal(t, Span{Link: linkOf(7)}, w.Span())
			w.Enter(of)
			require.Zero(t, w.Span(), "the link belongs to the next sample")
			proven, unproven := w.Links()
			require.Equal(t, [2]uint64{1, 0}, [2]uint64{proven, unproven})
		})
	}
}

// TestLinkOfASampleThatIsReadLate checks that a late read counts only if the last read before
// the sample found the same span.
func TestLinkOfASampleThatIsReadLate(t *testing.T) {
	m := newImage(layouts["3.12"])
	m.publish(7)
	w, of := newTestWalker(t, m.l, m.read)
	w.process.context = descriptor
	now, late := w.now, 2*int64(time.Millisecond)
	w.cfg.Now = func() int64 { return now }
	walk := func(sampled int64) samples.Link {
		require.True(t, w.Walk(of, sample(sampled)))
		return w.Span().Link
	}
	require.Zero(t, walk(now-late), "no earlier read")
	now += 4 * late
	require.Equal(t, linkOf(7), walk(now-late))
	require.Zero(t, walk(now-late), "the last read was after the sample")
	now += 4 * late
	m.write(record, 8)
	require.Zero(t, walk(now-late), "another span")
	now += 4 * late
	require.Equal(t, linkOf(8), walk(now-late))
	proven, unproven := w.Links()
	require.Equal(t, [2]uint64{2, 3}, [2]uint64{proven, unproven})
}

// TestNoLinkWithoutASpan checks that samples without a span are neither linked nor counted.
func TestNoLinkWithoutASpan(t *testing.T) {
	for name, change := range map[string]func(*image){
		"no record":              func(m *image) { m.put(block+variable, 0) },
		"invalid record":         func(m *image) { m.bytes[record+recordValid] = 0 },
		"unreadable record":      func(m *image) { m.put(block+variable, 1<<40) },
		"no block of the module": func(m *image) { m.put(vector+module*dtvEntry, ^uint64(0)) },
		"endless vector":         func(m *image) { m.put(arguments, 1<<62, variable) },
		"unreadable descriptor":  func(m *image) { m.put(descriptor, 0x99, 1<<40) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newImage(layouts["3.12"])
			m.publish(7)
			change(m)
			w, of := newTestWalker(t, m.l, m.read)
			w.process.context = descriptor
			require.True(t, w.Walk(of, sample(w.now)))
			require.Zero(t, w.Span())
			proven, _ := w.Links()
			require.Zero(t, proven)
		})
	}
}

// TestAttributesOfAThread checks the attributes of a record. ddtrace 4.16 wrote the first
// record.
func TestAttributesOfAThread(t *testing.T) {
	value := func(n int) string { return strings.Repeat("x", n) }
	for name, c := range map[string]struct{ attributes, want string }{
		"ddtrace":          {"\x00\x10e1b599d49a2ccc7a", "root\x00e1b599d49a2ccc7a\x00"},
		"two and another":  {"\x05\x01a\x03\x05/cart\x00\x01b", "http.route\x00/cart\x00root\x00b\x00"},
		"again":            {"\x03\x01a\x03\x01b", "http.route\x00a\x00"},
		"zero byte":        {"\x03\x03a\x00b", "http.route\x00a?b\x00"},
		"empty":            {"\x03\x00", ""},
		"longer than all":  {"\x03\x09/cart", ""},
		"half a header":    {"\x03", ""},
		"nothing":          {"", ""},
		"too long in all":  {"\x03\xff" + value(255) + "\x00\xff" + value(255), "http.route\x00" + value(255) + "\x00"},
		"beyond the bound": {"\x03\x01a" + value(maxAttributes), ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newImage(layouts["3.12"])
			m.publish(7)
			binary.LittleEndian.PutUint16(m.bytes[record+recordLength:], uint16(len(c.attributes)))
			copy(m.bytes[record+recordSize:], c.attributes)
			w, of := newTestWalker(t, m.l, m.read)
			w.labels = []string{"http.route", "root", "rpc.method"}
			w.process.context, w.process.published = descriptor, &processes.ThreadContext{Keys: []int{3, 0, -1}}
			require.True(t, w.Walk(of, sample(w.now)))
			require.Equal(t, Span{Link: linkOf(7), Labels: c.want}, w.Span())
		})
	}
}

// TestNoLinkWhileTheSpanChanges changes the span between the two reads of a record.
func TestNoLinkWhileTheSpanChanges(t *testing.T) {
	m := newImage(layouts["3.12"])
	m.publish(7)
	reads := byte(0)
	w, of := newTestWalker(t, m.l, func(pid int, at uint64, b []byte) int {
		if at == record&^(pageSize-1) {
			reads++
			m.write(record, reads)
		}
		return m.read(pid, at, b)
	})
	w.process.context = descriptor
	require.True(t, w.Walk(of, sample(w.now)))
	require.Zero(t, w.Span())
	_, unproven := w.Links()
	require.EqualValues(t, 1, unproven)
}

func FuzzLink(f *testing.F) {
	f.Add(uint16(8), uint64(1<<63))
	f.Add(uint16(0x100), uint64(1<<60-1))
	f.Fuzz(func(t *testing.T, at uint16, value uint64) {
		m := newImage(layouts["3.12"])
		m.publish(7)
		m.put(descriptor+uint64(at)%0x900, value)
		w, of := newTestWalker(t, m.l, m.read)
		w.process.context = descriptor
		w.Walk(of, sample(w.now))
	})
}
