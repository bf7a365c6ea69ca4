// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputime

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestBudgetHoldsInTheLongRun(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	now := time.Unix(1_000_000, 0)
	b := NewBudget(0.02, zap.New(core), func() time.Time { return now })
	const file = 300 * time.Millisecond
	var spent, light time.Duration
	waits := uint64(0)
	for step := range 3600 {
		now = now.Add(time.Second)
		if b.May(1) { // the process always has another file
			b.Spend(1, file)
			spent += file
		} else {
			waits++
		}
		if step%60 == 0 {
			require.True(t, b.May(100+step), "what causes little need not wait")
			b.Spend(100+step, 50*time.Millisecond)
			light += 50 * time.Millisecond
		}
	}
	require.InDelta(t, 36, spent.Seconds(), 2, "its share, 1 %% of an hour")
	require.LessOrEqual(t, (spent + light).Seconds(), 72+2*mostSaved.Seconds())
	require.Equal(t, waits, b.Waits())
	require.Equal(t, 1, logs.Len(), "once an episode")

	require.False(t, b.May(1))
	b.SetHot(map[int]string{1: "hot"})
	require.True(t, b.May(1), "it is hot: another part is for it")
	require.True(t, b.May(0), "the host's own")
	now = now.Add(time.Hour)
	b.SetHot(nil)
	for b.May(1) {
		b.Spend(1, file)
	}
	require.Equal(t, 2, logs.Len(), "another episode")
}

// TestReserveIsBoundedToo checks that many processes that each use little CPU time must
// share the reserve.
func TestReserveIsBoundedToo(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	b := NewBudget(0.02, zap.NewNop(), func() time.Time { return now })
	spent := time.Duration(0)
	for pid := range 100_000 {
		now = now.Add(10 * time.Millisecond)
		if b.May(pid + 1) {
			b.Spend(pid+1, 90*time.Millisecond)
			spent += 90 * time.Millisecond
		}
	}
	require.InDelta(t, 15+2*mostSaved.Seconds(), spent.Seconds(), 1)
	require.LessOrEqual(t, len(b.caused), maxCausing)
}

// TestHotUnitStaysWithinItsShare covers a hot unit that has many processes with an
// endless number of files. The hot unit must stay within the budget for hot units and
// the common budget. The names of other processes must not wait for the hot unit.
func TestHotUnitStaysWithinItsShare(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	b := NewBudget(0.02, zap.NewNop(), func() time.Time { return now })
	const (
		hog, file         = 16, 600 * time.Millisecond
		victim, victims   = 100, 25 * time.Millisecond
		newcomer, program = 1000, 50 * time.Millisecond
	)
	hot := map[int]string{victim: "victim", victim + 1: ""}
	for pid := range hog {
		hot[1+pid] = "hog"
	}
	b.SetHot(hot)
	var spent, others time.Duration
	for step := range 3600 {
		now = now.Add(time.Second)
		for pid := range hog {
			for b.May(1 + pid) {
				b.Spend(1+pid, file)
				spent += file
			}
		}
		if step%60 == 0 {
			require.True(t, b.May(newcomer+step), "the names of another process do not wait, after %d s", step)
			b.Spend(newcomer+step, program)
			others += program
		}
		if step%300 == 200 {
			for range 8 { // 200 ms are more than a little
				require.True(t, b.May(victim), "nor those of another hot unit, after %d s", step)
				b.Spend(victim, victims)
				others += victims
			}
		}
	}
	require.LessOrEqual(t, spent.Seconds(), 0.75*72+(mostSaved+mostSavedHot+2*file).Seconds())
	require.Greater(t, spent.Seconds(), 36.0, "it has its share")
	require.LessOrEqual(t, (spent + others).Seconds(), 72+(2*mostSaved+mostSavedHot+3*file).Seconds())
}

// TestDebtOfOneFileDelaysNobodyElse covers work that exceeds its part of the budget,
// because work is not interrupted after it has begun. The CPU time is charged first to
// the part with which the work began, and then to the other parts.
func TestDebtOfOneFileDelaysNobodyElse(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	b := NewBudget(0.01, zap.NewNop(), func() time.Time { return now })
	b.SetHot(map[int]string{1: "hot"})
	b.Spend(1, mostSavedHot+time.Second)
	require.False(t, b.withinAverage("hot") && b.hot > 0)
	require.True(t, b.May(2), "what is for any process is left")
	b.Spend(1, mostSaved+2*time.Second)
	require.True(t, b.May(2), "the reserve is left")
	require.False(t, b.May(1))
	b.Spend(2, 3*time.Second)
	require.False(t, b.May(3), "all is spent: the total is bounded")
	now = now.Add(1000 * time.Second) // adds 10 s to the budget
	for pid := 1; pid <= 3; pid++ {
		require.True(t, b.May(pid))
	}
}

// TestHotUnitWithLittleToReadDoesNotWait checks that a hot unit that needs little CPU
// time does not wait because another hot unit has a debt.
func TestHotUnitWithLittleToReadDoesNotWait(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	b := NewBudget(0.01, zap.NewNop(), func() time.Time { return now })
	b.SetHot(map[int]string{1: "hog", 2: "victim"})
	b.Spend(1, mostSavedHot+time.Second)
	b.common, b.reserve = 0, 0
	require.False(t, b.May(1))
	require.True(t, b.May(2))
	b.Spend(2, little)
	require.False(t, b.May(2), "it had what it may have in debt")
}

func TestNoBudgetHasNoBound(t *testing.T) {
	b := NewBudget(0, nil, nil)
	b.Spend(1, time.Hour)
	b.SetHot(nil)
	require.True(t, b.May(1))
	require.True(t, b.Light(1))
	require.Zero(t, b.Waits())
}
