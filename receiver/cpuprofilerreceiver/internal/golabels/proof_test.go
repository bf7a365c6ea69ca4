// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package golabels

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLabelsAtTheTimeOfASample(t *testing.T) {
	const sampled, read = 100, 200
	of := goroutine{pid: 1, g: 0xc000}
	set := func(time int64, labels uint64) change { return change{time: time, labels: labels} }
	end := func(time int64) change { return change{time: time, ended: true} }
	for name, c := range map[string]struct {
		changes []change
		read    uint64
		want    uint64
		proven  bool
		changed bool
	}{
		"inherited before the probe":           {nil, 7, 7, true, false},
		"never set":                            {nil, 0, 0, true, false},
		"set before the sample":                {[]change{set(90, 7)}, 7, 7, true, false},
		"set at the time of the sample":        {[]change{set(100, 7)}, 7, 7, true, false},
		"set again after the sample":           {[]change{set(90, 7), set(150, 8)}, 8, 7, true, true},
		"set again after the read":             {[]change{set(90, 7), set(250, 8)}, 7, 7, true, false},
		"removed after the sample":             {[]change{set(90, 7), set(150, 0)}, 0, 7, true, true},
		"set first after the sample":           {[]change{set(150, 8)}, 8, 0, false, true},
		"set first after the read":             {[]change{set(250, 8)}, 7, 7, true, false},
		"the goroutine ends after the sample":  {[]change{set(90, 7), end(150)}, 8, 7, true, true},
		"an heir ends after the sample":        {[]change{end(150)}, 8, 0, false, true},
		"another goroutine before the sample":  {[]change{set(80, 7), end(90)}, 8, 8, true, false},
		"several before and after":             {[]change{set(80, 6), set(90, 7), set(110, 8), set(120, 9)}, 9, 7, true, true},
		"reported in another order":            {[]change{set(120, 8), set(90, 7)}, 8, 7, true, true},
		"the memory contradicts the last hit":  {[]change{set(90, 7)}, 8, 0, false, false},
		"another goroutine ends, then a third": {[]change{set(80, 7), end(90), end(150)}, 8, 0, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := history{of: make(map[goroutine][]change)}
			for _, c := range c.changes {
				h.add(of, c)
				h.add(goroutine{pid: 2, g: of.g}, change{time: 99, labels: 1}) // a change in another process
			}
			got, ok := h.at(of, 0, sampled, read, c.read)
			require.Equal(t, c.proven, ok)
			if ok {
				require.Equal(t, c.want, got)
			}
			h.add(goroutine{pid: 1}, change{time: 150})
			_, ok = h.at(of, 0, sampled, read, c.read)
			require.Equal(t, c.proven && !c.changed, ok, "memory was freed")
			h.forget(sampled)
			_, ok = h.at(of, 0, sampled, read, c.read)
			require.False(t, ok, "hits may be lost")
			_, ok = h.at(of, 0, sampled+1, read, 7)
			require.True(t, ok, "the loss was before the sample")
			_, ok = h.at(of, sampled+1, sampled+1, read, 7)
			require.False(t, ok, "the process was not known")
		})
	}
}

func TestChangesAreBounded(t *testing.T) {
	h := history{of: make(map[goroutine][]change)}
	one := goroutine{pid: 1, g: 1}
	for i := range int64(1000) {
		h.add(one, change{time: i * horizon / 10, labels: uint64(i)})
	}
	require.LessOrEqual(t, h.n, 13, "changes before the horizon are forgotten")
	labels, known := h.last(one, 0, 999*horizon/10-horizon)
	require.True(t, known)
	require.EqualValues(t, 989, labels)
	require.Zero(t, h.since)

	at := int64(1000) * horizon
	for i := range uint64(maxChanges) {
		h.add(goroutine{pid: 2, g: i}, change{time: at})
	}
	require.LessOrEqual(t, len(h.of), maxChanges/2)
	require.LessOrEqual(t, h.n, maxChanges)
	require.Equal(t, at, h.since, "samples up to then get no labels")
}

func TestChangesOfAnEarlierProcessDoNotCount(t *testing.T) {
	h := history{of: make(map[goroutine][]change)}
	of := goroutine{pid: 1, g: 1}
	h.add(of, change{time: 10, labels: 7})
	got, ok := h.at(of, 20, 30, 40, 8)
	require.True(t, ok)
	require.EqualValues(t, 8, got)
}
