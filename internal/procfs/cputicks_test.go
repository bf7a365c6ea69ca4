// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseCPUTicks(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		want    CPUTicks
		fails   bool
	}{
		"eight times":      {content: "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1", want: CPUTicks{1, 2, 3, 4, 5, 6, 7, 8}},
		"those before 2.6": {content: "cpu  1 2 3 4 5\n", want: CPUTicks{1, 2, 3, 4, 5}},
		"too few":          {content: "cpu  1 2 3 4\n", fails: true},
		"no end":           {content: "cpu  1 2 3 4 5 6", fails: true},
		"of one CPU":       {content: "cpu0 1 2 3 4 5 6 7 8\n", fails: true},
		"no number":        {content: "cpu  1 2 x 4 5 6 7 8\n", fails: true},
		"empty":            {fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			have, err := ParseCPUTicks([]byte(c.content))
			require.Equal(t, c.fails, err != nil, err)
			if !c.fails {
				require.Equal(t, c.want, have)
			}
		})
	}
}

func TestCPUTicksSince(t *testing.T) {
	before := CPUTicks{10, 10, 10, 10, 10, 10, 10, 10}
	busy, total, ok := CPUTicks{11, 12, 13, 14, 15, 16, 17, 18}.Since(before)
	require.True(t, ok)
	require.EqualValues(t, 1+2+3+6+7+8, busy)
	require.EqualValues(t, 36, total)
	busy, total, ok = CPUTicks{12, 10, 10, 9, 9, 10, 10, 10}.Since(before)
	require.True(t, ok, "idle time may run backwards")
	require.EqualValues(t, 2, busy)
	require.EqualValues(t, 2, total)
	_, _, ok = CPUTicks{9, 10, 10, 20, 10, 10, 10, 10}.Since(before)
	require.False(t, ok, "the counters began anew")
}

func TestParseStatmAndLoadavg(t *testing.T) {
	pages, err := ParseStatm([]byte("730 389 361 5 0 89 0\n"))
	require.NoError(t, err)
	require.EqualValues(t, 389, pages)
	for _, bad := range []string{"", "730", "730 389", "730 x 361", "730 -1 361", "730 99999999999999 1"} {
		_, err := ParseStatm([]byte(bad))
		require.ErrorIs(t, err, ErrMalformed, bad)
	}
	load, err := ParseLoadavg([]byte("3.50 2.00 1.00 2/345 6789\n"))
	require.NoError(t, err)
	require.InDelta(t, 3.5, load, 0)
	for _, bad := range []string{"", "3.50", "-1 2", "NaN 2", "+Inf 2", "x 2"} {
		_, err := ParseLoadavg([]byte(bad))
		require.ErrorIs(t, err, ErrMalformed, bad)
	}
}

func FuzzHostFiles(f *testing.F) {
	f.Add([]byte("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1"))
	f.Add([]byte("3.50 2.00 1.00 2/345 6789\n"))
	f.Add([]byte("730 389 361 5 0 89 0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ticks, err := ParseCPUTicks(b); err == nil {
			if busy, total, ok := ticks.Since(CPUTicks{}); !ok || busy > total && total >= busy {
				t.Errorf("%d of %d", busy, total)
			}
		}
		if load, err := ParseLoadavg(b); load < 0 || err != nil && load != 0 {
			t.Errorf("%v, %v", load, err)
		}
		if pages, err := ParseStatm(b); err != nil && pages != 0 {
			t.Errorf("%v, %v", pages, err)
		}
	})
}
