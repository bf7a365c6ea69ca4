// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestAClockThatJumpsLosesNothing sets the system clock ten years ahead and back again,
// both while the store is open and while it is closed.
func TestAClockThatJumpsLosesNothing(t *testing.T) {
	const years = 10 * 365 * 24 * time.Hour
	w := newWorld(t, Options{noSync: true})
	n := 0
	live := func(minutes int) {
		for range minutes {
			w.pass(time.Minute)
			n++
			u := unitNamed("a")
			w.PutReadings(u, []Reading{reading("cpu", "cpu_usage", w.wall, 1, 2)}, map[string]string{"cpu": "watching"})
			w.PutOpening(Opening{ID: fmt.Sprint("o", n), Unit: u, Policy: "cpu", Kind: "hot", Triggered: w.wall, Until: w.wall.Add(time.Minute)})
			w.PutRefusal(Refusal{At: w.wall, Unit: u, Policy: "cpu", Why: "cooldown"})
			w.PutMetrics(Instance{ID: "i"}, []Metric{{Name: "otelcol_x", At: w.wall, Value: 1}})
			w.flush()
		}
	}
	all := func() int {
		w.t.Helper()
		list, err := w.Refusals(w.t.Context(), "", 0)
		require.NoError(w.t, err)
		require.Len(t, list, n)
		return len(w.openingIDs(OpeningQuery{}))
	}
	live(10)
	w.jump(years)
	live(10)
	require.Equal(t, n, all())
	w.jump(-years)
	live(10)
	require.Equal(t, n, all())
	u, err := w.Unit(IDOf("node-1", "a"))
	require.NoError(t, err)
	require.True(t, u.Last.Equal(w.wall))
	require.True(t, u.Readings[0].At.Equal(w.wall))

	require.NoError(t, w.Close())
	w.jump(years)
	w.open()
	live(10)
	require.Equal(t, n, all())
	require.NoError(t, w.Close())
	w.jump(-years)
	w.open()
	live(10)
	require.Equal(t, n, all())
	trends, err := w.Trends(t.Context(), u.ID, time.Time{}, time.Time{}, 0)
	require.NoError(t, err)
	points := 0
	for _, p := range trends[0].Points {
		if !math.IsNaN(p.Mean) {
			points++
		}
	}
	require.Greater(t, points, 20, "thinned, for the store is a day older")

	// Retention must still work, so all records are deleted once they are too old.
	for range 52 * 6 {
		w.pass(10 * time.Minute)
		w.flush()
	}
	require.Empty(t, w.openingIDs(OpeningQuery{}))
	units := w.Units()
	require.Empty(t, units)
	blocks, err := w.db.number("SELECT count(*) FROM blocks")
	require.NoError(t, err)
	require.Zero(t, blocks)
	require.Empty(t, w.instances)
}

// TestARecordOfTheFutureShiftsNothing covers a host with a wrong clock.
func TestARecordOfTheFutureShiftsNothing(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	w.PutOpening(Opening{ID: "now", Unit: unitNamed("a"), Triggered: w.wall})
	for _, at := range []time.Time{w.wall.AddDate(10, 0, 0), w.wall.AddDate(-50, 0, 0), time.Unix(0, math.MaxInt64), {}} {
		u := Unit{Host: "wrong", Name: "a"}
		w.PutOpening(Opening{ID: fmt.Sprint("wrong-", at.Unix()), Unit: u, Triggered: at, Until: at.Add(time.Minute), Closed: at})
		w.PutReadings(u, []Reading{reading("cpu", "cpu_usage", at, 1, 2)}, nil)
	}
	w.flush()
	require.Len(t, w.openingIDs(OpeningQuery{From: w.wall.Add(-time.Minute), To: w.wall.Add(time.Minute)}), 5)
	trends, err := w.Trends(t.Context(), IDOf("wrong", "a"), w.wall.Add(-time.Minute), w.wall.Add(time.Minute), 10)
	require.NoError(t, err)
	require.Len(t, trends, 1)
	require.Positive(t, w.Usage().Dropped["time"])
	w.reopen()
	require.Len(t, w.openingIDs(OpeningQuery{}), 5)
}

// TestBulkAStrangerHasNoMoreThanTheBounds adds as many records with long strings as
// possible, and measures the memory of the store.
func TestBulkAStrangerHasNoMoreThanTheBounds(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	long := strings.Repeat("long ", 1_200)
	require.True(t, w.PutOpening(Opening{ID: "huge", Unit: unitNamed(strings.Repeat("huge", 1<<20)), Policy: strings.Repeat("huge", 1<<20)}))
	resource := func(n int) map[string]string {
		out := map[string]string{"service.name": fmt.Sprint(n, long[:5000])}
		for i := range 100 {
			out[fmt.Sprint("key ", i, long[:300])] = fmt.Sprint(n, long[:2000])
		}
		return out
	}
	w.PutReadings(unitNamed("checkout"), []Reading{reading("cpu", "cpu_usage", w.wall, 1, 2)}, map[string]string{"cpu": "watching"})
	w.PutOpening(Opening{ID: "real", Unit: unitNamed("checkout"), Policy: "cpu", Kind: "hot", Triggered: w.wall})
	var resources []map[string]string
	for n := range 20 {
		resources = append(resources, resource(n))
	}
	before := hosttest.Heap()
	for n := range maxUnits * 5 / 4 {
		u := Unit{Host: fmt.Sprint("host ", n), Name: fmt.Sprint(n, " ", long[:2000]), Resource: resources[n%len(resources)]}
		w.PutReadings(u, []Reading{
			reading(fmt.Sprint(n, long[:300]), "m", w.wall, 1, 2), reading("p", fmt.Sprint(n, long[:300]), w.wall, 1, 2),
			reading("q", "m", w.wall, 1, 2), reading("r", "m", w.wall, 1, 2), reading("s", "m", w.wall, 1, 2), reading("t", "m", w.wall, 1, 2),
		}, map[string]string{fmt.Sprint(n, long[:300]): long[:300]})
	}
	one := Unit{Host: "host 0", Name: fmt.Sprint(0, " ", long[:2000])}
	for n := range maxRefusals * 5 / 4 {
		w.PutRefusal(Refusal{Unit: one, Policy: fmt.Sprint(n, long[:300]), Why: fmt.Sprint(n, long)})
		w.PutRefusal(Refusal{Unit: Unit{Host: fmt.Sprint("host ", n%100), Name: fmt.Sprint(n%100, " ", long[:2000])}, Policy: fmt.Sprint(n, long[:300]), Why: "w"})
	}
	for n := range maxOpenings * 5 / 4 {
		w.PutOpening(Opening{ID: fmt.Sprint("x", n), Unit: Unit{Host: fmt.Sprint("host ", n%100), Name: fmt.Sprint(n%100, " ", long[:2000])}, Policy: fmt.Sprint(n, long[:300]), NothingExported: long})
	}
	for n := range 2 * maxChanges {
		w.PutPolicyChange(PolicyChange{From: fmt.Sprint(n, long), Added: strings.Fields(long)})
	}
	for n := range maxInstances + 30 {
		i := Instance{ID: fmt.Sprint("i ", n, long[:300])}
		metrics := make([]Metric, 0, 2*maxMetrics)
		for m := range 500 {
			metrics = append(metrics, Metric{Name: fmt.Sprint(m, long[:300]), Attributes: map[string]string{"a": fmt.Sprint(n, m, long[:300])}})
		}
		w.PutMetrics(i, metrics)
		logs := make([]Log, 0, 4*maxStartLogs)
		for m := range 4 * maxStartLogs {
			logs = append(logs, Log{Severity: []string{"WARN", "INFO"}[m%2], Body: fmt.Sprint(m, long[:3000]), Attributes: map[string]string{"a": long[:3000]}})
		}
		w.PutLogs(i, logs, true)
	}
	grown := hosttest.Heap() - before
	t.Logf("%d units, %d openings, %d instances: %d MiB in memory", len(w.units), len(w.openings), len(w.instances), grown>>20)
	require.Less(t, grown, 256<<20)
	require.LessOrEqual(t, len(w.units), maxUnits)
	require.LessOrEqual(t, len(w.openings), maxOpenings)
	require.LessOrEqual(t, len(w.instances), maxInstances)
	require.LessOrEqual(t, w.series, maxSeries)
	require.LessOrEqual(t, w.metrics, maxAllMetrics)
	require.LessOrEqual(t, w.resources, maxResources+maxResource)
	dropped := w.Usage().Dropped
	for _, what := range []string{"units", "readings", "openings", "refusals", "policy changes", "instances", "metrics", "logs", "attributes"} {
		require.Positive(t, dropped[what], what)
	}
	// Existing records remain. New units do not replace a unit that still reports.
	u, err := w.Unit(IDOf("node-1", "checkout"))
	require.NoError(t, err)
	require.Len(t, u.Readings, 1)
	for _, table := range eventTables {
		n, err := w.db.number("SELECT count(*) FROM " + table.name)
		require.NoError(t, err)
		require.LessOrEqual(t, n, table.rows, table.name)
	}
	w.reopen()
	require.LessOrEqual(t, len(w.units), maxUnits)
	require.Less(t, w.db.size(), int64(200<<20))

	// New units replace units that no longer report. Units with
	// openings are replaced last.
	w.pass(10 * time.Minute)
	for n := range 100 {
		w.PutReadings(Unit{Host: "new", Name: fmt.Sprint(n)}, []Reading{reading("cpu", "cpu_usage", w.wall, 1, 2)}, nil)
	}
	units := w.Units()
	found := 0
	for _, u := range units {
		if u.Host == "new" {
			found++
		}
	}
	require.Equal(t, 100, found)
}

// TestBulkManyRecordsAreWrittenAtOnce writes all records again, as the store does after
// its database was damaged.
func TestBulkManyRecordsAreWrittenAtOnce(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	long := strings.Repeat("long ", 1_200)
	for n := range 4000 {
		resource := map[string]string{}
		for i := range 10 {
			resource[fmt.Sprint("key ", i)] = fmt.Sprint(n, long[:500])
		}
		w.PutReadings(Unit{Host: "a", Name: fmt.Sprint(n), Resource: resource}, []Reading{reading("cpu", "cpu_usage", w.wall, 1, 2)}, nil)
	}
	kept := len(w.units)
	w.flush()
	_, err := w.db.sql.Exec("DELETE FROM records")
	require.NoError(t, err)
	w.writing.Lock()
	w.mu.Lock()
	w.touchAll()
	w.mu.Unlock()
	w.writing.Unlock()
	w.flush()
	w.reopen()
	require.Len(t, w.units, kept)
}

// TestRequestsOfOldOpeningsGiveWay checks the limits of the requests of one opening and of
// all openings.
func TestRequestsOfOldOpeningsGiveWay(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	long := Request{TraceID: strings.Repeat("a", 1000), Route: strings.Repeat("b", 1000), Duration: math.Inf(1), Waits: map[string]float64{}}
	for i := range 100 {
		long.Waits[fmt.Sprint(strings.Repeat("c", 1000), i)] = 1
	}
	all := slices.Repeat([]Request{long}, 100)
	for i := range maxWithRequests + 1 {
		id := fmt.Sprint("o", i)
		w.PutOpening(Opening{ID: id, Unit: unitNamed(fmt.Sprint(i)), Triggered: w.wall})
		w.PutOpening(Opening{ID: id, Unit: unitNamed(fmt.Sprint(i)), Requests: all})
	}
	w.flush()
	for _, again := range []bool{false, true} {
		if again {
			require.NoError(t, w.Close())
			w.open()
		}
		o, err := w.Opening(t.Context(), "o0")
		require.NoError(t, err)
		require.Empty(t, o.Requests)
		o, err = w.Opening(t.Context(), fmt.Sprint("o", maxWithRequests))
		require.NoError(t, err)
		require.Len(t, o.Requests, maxRequests)
		require.Len(t, o.Requests[0].TraceID, 32)
		require.Len(t, o.Requests[0].Route, maxName)
		require.Len(t, o.Requests[0].Waits, 1, "the kinds differ only beyond the limit of a name")
		require.Zero(t, o.Requests[0].Duration)
	}
}

// TestWhatCannotBeWrittenIsBounded checks that the newest statements are kept, and that
// records are saved even if statements were dropped.
func TestWhatCannotBeWrittenIsBounded(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	w.PutOpening(Opening{ID: "o", Unit: unitNamed("a")})
	large := strings.Repeat("x", maxQueued/4)
	w.mu.Lock()
	for range 6 {
		w.queue("refusals", "SELECT ?", large)
	}
	require.Len(t, w.queued, 3)
	w.mu.Unlock()
	require.EqualValues(t, 3, w.Usage().Dropped["refusals"])
	w.flush()
	w.flush()
	w.reopen()
	require.Equal(t, []string{"o"}, w.openingIDs(OpeningQuery{}))
}

// TestBulkOldBaselinesGiveWayFirst adds more openings than the store may keep.
func TestBulkOldBaselinesGiveWayFirst(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	hot := 0
	for n := range 2 * maxOpenings {
		o := Opening{ID: fmt.Sprint("o", n), Unit: unitNamed(fmt.Sprint(n % 50)), Policy: "cpu", Kind: "baseline"}
		if n%100 == 0 {
			o.Kind = "hot"
			hot++
		}
		require.True(t, w.PutOpening(o))
		w.pass(time.Second)
	}
	require.Len(t, w.openingIDs(OpeningQuery{}), hot)
	require.Less(t, len(w.openingIDs(OpeningQuery{Baselines: true})), maxOpenings)
}

// TestASmallStoreKeepsItsBound covers a store with room for only a
// small part of the records.
func TestASmallStoreKeepsItsBound(t *testing.T) {
	const limit = 6 << 20
	w := newWorld(t, Options{noSync: true, MaxBytes: limit})
	for n := range 80 {
		w.pass(time.Minute)
		for i := range 100 {
			u := unitNamed(fmt.Sprint(i + 100*(n/50)))
			for range 6 {
				w.jump(time.Second)
				w.PutReadings(u, []Reading{reading("cpu", "cpu_usage", w.wall, rand.Float64(), 80), reading("cpu", "memory", w.wall, rand.Float64(), 80)}, nil)
			}
			w.PutOpening(Opening{ID: fmt.Sprint("o", n, "-", i), Unit: u, Policy: "cpu", NothingExported: strings.Repeat("n", 500)})
			w.PutRefusal(Refusal{Unit: u, Policy: "cpu", Why: "cooldown"})
		}
		w.flush()
		if n > 10 {
			require.LessOrEqual(t, w.Usage().Bytes, int64(limit*3/2), "minute %d", n)
		}
	}
	w.maintain()
	u := w.Usage()
	t.Logf("%d of %d bytes, dropped %v", u.Bytes, u.MaxBytes, u.Dropped)
	require.LessOrEqual(t, u.Bytes, int64(limit))
	require.NotEmpty(t, w.openingIDs(OpeningQuery{}))
}
