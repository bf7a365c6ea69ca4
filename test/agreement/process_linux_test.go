// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package agreement

import (
	"bufio"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTopShowsThePercentOfEachIteration(t *testing.T) {
	const iteration = `top - 15:00:40 up  3:24,  0 users,  load average: 3.45, 2.99, 1.82
Tasks:   1 total,   0 running,   1 sleeping,   0 stopped,   0 zombie

    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND
  20857 root      20   0    5308   3132   2932 S  `
	scan := bufio.NewScanner(strings.NewReader(iteration + "12.5   0.0   0:00.02 load\n\n" + iteration + "150.0   0.0   0:06.02 load\n"))
	_, err := topColumn(scan)
	require.NoError(t, err)
	column, err := topColumn(scan)
	require.NoError(t, err)
	percent, err := topPercent(scan, column)
	require.NoError(t, err)
	require.InDelta(t, 150, percent, 0)
	_, err = topColumn(scan)
	require.ErrorContains(t, err, "%CPU")
	_, err = topPercent(bufio.NewScanner(strings.NewReader("\n")), column)
	require.ErrorContains(t, err, "process")
}
