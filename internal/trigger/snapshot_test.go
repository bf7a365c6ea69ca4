// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

func snapshotConfig() Config {
	conditions := []Condition{{Monitor: "util", Test: window.Test{Threshold: 80, AverageOver: 5 * time.Second}}}
	return Config{
		Monitors: testMonitors(), CollectionInterval: time.Second, CooldownByService: true, MaxGone: 20,
		Budgets: budget.Limits{MaxTriggersPerHour: 5, MaxTriggersPerServicePerHour: 2, MaxBytesPerHour: 1000},
		Policies: []Policy{
			{Name: "cpu", Conditions: conditions, Duration: 10 * time.Second, Cooldown: 10 * time.Minute},
			{Name: "dry", Conditions: conditions, Duration: 10 * time.Second, Cooldown: time.Hour, DryRun: true},
		},
	}
}

// checkRestored checks that an engine obeys all bounds after it has restored any
// snapshot. No cooldown may be longer than the cooldown of its policy.
func checkRestored(t *testing.T, e *Engine, now time.Time) {
	t.Helper()
	latest := now.Add(10 * time.Minute)
	require.LessOrEqual(t, len(e.roster.byName), e.roster.maxGone)
	require.LessOrEqual(t, len(e.services.byAccount), e.roster.maxGone)
	for _, u := range e.roster.byName {
		require.False(t, u.machines[0].notBefore.After(latest))
		require.Equal(t, Watching, u.machines[1].state, "the cooldown of a dry run")
	}
	for _, s := range e.services.byAccount {
		for _, c := range s.cooldowns {
			require.False(t, c.until.After(latest))
		}
		require.LessOrEqual(t, s.triggers.Sum(math.MinInt64/2), int64(2), "of any time")
	}
	spent, _ := e.places.ledger.Spent(budget.Wall{Now: now, At: e.clock.at(now)})
	var triggers int64
	for _, s := range spent {
		triggers += s.Amount
	}
	require.LessOrEqual(t, triggers, int64(5))
	e.Decision("u")
	e.Evaluate(now)
	checkInvariants(t, e)
	// Amounts that were spent from a budget no longer count after an hour and two minutes.
	later := now.Add(time.Hour + 2*time.Minute)
	require.True(t, e.Affords(1000, later))
	require.Empty(t, e.Decision("u").overBudget(e.clock.at(later)))
}

func TestRestoreOfMisleadingSnapshots(t *testing.T) {
	now := start
	far := now.Add(1000 * time.Hour)
	many := make([]Cooldown, 100)
	for i := range many {
		many[i] = Cooldown{fmt.Sprint(i), "cpu", now.Add(time.Minute)}
	}
	for name, s := range map[string]Snapshot{
		"nothing":                      {},
		"never taken":                  {Units: []Cooldown{{"a", "cpu", far}}},
		"taken in the future":          {Taken: far, Units: []Cooldown{{"a", "cpu", far.Add(time.Hour)}}},
		"a cooldown of years":          {Taken: now, Units: []Cooldown{{"a", "cpu", far}}, Services: []Cooldown{{"s", "cpu", far}}},
		"a cooldown that ended":        {Taken: now, Units: []Cooldown{{"a", "cpu", now.Add(-time.Hour)}}},
		"one before all time":          {Taken: now, Units: []Cooldown{{"a", "cpu", time.Time{}}}},
		"a policy that is gone":        {Taken: now, Units: []Cooldown{{"a", "x", now.Add(time.Minute)}, {"a", Manual, now.Add(time.Minute)}}},
		"a dry run":                    {Taken: now, Units: []Cooldown{{"a", "dry", now.Add(time.Minute)}}},
		"more than the bound":          {Taken: now, Units: many, Services: many},
		"triggers of the future":       {Taken: now, Triggers: []budget.Spending{{Time: far, Amount: 3}}},
		"more triggers than allowed":   {Taken: now, Triggers: []budget.Spending{{Time: now, Amount: 1 << 60}}, ServiceTriggers: []ServiceSpending{{"s", false, []budget.Spending{{Time: now, Amount: 1 << 60}}}}},
		"triggers that never happened": {Taken: now, Triggers: []budget.Spending{{Time: now, Amount: -5}}},
		"bytes beyond any number":      {Taken: now, Bytes: []budget.Spending{{Time: now, Amount: 1<<63 - 1}, {Time: now, Amount: 1<<63 - 1}, {Time: now.Add(-time.Minute), Amount: -1}}},
		"triggers out of order":        {Taken: now, Triggers: []budget.Spending{{Time: now, Amount: 1}, {Time: now.Add(-time.Minute), Amount: 1}, {Time: now.Add(-time.Hour), Amount: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := New(snapshotConfig())
			require.NoError(t, err)
			e.Restore(s, now)
			checkRestored(t, e, now)
		})
	}
}

// FuzzRestore restores arbitrary data that a store may return.
func FuzzRestore(f *testing.F) {
	f.Add([]byte(`{"taken":"2026-08-01T12:00:00Z","units":[{"name":"a","policy":"cpu","until":"2026-08-01T12:05:00Z"}]}`), int64(60))
	f.Add([]byte(`{"taken":"2026-08-01T12:00:00Z","services":[{"name":"s","policy":"cpu","until":"2036-08-01T12:05:00Z"}],"triggers":[{"time":"2026-08-01T11:30:00Z","amount":4}]}`), int64(-60))
	f.Add([]byte(`{"taken":"2026-08-01T12:00:00Z","bytes":[{"time":"2026-08-01T11:30:00Z","amount":400}],"service_triggers":[{"name":"s","unit":true,"spent":[{"time":"2026-08-01T11:30:00Z","amount":4}]}]}`), int64(1))
	f.Fuzz(func(t *testing.T, stored []byte, seconds int64) {
		var s Snapshot
		if json.Unmarshal(stored, &s) != nil {
			return
		}
		e, err := New(snapshotConfig())
		require.NoError(t, err)
		now := start.Add(time.Duration(seconds%1e9) * time.Second)
		e.Restore(s, now)
		again := e.Snapshot(now)
		checkRestored(t, e, now)

		other, err := New(snapshotConfig())
		require.NoError(t, err)
		other.Restore(again, now)
		require.Equal(t, again, other.Snapshot(now), "a snapshot of what was restored from a snapshot")
	})
}

func TestASnapshotIsTheSameAfterAnotherRestart(t *testing.T) {
	e, err := New(snapshotConfig())
	require.NoError(t, err)
	u := e.Decision("a")
	u.SetService("s")
	now := start
	for n := range 100 {
		now = start.Add(time.Duration(n) * time.Second)
		u.Observe("util", Reading{now, float64(n), float64(n)})
		e.Evaluate(now)
		for _, o := range u.Openings(nil) {
			if !o.DryRun {
				o.Accepted(1, 10)
				e.SpendBytes(10, now)
			}
		}
	}
	first := e.Snapshot(now)
	require.Len(t, first.Units, 1)
	require.Len(t, first.Services, 1)
	require.Len(t, first.Triggers, 1)
	require.Len(t, first.ServiceTriggers, 1)
	require.NotEmpty(t, first.Bytes)
	other, err := New(snapshotConfig())
	require.NoError(t, err)
	other.Restore(first, now)
	require.Equal(t, first, other.Snapshot(now))
}

// TestRestoreKeepsTheLongestCooldowns checks that the longest cooldowns are kept if there
// are too many cooldowns. The order in the snapshot must not matter.
func TestRestoreKeepsTheLongestCooldowns(t *testing.T) {
	s := Snapshot{Taken: start}
	for n := range 100 {
		s.Units = append(s.Units, Cooldown{fmt.Sprintf("u%02d", n*37%100), "cpu", start.Add(time.Duration(1+n*37%100) * time.Second)})
	}
	e, err := New(snapshotConfig())
	require.NoError(t, err)
	e.Restore(s, start)
	require.Len(t, e.roster.gone.Items, 20)
	require.Equal(t, 80, e.Stats().ForgottenUnits)
	for n := range 100 {
		_, kept := e.Lookup(fmt.Sprintf("u%02d", n))
		require.Equal(t, n >= 80, kept, n)
	}
}
