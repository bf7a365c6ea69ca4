// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
)

// world is a store whose clocks are set by tests.
type world struct {
	*Store
	t       *testing.T
	options Options
	clocks  sync.Mutex // also read by the store's goroutines
	wall    time.Time
	uptime  time.Duration
}

func newWorld(t *testing.T, o Options) *world {
	w := &world{t: t, options: o, wall: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)}
	if w.options.Directory == "" {
		w.options.Directory = t.TempDir()
	}
	w.options.Now = func() time.Time {
		w.clocks.Lock()
		defer w.clocks.Unlock()
		return w.wall
	}
	w.options.Uptime = func() time.Duration {
		w.clocks.Lock()
		defer w.clocks.Unlock()
		return w.uptime
	}
	w.options.Logger = zaptest.NewLogger(t)
	w.open()
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

func (w *world) open() {
	w.t.Helper()
	var err error
	w.Store, err = Open(w.options)
	require.NoError(w.t, err)
}

func (w *world) reopen() {
	w.t.Helper()
	require.NoError(w.t, w.Close())
	w.open()
}

// pass advances both clocks.
func (w *world) pass(d time.Duration) {
	w.clocks.Lock()
	defer w.clocks.Unlock()
	w.wall = w.wall.Add(d)
	w.uptime += d
}

// jump changes only the wall clock.
func (w *world) jump(d time.Duration) {
	w.clocks.Lock()
	defer w.clocks.Unlock()
	w.wall = w.wall.Add(d)
}

func (w *world) commit() {
	w.t.Helper()
	require.NoError(w.t, w.Commit(w.t.Context()))
}

func (w *world) openingIDs(q OpeningQuery) []string {
	w.t.Helper()
	all, err := w.Openings(w.t.Context(), q)
	require.NoError(w.t, err)
	ids := []string{}
	for _, o := range all {
		ids = append(ids, o.ID)
	}
	return ids
}

func unitNamed(name string) Unit {
	return Unit{Host: "node-1", Name: name, Resource: map[string]string{"service.name": name, "host.name": "node-1"}}
}

func reading(policy, monitor string, at time.Time, value, threshold float64) Reading {
	return Reading{Condition{policy, monitor, "30s average"}, at, value, threshold}
}

func TestWhatIsPutIsReadAlsoAfterAReopen(t *testing.T) {
	w := newWorld(t, Options{})
	checkout := unitNamed("checkout")
	for range 12 {
		w.pass(10 * time.Second)
		w.PutReadings(checkout, []Reading{
			reading("cpu", "cpu_utilization", w.wall, 50, 80),
			reading("cpu", "memory_utilization", w.wall, math.NaN(), 90),
		}, map[string]string{"cpu": "watching"})
	}
	opened := w.wall
	require.True(t, w.PutOpening(Opening{
		ID: "5f0e9a4e6a3b1c22", Unit: checkout, Policy: "cpu", Kind: "hot", Monitor: "cpu_utilization", Window: "30s average",
		Value: 93.5, Threshold: 80, Triggered: opened, Until: opened.Add(30 * time.Second), TraceID: "0af7651916cd43dd8448eb211c80319c", Traces: []string{"0af7651916cd43dd8448eb211c80319c"},
	}))
	require.True(t, w.PutOpening(Opening{ID: "ba5e", Unit: checkout, Policy: "cpu", Kind: "baseline", Triggered: opened.Add(-time.Minute)}))
	w.pass(30 * time.Second)
	require.True(t, w.PutOpening(Opening{ID: "5f0e9a4e6a3b1c22", Unit: checkout, Closed: w.wall, Why: "duration", Samples: 812, Bytes: 4096}))
	w.PutRefusal(Refusal{At: w.wall, Unit: checkout, Policy: "cpu", Kind: "hot", Monitor: "cpu_utilization", Why: "cooldown", Value: 91, Threshold: 80})
	w.PutPolicyChange(PolicyChange{At: w.wall, Host: "node-1", From: "/etc/policies.yaml", Version: "abc", Added: []string{"cpu"}})
	self := Instance{ID: "i-1", Service: "otelcol-hotprofile", Version: "0.1.0"}
	w.PutMetrics(self, []Metric{{Name: "otelcol_cpu_profiler.samples", At: w.wall, Value: 100, Monotonic: true}})
	w.PutLogs(self, []Log{{At: w.wall, Severity: "INFO", Body: "sampling started", Attributes: map[string]string{"what": "the whole host"}}}, true)
	w.pass(10 * time.Second)
	w.PutMetrics(self, []Metric{{Name: "otelcol_cpu_profiler.samples", At: w.wall, Value: 150, Monotonic: true}})

	check := func(t *testing.T) {
		units := w.Units()
		require.Len(t, units, 1)
		u := units[0]
		require.Equal(t, IDOf("node-1", "checkout"), u.ID)
		require.Equal(t, "checkout", u.Resource["service.name"])
		require.Equal(t, 1, u.Openings)
		require.Equal(t, "5f0e9a4e6a3b1c22", u.Newest.ID)
		require.Equal(t, map[string]int{"cooldown": 1}, u.Refusals)
		require.Len(t, u.Readings, 2)
		require.InDelta(t, 50, u.Readings[0].Value, 0.01)
		require.InDelta(t, 80, u.Readings[0].Threshold, 0.01)
		require.True(t, math.IsNaN(u.Readings[1].Value))

		o, err := w.Opening(t.Context(), "5f0e9a4e6a3b1c22")
		require.NoError(t, err)
		require.Equal(t, "cpu", o.Policy)
		require.InDelta(t, 93.5, o.Value, 0)
		require.True(t, o.Triggered.Equal(opened))
		require.True(t, o.Until.Equal(opened.Add(30*time.Second)))
		require.True(t, o.Closed.Equal(opened.Add(30*time.Second)))
		require.Equal(t, "duration", o.Why)
		require.EqualValues(t, 812, o.Samples)
		require.Equal(t, "0af7651916cd43dd8448eb211c80319c", o.TraceID)
		require.Equal(t, []string{o.TraceID}, o.Traces)
		require.Equal(t, "checkout", o.Unit.Name)
		require.Equal(t, []string{"5f0e9a4e6a3b1c22"}, w.openingIDs(OpeningQuery{}))
		require.Equal(t, []string{"ba5e"}, w.openingIDs(OpeningQuery{Baselines: true}))
		require.Equal(t, []string{"5f0e9a4e6a3b1c22", "ba5e"}, w.openingIDs(OpeningQuery{All: true, Unit: u.ID}))
		_, err = w.Opening(t.Context(), "none")
		require.ErrorIs(t, err, ErrNotFound)

		trends, err := w.Trends(t.Context(), u.ID, opened.Add(-time.Hour), opened.Add(time.Hour), 500)
		require.NoError(t, err)
		require.Len(t, trends, 2)
		require.Len(t, trends[0].Points, 12)
		for _, p := range trends[0].Points {
			require.InDelta(t, 50, p.Mean, 0.01)
			require.InDelta(t, 80, p.Threshold, 0.01)
		}
		require.True(t, math.IsNaN(trends[1].Points[0].Mean))
		_, err = w.Trends(t.Context(), "none", opened, opened, 10)
		require.ErrorIs(t, err, ErrNotFound)

		refusals, err := w.Refusals(t.Context(), "", 0)
		require.NoError(t, err)
		require.Len(t, refusals, 1)
		require.Equal(t, "checkout", refusals[0].Unit.Name)
		changes, err := w.PolicyChanges(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"cpu"}, changes[0].Added)
		instances, err := w.Instances(t.Context())
		require.NoError(t, err)
		require.Len(t, instances, 1)
		require.InDelta(t, 5, instances[0].Metrics[0].PerSecond, 0)
		require.Equal(t, "sampling started", instances[0].Logs[0].Body)

		policies := w.Policies()
		require.Len(t, policies, 1)
		require.Equal(t, map[string]int{"hot": 1, "baseline": 1}, policies[0].Opened)
		require.Equal(t, map[string]int{"cooldown": 1}, policies[0].Refused)
		require.Equal(t, []float64{80}, policies[0].Conditions[0].Thresholds)
	}
	w.commit()
	t.Run("committed", check)
	w.flush()
	t.Run("flushed", check)
	w.reopen()
	t.Run("reopened", check)
}

// TestReadingsOfTheFirstSecond covers readings right after the start of a new store. A
// condition with the time 0 is a free slot, so the store's clock must not begin at 0.
func TestReadingsOfTheFirstSecond(t *testing.T) {
	w := newWorld(t, Options{})
	for range 3 {
		w.PutReadings(unitNamed("cart"), []Reading{reading("cpu", "cpu_usage", w.wall, 1, 2)}, nil)
	}
	all := w.Units()
	require.Len(t, all, 1)
	require.Len(t, all[0].Readings, 1)
}

func TestBulkReadingsAreThinnedWithAge(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	u := unitNamed("a")
	start := w.wall
	for i := range 24 * 360 {
		w.pass(10 * time.Second)
		value := 50.0
		if i%30 == 0 {
			value = 100
		}
		w.PutReadings(u, []Reading{reading("cpu", "cpu_usage", w.wall, value, 80)}, nil)
		if i%6 == 5 {
			w.flush()
		}
	}
	trends, err := w.Trends(t.Context(), IDOf("node-1", "a"), start, w.wall, 0)
	require.NoError(t, err)
	require.Len(t, trends, 1)
	points := trends[0].Points
	distances := map[time.Duration]int{}
	sum := 0.0
	for i, p := range points {
		require.False(t, math.IsNaN(p.Mean), "a gap at %v", p.At)
		require.InDelta(t, 80, p.Threshold, 0.01)
		if i > 0 {
			require.True(t, p.At.After(points[i-1].At))
			distances[p.At.Sub(points[i-1].At)]++
			span := p.At.Sub(points[i-1].At)
			sum += p.Mean * span.Seconds()
		}
		if i > 0 && p.At.Sub(points[i-1].At) == 5*time.Minute {
			require.InDelta(t, 100, p.Max, 0.01)
			require.InDelta(t, 50, p.Min, 0.01)
		}
	}
	require.Greater(t, distances[10*time.Second], 350)
	require.Greater(t, distances[time.Minute], 5*60)
	require.Greater(t, distances[5*time.Minute], 12*12)
	require.Less(t, len(points), 2000)
	require.InDelta(t, 50+50.0/30, sum/w.wall.Sub(points[0].At).Seconds(), 0.1)

	few, err := w.Trends(t.Context(), IDOf("node-1", "a"), start, w.wall, 200)
	require.NoError(t, err)
	require.LessOrEqual(t, len(few[0].Points), 200)
	require.Greater(t, len(few[0].Points), 100)
	highest := 0.0
	for _, p := range few[0].Points {
		highest = max(highest, p.Max)
	}
	require.InDelta(t, 100, highest, 0.01)
}

func TestAGapHasAPointWithoutValues(t *testing.T) {
	w := newWorld(t, Options{})
	u := unitNamed("a")
	put := func(n int) {
		for range n {
			w.pass(10 * time.Second)
			w.PutReadings(u, []Reading{reading("cpu", "cpu_usage", w.wall, 1, 2)}, nil)
		}
	}
	put(10)
	w.pass(5 * time.Minute)
	put(10)
	for _, n := range []int{500, 10, 4} {
		t.Run(fmt.Sprint(n, " points"), func(t *testing.T) {
			trends, err := w.Trends(t.Context(), IDOf("node-1", "a"), time.Time{}, time.Time{}, n)
			require.NoError(t, err)
			gaps := 0
			for _, p := range trends[0].Points {
				if math.IsNaN(p.Mean) {
					gaps++
				}
			}
			require.Equal(t, 1, gaps)
			require.LessOrEqual(t, len(trends[0].Points), n)
		})
	}
}

// TestBulkAGapIsShownInThinnedReadings covers gaps between thinned points. Because a
// thinned point represents several readings, the distance to the next point alone does not
// show whether there is a gap.
func TestBulkAGapIsShownInThinnedReadings(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	put := func(d time.Duration) {
		for end := w.wall.Add(d); w.wall.Before(end); {
			w.pass(10 * time.Second)
			w.PutReadings(unitNamed("a"), []Reading{reading("cpu", "cpu_usage", w.wall, 1, 2)}, nil)
			if w.wall.Unix()%60 == 0 {
				w.flush()
			}
		}
	}
	var gaps []time.Time
	for _, step := range []struct{ gap, then time.Duration }{
		{8 * time.Minute, 6 * time.Hour}, // thinned to 5 minutes
		{2 * time.Minute, 2 * time.Hour}, // thinned to 1 minute
		{time.Minute, 0},
	} {
		put(30 * time.Minute)
		w.pass(step.gap)
		gaps = append(gaps, w.wall.Add(-step.gap/2))
		put(step.then)
	}
	put(30 * time.Minute)
	trends, err := w.Trends(t.Context(), IDOf("node-1", "a"), time.Time{}, time.Time{}, 0)
	require.NoError(t, err)
	points, found := trends[0].Points, 0
	for i, p := range points {
		if math.IsNaN(p.Mean) {
			require.Less(t, found, len(gaps), "a gap at %v", p.At)
			require.True(t, points[i-1].At.Before(gaps[found]) && points[i+1].At.After(gaps[found]), "a gap at %v", p.At)
			found++
		}
	}
	require.Len(t, gaps, found)
}

// TestUnitOfAnEarlierVersion reads a unit from an earlier version, which wrote the keys of
// units in lower case.
func TestUnitOfAnEarlierVersion(t *testing.T) {
	s := &Store{units: map[UnitID]*unit{}}
	id := IDOf("node-1", "/a")
	require.NoError(t, s.loadUnit(string(id), id, 7, []byte(`{"host":"node-1","name":"/a","resource":{"service.name":"checkout"},"first":"2026-05-28T20:26:42Z","last":"2026-05-28T20:27:12Z","conditions":[{"Policy":"cpu","Monitor":"cpu_utilization","Window":"","Seen":7}]}`)))
	first := time.Date(2026, 5, 28, 20, 26, 42, 0, time.UTC)
	require.Equal(t, Unit{ID: id, Host: "node-1", Name: "/a", Resource: map[string]string{"service.name": "checkout"}, First: first, Last: first.Add(30 * time.Second)}, s.units[id].Unit)
	require.Equal(t, Condition{Policy: "cpu", Monitor: "cpu_utilization"}, s.units[id].Conditions[0].Condition)
}
