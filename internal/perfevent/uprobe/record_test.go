// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package uprobe

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// hit returns a sample with a callchain and what follows it.
func hit(chain []uint64, after ...uint64) []uint64 {
	words := append([]uint64{0, 1, 2, 3, 4, 5, uint64(len(chain))}, chain...)
	return append(words, after...)
}

func TestRegisterIsReadAfterTheCallchain(t *testing.T) {
	for name, c := range map[string]struct {
		words []uint64
		value uint64
		ok    bool
	}{
		"64 bits":             {hit([]uint64{7, 8}, 2, 4096), 4096, true},
		"no callchain":        {hit(nil, 2, 48), 48, true},
		"32 bits":             {hit([]uint64{7}, 1, 4096), 0, false},
		"no registers":        {hit([]uint64{7}, 0), 0, false},
		"cut off":             {hit([]uint64{7}, 2), 0, false},
		"nothing follows":     {hit([]uint64{7}), 0, false},
		"a chain too long":    {[]uint64{0, 1, 2, 3, 4, 5, 1 << 40, 7}, 0, false},
		"a chain of all ones": {[]uint64{0, 1, 2, 3, 4, 5, ^uint64(0), 7, 2, 9}, 0, false},
		"too short":           {[]uint64{0, 1}, 0, false},
		"empty":               {nil, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			value, ok := registerOf(c.words)
			require.Equal(t, c.ok, ok)
			require.Equal(t, c.value, value)
		})
	}
}
