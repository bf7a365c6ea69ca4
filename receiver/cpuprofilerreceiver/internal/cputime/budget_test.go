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
		if b.May(1) { // it always has another file
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
	require.InDelta(t, 36, spent.Seconds(), 2, "half of 2 %% of an hour")
	require.LessOrEqual(t, (spent + light).Seconds(), 72+2*mostSaved.Seconds())
	require.Equal(t, waits, b.Waits())
	require.Equal(t, 1, logs.Len(), "once an episode")

	require.False(t, b.May(1))
	b.Favour(map[int]bool{1: true})
	require.True(t, b.May(1), "it is hot")
	require.True(t, b.May(0), "the host's own")
	now = now.Add(time.Hour)
	b.Favour(nil)
	for b.May(1) {
		b.Spend(1, file)
	}
	require.Equal(t, 2, logs.Len(), "another episode")
}

// Many processes that each cause little share what there is.
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
	require.InDelta(t, 20+2*mostSaved.Seconds(), spent.Seconds(), 1)
	require.LessOrEqual(t, len(b.caused), maxCausing)
}

func TestNoBudgetHasNoBound(t *testing.T) {
	b := NewBudget(0, nil, nil)
	b.Spend(1, time.Hour)
	b.Favour(nil)
	require.True(t, b.May(1))
	require.True(t, b.Light(1))
	require.Zero(t, b.Waits())
}
