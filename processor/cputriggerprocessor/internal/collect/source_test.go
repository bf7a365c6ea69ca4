// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadingsLeaveFilesForOthers checks that readings use at most a quarter of the
// collector's file descriptors, and at most 4096. The rest must remain for connections,
// even on a host with many containers.
func TestReadingsLeaveFilesForOthers(t *testing.T) {
	for limit, want := range map[int]int{
		0: 0, 256: 64, 1024: 256, 16384: 4096, 1 << 20: 4096, math.MaxInt: 4096,
	} {
		require.Equal(t, want, OpenFiles(limit), "of %d", limit)
	}
}
