// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

const (
	minuteNs = int64(time.Minute)
	hourNs   = int64(time.Hour)
)

func TestHourAgreesWithItsDefinition(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var h Hour
		var all []int64
		now := -hourNs
		for range 300 {
			now += r.Int64N(10 * minuteNs)
			if r.IntN(2) == 0 {
				h.Add(now, 1)
				all = append(all, now)
			}
			want := int64(0)
			for _, at := range all {
				if now-at < hourNs {
					want++
				}
			}
			require.Equal(t, want, h.Sum(now))
			last, ok := h.Last()
			require.Equal(t, want > 0, ok)
			if ok {
				require.Equal(t, all[len(all)-1], last)
			}
		}
		require.LessOrEqual(t, len(h.spent), 120, "old times are dropped")
	}
}

func TestHourOnAClockThatRunsBackwards(t *testing.T) {
	var h Hour
	h.Add(hourNs, 1)
	h.Add(0, 1) // counts as simultaneous
	require.Equal(t, []spending{{hourNs, 2}}, h.spent)
	require.EqualValues(t, 2, h.Sum(2*hourNs-1))
	require.Zero(t, h.Sum(2*hourNs))
}

func TestBytesOfAnHourAreNeverUndercounted(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2))
		l := NewLedger(Limits{MaxBytesPerHour: math.MaxInt64})
		type spent struct{ at, bytes int64 }
		var all []spent
		now := int64(0)
		for range 300 {
			now += r.Int64N(5 * minuteNs)
			if r.IntN(40) == 0 {
				now += 3 * hourNs
			}
			n := r.IntN(1000)
			l.SpendBytes(n, now)
			all = append(all, spent{now, int64(n)})
			var anHour, aMinuteMore, sum int64
			for _, s := range all {
				if now-s.at < hourNs {
					anHour += s.bytes
				}
				if now-s.at < hourNs+2*minuteNs {
					aMinuteMore += s.bytes
				}
			}
			require.GreaterOrEqual(t, l.bytes.Sum(now), anHour)
			require.LessOrEqual(t, l.bytes.Sum(now), aMinuteMore)
			require.LessOrEqual(t, len(l.bytes.spent), 62, "one entry for each minute")
			for _, m := range l.bytes.spent {
				sum += m.amount
			}
			require.Equal(t, sum, l.bytes.total)
		}
	}
}

func TestLimits(t *testing.T) {
	l := NewLedger(Limits{MaxTriggersPerHour: 2, MaxBytesPerHour: 100})
	require.True(t, l.TriggerLeft(0) && l.Affords(1, 0))

	l.SpendTrigger(0)
	l.SpendTrigger(minuteNs)
	require.False(t, l.TriggerLeft(minuteNs))
	require.True(t, l.TriggerLeft(hourNs))

	require.True(t, l.Affords(100, 0))
	require.False(t, l.Affords(101, 0))
	l.SpendBytes(100, 0)
	require.False(t, l.Affords(1, 0))
	require.True(t, l.Affords(-1, 0) && !l.Affords(1, 0))
	require.True(t, l.Affords(1, hourNs+2*minuteNs))

	unlimited := NewLedger(Limits{})
	unlimited.SpendTrigger(0)
	unlimited.SpendBytes(math.MaxInt64, 0)
	require.True(t, unlimited.TriggerLeft(0) && unlimited.Affords(1, 0) && unlimited.Affords(math.MaxInt64, 0))
}

func TestBytesDoNotOverflow(t *testing.T) {
	l := NewLedger(Limits{MaxBytesPerHour: 1})
	l.SpendBytes(math.MaxInt64, 0)
	l.SpendBytes(math.MaxInt64, minuteNs)
	require.Equal(t, int64(math.MaxInt64), l.bytes.total)
}

func TestARestartKeepsWhatWasSpent(t *testing.T) {
	limits := Limits{MaxTriggersPerHour: 3, MaxBytesPerHour: 100}
	l := NewLedger(limits)
	for n := range int64(3) {
		l.SpendTrigger(n * minuteNs)
		l.SpendBytes(30, n*minuteNs)
	}
	triggers, bytes := l.Spent(Wall{Now: start, At: 2 * minuteNs})
	require.Equal(t, []Spending{{start.Add(-2 * time.Minute), 1}, {start.Add(-time.Minute), 1}, {start, 1}}, triggers)
	require.Len(t, bytes, 3)

	after := NewLedger(limits)
	after.Restore(Restart{Taken: start, Passed: time.Minute, At: 0}, triggers, bytes)
	require.False(t, after.TriggerLeft(0))
	require.True(t, after.Affords(10, 0) && !after.Affords(11, 0))
	again, _ := after.Spent(Wall{Now: start.Add(time.Minute), At: 0})
	require.Equal(t, triggers, again)
	require.True(t, after.TriggerLeft(hourNs-3*minuteNs), "the first trigger is an hour ago")
}

func TestARestoreNeverExceedsALimit(t *testing.T) {
	l := NewLedger(Limits{MaxTriggersPerHour: 2, MaxBytesPerHour: 10})
	l.Restore(Restart{Taken: start}, []Spending{{start, 1 << 60}, {start, -5}}, []Spending{{start, math.MaxInt64}, {start.Add(-2 * time.Hour), 1}})
	require.Equal(t, int64(2), l.triggers.Sum(0))
	require.Equal(t, int64(10), l.bytes.Sum(0))
}

func TestValidateNamesTheKeyAndTheBound(t *testing.T) {
	require.Empty(t, Limits{}.Validate())
	errs := Limits{MaxConcurrentUnits: -1, MaxTriggersPerHour: maxHourly + 1}.Validate()
	require.Len(t, errs, 2)
	require.ErrorContains(t, errs[0], "budgets.max_concurrent_units: -1")
	require.ErrorContains(t, errs[1], "at most 100000")
}
