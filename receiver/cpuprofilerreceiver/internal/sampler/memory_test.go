// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHalfOfMaxMemoryIsSharedOut(t *testing.T) {
	for _, most := range []int64{16 << 20, 128 << 20, 64 << 30} {
		s := shareOut(most)
		require.InDelta(t, most/2, s.symbols+s.tables+s.processes+s.stacks, 64)
		const total = 4 + 2 + 1 + 1
		bytes, stacks := 0, 0
		for _, weight := range []int{4, 2, 1, 1} {
			l := s.limits(weight, total)
			bytes += l.Bytes
			stacks += l.StackBytes
		}
		require.LessOrEqual(t, int64(bytes), s.processes)
		require.LessOrEqual(t, int64(stacks), s.stacks)
		require.Equal(t, int(s.stacks), s.limits(4, 4).StackBytes, "all of it, for one alone")
	}
}
