// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// These constants describe the size that the store is designed for.
const (
	loadMonitors = 4
	loadHours    = 48
	loadTriggers = 500
)

// load fills a store with the records of two days.
func load(dir string, loadUnits int) error {
	begin := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	var passed atomic.Int64 // several goroutines read it
	uptime := func() time.Duration { return time.Duration(passed.Load()) }
	s, err := Open(Options{Directory: dir, noSync: true, Now: func() time.Time { return begin.Add(uptime()) }, Uptime: uptime})
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 2))
	monitors := [loadMonitors]string{"cpu_utilization", "memory_utilization", "cpu_bottleneck", "request_latency"}
	units := make([]Unit, loadUnits)
	values := make([][loadMonitors]float64, loadUnits)
	for n := range units {
		units[n] = Unit{Host: fmt.Sprintf("node-%d", n/50), Name: fmt.Sprintf("%064x", n), Resource: map[string]string{
			"host.name": fmt.Sprintf("node-%d", n/50), "service.name": fmt.Sprintf("service-%d", n%120), "container.id": fmt.Sprintf("%064x", n),
			"k8s.namespace.name": "shop", "k8s.pod.name": fmt.Sprintf("service-%d-7d4b9c6f5-%05d", n%120, n), "k8s.container.name": "main",
		}}
	}
	// Values vary and have noise, like the values of a busy host. Each
	// monitor has its own threshold.
	const steps = loadHours * 360
	flush := 6 // once per minute
	if loadUnits < 100 {
		flush = 30 // each flush is slow with the race detector
	}
	for step := range steps {
		passed.Add(int64(10 * time.Second))
		wall := begin.Add(uptime())
		readings := make([]Reading, loadMonitors)
		for n := range units {
			for m := range monitors {
				values[n][m] = math.Abs(values[n][m]*0.98 + r.NormFloat64()*5)
				readings[m] = reading("hot", monitors[m], wall, math.Round(values[n][m]*1000)/1000, float64(50+10*m))
			}
			s.PutReadings(units[n], readings, map[string]string{"hot": "watching"})
		}
		if step%(steps/loadTriggers) == 0 {
			u := units[r.IntN(len(units))]
			id := fmt.Sprintf("%016x", step)
			s.PutOpening(Opening{ID: id, Unit: u, Policy: "hot", Kind: "hot", Monitor: monitors[0], Window: "30s average", Value: 91.5, Threshold: 80, Triggered: wall, Until: wall.Add(30 * time.Second)})
			s.PutOpening(Opening{ID: id, Unit: u, Closed: wall.Add(30 * time.Second), Why: "duration", Samples: 900, Bytes: 50_000})
			for range 4 {
				s.PutRefusal(Refusal{At: wall, Unit: u, Policy: "hot", Kind: "hot", Monitor: monitors[1], Window: "30s average", Value: 91.5, Threshold: 80, Why: "cooldown"})
			}
		}
		if step%flush == flush-1 {
			s.flush()
		}
	}
	return s.Close()
}

func openLoaded(tb testing.TB, units int) *Store {
	dir := tb.TempDir()
	require.NoError(tb, load(dir, units))
	wall := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC).Add(loadHours * time.Hour)
	s, err := Open(Options{Directory: dir, noSync: true, Now: func() time.Time { return wall }})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, s.Close()) })
	return s
}

// TestBulkTwoDaysOfAThousandUnitsFit measures the disk space and the memory of a store
// without profiles. If HOTPROFILE_LOAD_UNITS=1000 is set, it uses 1,000 units. By
// default, it uses 20 units and proportional limits.
func TestBulkTwoDaysOfAThousandUnitsFit(t *testing.T) {
	loadUnits := 20
	if n, err := strconv.Atoi(os.Getenv("HOTPROFILE_LOAD_UNITS")); err == nil {
		loadUnits = n
	}
	before := hosttest.Heap()
	s := openLoaded(t, loadUnits)
	memory := hosttest.Heap() - before
	readings, err := s.db.number("SELECT sum(length(data)) FROM blocks")
	require.NoError(t, err)
	t.Logf("%d units, %d monitors, %d h, %d openings: %.1f MB on disk, %.1f MB of readings; %.1f MB in memory",
		loadUnits, loadMonitors, loadHours, loadTriggers, float64(s.Usage().Bytes)/1e6, float64(readings)/1e6, float64(memory)/1e6)
	require.Less(t, s.Usage().Bytes, int64(4e6+71e3*loadUnits), "75 MB of 1,000 units is a quarter of 300 MB; the rest is for profiles")
	require.Less(t, memory, 4<<20+32<<10*loadUnits)
	require.Empty(t, s.Usage().Dropped)

	units := s.Units()
	require.Len(t, units, loadUnits)
	require.Len(t, units[0].Readings, loadMonitors)
	openings, err := s.Openings(t.Context(), OpeningQuery{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(openings), loadTriggers-20)
	refusals, err := s.Refusals(t.Context(), "", 0)
	require.NoError(t, err)
	require.Greater(t, len(refusals), 4*(loadTriggers-20))
	trends, err := s.Trends(t.Context(), units[7].ID, time.Time{}, time.Time{}, 0)
	require.NoError(t, err)
	require.Len(t, trends, loadMonitors)
	points := trends[0].Points
	require.Greater(t, points[len(points)-1].At.Sub(points[0].At), 47*time.Hour)
	for _, p := range points {
		require.False(t, math.IsNaN(p.Mean), "a gap at %v", p.At)
	}
}

func BenchmarkQueries(b *testing.B) {
	s := openLoaded(b, 1000)
	units := s.Units()
	now := s.options.Now()
	next := func(i int) UnitID { return units[i%len(units)].ID }
	for _, query := range []struct {
		name string
		do   func(i int) error
	}{
		{"units", func(int) error { s.Units(); return nil }},
		{"unit", func(i int) error { _, err := s.Unit(next(i)); return err }},
		{"trends of 48 h", func(i int) error {
			_, err := s.Trends(b.Context(), next(i), now.Add(-48*time.Hour), now, 500)
			return err
		}},
		{"trends of 1 h", func(i int) error {
			_, err := s.Trends(b.Context(), next(i), now.Add(-time.Hour), now, 500)
			return err
		}},
		{"openings", func(int) error { _, err := s.Openings(b.Context(), OpeningQuery{}); return err }},
		{"refusals", func(int) error { _, err := s.Refusals(b.Context(), "", 0); return err }},
		{"policies", func(int) error { s.Policies(); return nil }},
		{"readings of 1,000 units", func(i int) error {
			for _, u := range units {
				for range loadMonitors {
					s.PutReadings(u.Unit, []Reading{reading("hot", "cpu_utilization", now.Add(time.Duration(i)*time.Second), 1, 2)}, nil)
				}
			}
			return nil
		}},
		{"write a minute", func(i int) error {
			for _, u := range units {
				for k := range 6 {
					for m := range loadMonitors {
						s.PutReadings(u.Unit, []Reading{reading("hot", units[0].Readings[m].Monitor, now.Add(time.Duration(i*6+k)*time.Second), 1, 2)}, nil)
					}
				}
			}
			return s.write(true)
		}},
	} {
		b.Run(query.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				require.NoError(b, query.do(i))
				i++
			}
		})
	}
}
