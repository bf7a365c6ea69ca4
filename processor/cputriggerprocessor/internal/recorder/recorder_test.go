// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"

	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestSumsInAnyOrder takes random steps. After each step, it compares the recorder's
// counters with the records that the recorder holds.
func TestSumsInAnyOrder(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
		release, id := 50.0, 0
		conditions := func(threshold float64) []trigger.Condition {
			return []trigger.Condition{{Monitor: "cpu", Test: window.Test{Threshold: threshold, AverageOver: 5 * time.Second, ReleaseBelow: &release}}}
		}
		engine, err := trigger.New(trigger.Config{
			CollectionInterval: time.Second,
			Monitors:           []trigger.Monitor{{Name: "cpu", Kind: window.Kind{Scale: 100}}},
			Policies: []trigger.Policy{
				{Name: "real", Duration: 10 * time.Second, Conditions: conditions(100)},
				{Name: "dry", DryRun: true, Duration: 7 * time.Second, Conditions: conditions(70)},
			},
			NewID: func() string { id++; return fmt.Sprint(id) },
		})
		require.NoError(t, err)
		metrics, err := counters.New(componenttest.NewNopTelemetrySettings())
		require.NoError(t, err)
		r := New(Config{Lock: new(sync.Mutex), PreTrigger: 10 * time.Second, PerUnit: 8 << 10, Memory: 32 << 10}, metrics, now)
		cores, used := make([]float64, 8), make([]float64, 8)
		units := make([]*trigger.Decision, 8)
		for i := range units {
			units[i] = engine.Decision(fmt.Sprint(i))
		}
		var sent, refused bool
		var counts counters.Samples
		for range 500 {
			i := rnd.IntN(len(units))
			switch rnd.IntN(9) {
			case 0:
				cores[i] = 2 * rnd.Float64()
			case 1:
				now = now.Add(time.Second)
				for i, u := range units {
					used[i] += cores[i]
					u.Observe("cpu", trigger.Reading{Time: now, Num: used[i], Den: float64(now.Unix())})
				}
				engine.Evaluate(now)
				r.Sweep(now)
			case 2:
				if rnd.IntN(8) == 0 {
					engine.Remove(units[i].Name(), now)
					units[i] = engine.Decision(units[i].Name())
				}
			case 3, 4:
				if b, ok := r.Next(); ok {
					accepted := rnd.IntN(3) > 0
					r.Done(b, accepted, &counts)
					sent, refused = sent || accepted, refused || !accepted
				}
			case 5:
				r.Retry()
			default:
				start := now.Add(-time.Duration(rnd.IntN(8000)) * time.Millisecond)
				r.Put([]Capture{{Unit: units[i], Start: start, End: start.Add(time.Second), Samples: 1 + rnd.IntN(9), Data: make([]byte, rnd.IntN(4<<10))}}, &counts)
			}
			require.NoError(t, r.check(), "seed %d", seed)
		}
		require.True(t, sent && refused && counts[counters.SampleEvicted] > 0, "seed %d", seed)
	}
}

// check returns an error if the recorder's counters differ from the records that the
// recorder holds.
func (r *Recorder) check() error {
	samples, size, queued := 0, 0, 0
	for u, t := range r.units {
		own, outgoing := unitRecordsSize+cap(t.records)*recordSize, 0
		for i, rec := range t.records {
			samples += int(rec.samples)
			own += cap(rec.data)
			if rec.state != waiting {
				outgoing++
			}
			if i > 0 && t.records[i-1].start > rec.start {
				return fmt.Errorf("unit %s: record %d began before the one in front", u.Name(), i)
			}
		}
		if t.unit != u || len(t.records) == 0 || t.size != own || t.size > r.perUnit || t.due != outgoing || r.cold.Items[t.index-1] != t {
			return fmt.Errorf("unit %s: %d records of %d bytes, %d due: %+v", u.Name(), len(t.records), own, outgoing, t)
		}
		size += own
		if t.queued {
			queued++
		}
	}
	if heldSamples, heldSize := r.Held(); heldSamples != int64(samples) || heldSize != int64(size) || size > r.cfg.Memory || len(r.due) != queued || len(r.cold.Items) != len(r.units) {
		return fmt.Errorf("%d samples in %d bytes, %d of %d units queued: holds %d in %d (at most %d), %d queued, %d in the heap",
			samples, size, queued, len(r.units), heldSamples, heldSize, r.cfg.Memory, len(r.due), len(r.cold.Items))
	}
	return nil
}

func TestOneHugeRecordIsEvicted(t *testing.T) {
	r := newRig(t, 1, 64<<10)
	r.put(r.units[0], 64<<10)
	require.Equal(t, counters.Samples{counters.SampleEvicted: events}, r.counts)
	samples, size := r.Held()
	require.Zero(t, samples)
	require.Zero(t, size)
	r.put(r.units[0], 1000)
	samples, _ = r.Held()
	require.EqualValues(t, events, samples, "the next one fits")
}

func TestColdestUnitGivesWayFirstTiesByName(t *testing.T) {
	r := newRig(t, 4, 64<<10)
	for i, cores := range []float64{0.9, 0.1, 0.1, 0.5} {
		r.cores[r.units[i]] = cores
	}
	r.run()
	r.run()
	held := func() (out []string) {
		for _, u := range r.units {
			if _, ok := r.Recorder.units[u]; ok {
				out = append(out, u.Name())
			}
		}
		return out
	}
	for _, u := range r.units {
		r.put(u, 10<<10)
	}
	require.Equal(t, []string{"0000", "0001", "0002", "0003"}, held(), "they fit")
	var left [][]string
	for before := held(); len(before) > 1; before = held() {
		r.now = r.now.Add(time.Millisecond)
		r.put(r.units[0], 10<<10)
		if after := held(); len(after) != len(before) {
			left = append(left, after)
		}
	}
	require.Equal(t, [][]string{{"0000", "0002", "0003"}, {"0000", "0003"}, {"0000"}}, left)
}

// TestMemoryHeldIsMemoryMeasured compares the memory that the recorder counts with
// the size of the process's heap.
func TestMemoryHeldIsMemoryMeasured(t *testing.T) {
	for name, c := range map[string]struct{ units, batches, size int }{
		"many small units": {2000, 3, 300},
		"few large ones":   {20, 3, 100_000},
		"many records":     {10, 200, 2500},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.units, 8<<30)
			before := hosttest.Heap()
			for i := range c.batches {
				r.now = r.now.Add(time.Millisecond)
				for _, u := range r.units {
					r.put(u, c.size-i*7%100) // the records have different sizes
				}
			}
			after := hosttest.Heap()
			samples, size := r.Held()
			require.EqualValues(t, c.units*c.batches*events, samples)
			require.InEpsilon(t, after-before, size, 0.04, "held %d, measured %d", size, after-before)
			runtime.KeepAlive(r)
		})
	}
}
