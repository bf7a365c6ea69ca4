// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestEventsAreBounded adds more events than a table may have. The oldest events give way,
// and units count only the refusals that are left.
func TestEventsAreBounded(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	for n := range maxRefusals + 100 {
		w.PutRefusal(Refusal{Unit: unitNamed("a"), Policy: "cpu", Why: fmt.Sprint(n / maxRefusals)})
		if n%1_000 == 0 {
			w.pass(time.Second)
		}
	}
	for n := range maxChanges + 1 {
		w.PutPolicyChange(PolicyChange{Version: fmt.Sprint(n)})
	}
	w.flush()
	all, err := w.Refusals(t.Context(), "", 0)
	require.NoError(t, err)
	require.Len(t, all, maxRefusals)
	require.Equal(t, "1", all[0].Why)
	few, err := w.Refusals(t.Context(), IDOf("node-1", "a"), 150)
	require.NoError(t, err)
	require.Equal(t, all[:150], few)
	u, err := w.Unit(IDOf("node-1", "a"))
	require.NoError(t, err)
	require.Equal(t, map[string]int{"0": maxRefusals - 100, "1": 100}, u.Refusals)
	changes, err := w.PolicyChanges(t.Context())
	require.NoError(t, err)
	require.Len(t, changes, maxChanges)
	require.Equal(t, fmt.Sprint(maxChanges), changes[0].Version)
	require.Equal(t, map[string]int64{"refusals": 100, "policy changes": 1}, w.Usage().Dropped)
}

// TestANoisyUnitDoesNotDisplaceOthers adds refusals of two noisy units and of a quiet one.
func TestANoisyUnitDoesNotDisplaceOthers(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	put := func(unit string, n int) {
		for range n {
			w.PutRefusal(Refusal{Unit: unitNamed(unit), Policy: "cpu", Why: "cooldown"})
		}
		w.flush()
	}
	put("quiet", 10)
	put("noisy", maxRefusals)
	put("noisier", 3*maxRefusals/2)
	count := func(unit string) int {
		all, err := w.Refusals(t.Context(), IDOf("node-1", unit), 0)
		require.NoError(t, err)
		return len(all)
	}
	require.Equal(t, 10, count("quiet"))
	require.Equal(t, maxRefusals, count("noisy")+count("noisier")+10)
	require.InDelta(t, maxRefusals/2, count("noisy"), maxRefusals/4)
	require.EqualValues(t, 3*maxRefusals/2+10, w.Usage().Dropped["refusals"])
}

// TestLogsOfACollector checks that startup logs of an earlier start are not shown, and that
// other logs are kept only if they are warnings.
func TestLogsOfACollector(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	put := func(severity, body string, starts bool) {
		w.PutLogs(Instance{ID: "i"}, []Log{{At: w.wall, Severity: severity, Body: body}}, starts)
		w.pass(10 * time.Second)
		w.commit()
	}
	put("INFO", "first start", true)
	put("WARN", "first warning", false)
	put("INFO", "second start", true)
	w.pass(starting * time.Second)
	put("INFO", "later", false)
	put("ERROR", "second warning", false)
	check := func() {
		t.Helper()
		all, err := w.Instances(t.Context())
		require.NoError(t, err)
		var bodies []string
		for _, l := range all[0].Logs {
			bodies = append(bodies, l.Body)
		}
		require.Equal(t, []string{"second warning", "second start", "first warning"}, bodies)
	}
	check()
	w.reopen()
	check()
}

// TestAPageDoesNotWaitForTheDiskForever reads while a writer has the database.
func TestAPageDoesNotWaitForTheDiskForever(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	w.PutRefusal(Refusal{Unit: unitNamed("a"), Policy: "cpu", Why: "cooldown"})
	w.PutMetrics(Instance{ID: "i"}, []Metric{{Name: "otelcol_x", Value: 1}})
	w.commit()
	require.NoError(t, w.db.turn.Acquire(t.Context(), 1))
	defer w.db.turn.Release(1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := w.Refusals(ctx, "", 0)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = w.PolicyChanges(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	instances, err := w.Instances(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Len(t, instances[0].Metrics, 1)
	_, err = w.Trends(ctx, IDOf("node-1", "a"), time.Time{}, time.Time{}, 0)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, map[string]int{"cooldown": 1}, w.Units()[0].Refusals)
}

// TestCommitWaitsForAWriteThatRuns covers data that a write has taken but not yet written.
func TestCommitWaitsForAWriteThatRuns(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	require.NoError(t, w.db.turn.Acquire(t.Context(), 1))
	w.PutRefusal(Refusal{Unit: unitNamed("a"), Policy: "cpu", Why: "cooldown"})
	w.poke()
	require.Eventually(t, func() bool {
		w.mu.RLock()
		defer w.mu.RUnlock()
		return len(w.queued) == 0
	}, time.Minute, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, w.Commit(ctx), context.DeadlineExceeded)
	w.db.turn.Release(1)
	w.commit()
	all, err := w.Refusals(t.Context(), "", 0)
	require.NoError(t, err)
	require.Len(t, all, 1)
}

// TestADatabaseOfTheVersionBeforeIsSetAside opens the directory of an earlier version.
func TestADatabaseOfTheVersionBeforeIsSetAside(t *testing.T) {
	dir := t.TempDir()
	db, err := connect(filepath.Join(dir, "console.db"))
	require.NoError(t, err)
	_, err = db.Exec("CREATE TABLE records (kind TEXT, key TEXT, unit TEXT, stored INTEGER, data TEXT, PRIMARY KEY (kind, key)); PRAGMA user_version = 1")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	w := newWorld(t, Options{Directory: dir, noSync: true})
	require.Len(t, w.db.aside(), 1)
	w.PutRefusal(Refusal{Unit: unitNamed("a"), Policy: "cpu", Why: "cooldown"})
	w.reopen()
	all, err := w.Refusals(t.Context(), "", 0)
	require.NoError(t, err)
	require.Len(t, all, 1)
}
