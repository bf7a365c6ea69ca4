// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhatTheTriggerMustDo checks facts about the trigger's defaults
// that do not depend on the scoring.
func TestWhatTheTriggerMustDo(t *testing.T) {
	byName := map[string]*trace{}
	for _, tr := range corpus(t) {
		byName[tr.Name] = tr
	}
	opened := func(t *testing.T, name string) []int {
		t.Helper()
		require.Contains(t, byName, name)
		return oursDefault.play(byName[name])
	}
	t.Run("never opens where there is headroom", func(t *testing.T) {
		for _, name := range []string{
			"steady-third", "steady-60", "steady-67", "idle", "noisy-65", "half-of-16", "doubles-below",
			"drift-cool", "restarts-cool", "neighbour-hot", "neighbour-bursts", "gc-bursts", "stalls-rare",
		} {
			require.Empty(t, opened(t, name), name)
		}
	})
	t.Run("never opens on a short spike", func(t *testing.T) {
		for _, name := range []string{"spikes-1s", "spikes-5s", "spikes-1s-often", "spikes-5s-often", "spike-10s", "cron-4s", "missing-every-fifth"} {
			require.Empty(t, opened(t, name), name)
		}
	})
	t.Run("opens within the window and one evaluation of sustained heat", func(t *testing.T) {
		for name, since := range map[string]int{
			"hot-late": 90, "week-idle-then-hot": 120, "long-idle": 300, "two-phases": 100, "quota-lowered": 100,
			"quota-halved": 120, "one-core-of-64": 120, "just-over-90": 100, "restart-then-hot": 165,
		} {
			all := opened(t, name)
			require.True(t, slices.ContainsFunc(all, func(at int) bool { return at >= since && at <= since+35 }), "%s: opened at %v", name, all)
		}
	})
	t.Run("a day's past does not count", func(t *testing.T) {
		for _, at := range opened(t, "day-busy-then-quiet") {
			require.Less(t, at, 70, "quiet since 40 s")
		}
	})
	t.Run("no window reaches over a restart", func(t *testing.T) {
		require.Empty(t, opened(t, "crash-loop"), "no life is a minute old")
	})
	t.Run("a gap in the readings does not open, and the heat behind it does", func(t *testing.T) {
		all := opened(t, "missing-minute")
		require.NotEmpty(t, all)
		for _, at := range all {
			require.False(t, at > 115 && at < 170, "opened at %v, with nothing read from 110 to 170", all)
		}
	})
	t.Run("throttling opens where utilization cannot see it", func(t *testing.T) {
		for _, name := range []string{"stalls-half", "stalls-most"} {
			require.Empty(t, opened(t, name), name)
			require.NotEmpty(t, oursBothDefault.play(byName[name]), name)
		}
	})
}
