// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseCPUList(t *testing.T) {
	for list, want := range map[string][]int{
		"0":            {0},
		"0-3":          {0, 1, 2, 3},
		"0-1,4,6-7":    {0, 1, 4, 6, 7},
		"2,8-8,65535":  {2, 8, 65535},
		"":             nil,
		"a":            nil,
		"3-1":          nil,
		"1,1":          nil,
		"2,1":          nil,
		"0-":           nil,
		"0,":           nil,
		"-1":           nil,
		"0-4294967295": nil,
	} {
		got, err := parseCPUList([]byte(list))
		require.Equal(t, want == nil, err != nil, "%q: %v", list, err)
		require.Equal(t, want, got, "%q", list)
	}
}

func FuzzParseCPUList(f *testing.F) {
	f.Add("0-3,8,10-11")
	f.Add("0,,1")
	f.Fuzz(func(t *testing.T, list string) {
		cpus, err := parseCPUList([]byte(list))
		if err != nil {
			return
		}
		if len(cpus) == 0 || len(cpus) > 1<<16 || !slices.IsSorted(cpus) || cpus[0] < 0 {
			t.Fatalf("%q: %v", list, cpus)
		}
	})
}
