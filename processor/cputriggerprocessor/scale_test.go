// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/collect"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// idleSource reads the same usage for every unit at no cost. The benchmarks therefore
// measure only the work after reading.
type idleSource struct{}

func (idleSource) Watch(_ *units.Unit, monitors []string) (collect.Watcher, error) {
	return &idleWatcher{monitors: len(monitors)}, nil
}
func (idleSource) Started(*units.Unit) (time.Time, error) { return epoch, nil }
func (idleSource) SetLeast(map[string]float64)            {}
func (idleSource) Close()                                 {}

type idleWatcher struct {
	monitors int
	seconds  float64
}

func (w *idleWatcher) Read(now time.Time, out []monitor.Result) {
	w.seconds++
	for i := range w.monitors {
		out[i] = monitor.Result{Reading: monitor.Reading{Time: now, Num: w.seconds / 10, Den: w.seconds}}
	}
}

func (*idleWatcher) Capacity() cgroup.Capacity { return cgroup.Capacity{} }
func (*idleWatcher) From(int) string           { return "" }
func (*idleWatcher) Close()                    {}

func (w *idleWatcher) SetMonitors(monitors []string) error {
	w.monitors = len(monitors)
	return nil
}

// manyUnits returns a processor that watches n units. The function tick advances the
// clock and runs the collector.
func manyUnits(tb testing.TB, n int, cfg *Config) (p *cpuTrigger, tick func()) {
	tb.Helper()
	now := epoch
	p, err := newProcessorAt(processortest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop(), func() time.Time { return now }, &evenly{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, p.Shutdown(context.Background())) })
	c := p.newCollector(nil, idleSource{})
	c.UserTimes = func(*units.Unit) collect.ReadTimes { return nil }
	for i := range n {
		name := fmt.Sprintf("/s%05d", i)
		p.units.Add(identify.Identity{Name: name, Group: cgroup.Group{ID: name, Cgroup: name}}, now)
	}
	tick = func() {
		now = now.Add(time.Second)
		c.Collect()
	}
	for range 3 {
		tick()
	}
	return p, tick
}

func TestATickAllocatesNothing(t *testing.T) {
	_, tick := manyUnits(t, 1000, createDefaultConfig())
	perUnit := testing.AllocsPerRun(20, tick) / 1000
	require.Less(t, perUnit, 0.02, "counting allocates, once a tick and not once a unit")
}

// BenchmarkCollect measures the cost of a tick per unit, with the default monitors but
// without the cost of their readings.
func BenchmarkCollect(b *testing.B) {
	for _, units := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("units=%d", units), func(b *testing.B) {
			_, tick := manyUnits(b, units, createDefaultConfig())
			b.ReportAllocs()
			for b.Loop() {
				tick()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*units), "ns/unit")
		})
	}
}

// nobody is a Publisher that discards the published units.
type nobody struct{}

func (nobody) Publish([]hotunitsextension.Unit) {}
func (nobody) Close()                           {}

func BenchmarkPublishHotUnits(b *testing.B) {
	cfg := createDefaultConfig()
	cfg.Budgets.MaxConcurrentUnits = 0
	p, _ := manyUnits(b, 10_000, cfg)
	for i := range 10 {
		_, _, err := p.units.OpenGate(identify.Identity{Name: fmt.Sprintf("/s%05d", i)}, trigger.Alert{}, time.Hour, epoch)
		require.NoError(b, err)
	}
	h := collect.NewHotList(p.units, nobody{})
	b.ReportAllocs()
	for b.Loop() {
		h.Publish()
	}
}
