// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWakeupsThatFollowAnotherAtOnceAreNotCountedTwice(t *testing.T) {
	t.Parallel()
	host, all, afterIdle := countWakeups(strings.NewReader(`
 100.000000: comm=otelcol-hotprof pid=7 prio=120 target_cpu=000
 100.001000: comm=otelcol-hotprof pid=8 prio=120 target_cpu=001
 100.005500: comm=otelcol-hotprof pid=7 prio=120 target_cpu=000
 100.009000: comm=sh pid=9 prio=120 target_cpu=000
 100.011000: comm=otelcol-hotprof pid=8 prio=120 target_cpu=001
`), map[string]bool{"7": true, "8": true})
	require.Equal(t, 5, host)
	require.Equal(t, 4, all)
	require.Equal(t, 2, afterIdle)
}
