// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseCPUStat(t *testing.T) {
	for _, tt := range []struct {
		name, content string
		want          cpuStat
		fails         bool
	}{
		{
			"v2",
			"usage_usec 140511049\nuser_usec 126793272\nsystem_usec 13717776\nnr_periods 7\nnr_throttled 3\nthrottled_usec 5\n",
			cpuStat{usage: 140511049 * time.Microsecond, hasUsage: true, periods: Periods{7, 3}, hasPeriods: true},
			false,
		},
		{"v1", "nr_periods 7\nnr_throttled 3\nthrottled_time 5\nnr_bursts 0\n", cpuStat{periods: Periods{7, 3}, hasPeriods: true}, false},
		{"v2 without the controller", "usage_usec 5\nuser_usec 1\n", cpuStat{usage: 5 * time.Microsecond, hasUsage: true}, false},
		{"without a line's end", "usage_usec 5", cpuStat{usage: 5 * time.Microsecond, hasUsage: true}, false},
		{"a key that only begins like one", "usage_usec_x 5\nnr_periods_y 1\n", cpuStat{}, true},
		{"empty", "", cpuStat{}, true},
		{"no number", "nr_periods x\n", cpuStat{}, true},
		{"more than a number", "nr_periods 7 8\n", cpuStat{}, true},
		{"too large", "usage_usec 99999999999999999999\n", cpuStat{}, true},
	} {
		got, err := parseCPUStat([]byte(tt.content))
		require.Equal(t, tt.fails, err != nil, tt.name)
		require.Equal(t, tt.want, got, tt.name)
	}
}

func TestLargerShareOfPeriods(t *testing.T) {
	require.True(t, ThrottledPeriods{10, 0}.larger(ThrottledPeriods{}), "periods without throttling are more than none")
	require.False(t, ThrottledPeriods{}.larger(ThrottledPeriods{10, 0}))
	require.True(t, ThrottledPeriods{2, 1}.larger(ThrottledPeriods{10, 4}))
	require.False(t, ThrottledPeriods{10, 4}.larger(ThrottledPeriods{2, 1}))
	require.True(t, ThrottledPeriods{10, 5}.larger(ThrottledPeriods{2, 1}), "of equal shares the one that is known better")
}

func FuzzCPUStat(f *testing.F) {
	f.Add([]byte("usage_usec 1\nnr_periods 2\nnr_throttled 1\n"))
	f.Add([]byte("nr_throttled"))
	f.Add([]byte("nr_throttled 00")) // the usage is missing and the periods are 0
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseCPUStat(b); err == nil {
			require.True(t, s.hasUsage || s.hasPeriods)
			require.GreaterOrEqual(t, s.usage, time.Duration(0))
		}
	})
}
