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
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify/identifytest"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
)

// idleSource reads the same of every unit, at no cost: what is measured is what
// comes after.
type idleSource struct{}

func (idleSource) watch(_ *unit, monitors []string) (watcher, error) {
	return &idleWatcher{monitors: len(monitors)}, nil
}
func (idleSource) started(*unit) (time.Time, error) { return epoch, nil }
func (idleSource) Close()                           {}

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

// manyUnits is a component that watches so many units, and a tick of its clock
// and its collector.
func manyUnits(tb testing.TB, n int, cfg *Config) (p *cpuTrigger, tick func()) {
	tb.Helper()
	now := epoch
	p, err := newProcessorAt(processortest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop(), func() time.Time { return now }, &evenly{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, p.Shutdown(context.Background())) })
	c := p.newCollector(nil, idleSource{})
	c.openTimes = func(*unit) *userTimes { return nil }
	for i := range n {
		name := fmt.Sprintf("/s%05d", i)
		p.units.Add(identify.Identity{Name: name, Group: cgroup.Group{ID: name, Cgroup: name}}, now)
	}
	tick = func() {
		now = now.Add(time.Second)
		c.collect()
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

// BenchmarkCollect is what a tick costs beside reading, per unit with the
// default monitors.
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

// nobody takes what is published and does nothing with it.
type nobody struct{}

func (nobody) Publish([]hotunitsextension.Unit) {}
func (nobody) Close()                           {}

func BenchmarkPublishHotUnits(b *testing.B) {
	cfg := createDefaultConfig()
	cfg.Budgets.MaxConcurrentUnits = 0
	p, _ := manyUnits(b, 10_000, cfg)
	for i := range 10 {
		_, err := p.units.Fire(identify.Identity{Name: fmt.Sprintf("/s%05d", i)}, time.Hour, epoch)
		require.NoError(b, err)
	}
	h := &hotList{units: p.units, to: nobody{}}
	b.ReportAllocs()
	for b.Loop() {
		h.publish()
	}
}

// BenchmarkTell is what match and exclude add to a resource that came before.
func BenchmarkTell(b *testing.B) {
	for _, policies := range []int{0, 1, 100} {
		b.Run(fmt.Sprintf("policies=%d", policies), func(b *testing.B) {
			cfg := createDefaultConfig()
			for i := range policies {
				policy := cfg.Policies[0]
				policy.Name = fmt.Sprint(i)
				policy.Match = map[string]string{"service.name": fmt.Sprintf("s%d", i), "cgroup": "/docker/*"}
				cfg.Policies = append(cfg.Policies, policy)
			}
			p, _ := manyUnits(b, 1, cfg)
			p.gate.host = identifytest.NewHost()
			p.units.Add(identify.Identity{Name: containerA, Group: identifytest.NewHost().Groups[containerA]}, epoch)
			u := p.units.byName[containerA]
			resource := attributes(b, map[string]any{"container.id": containerA, "service.name": "checkout", "process.executable.name": "app", "k8s.namespace.name": "shop"})
			b.ReportAllocs()
			for b.Loop() {
				p.units.selectors.tell(u, resource)
			}
		})
	}
}
