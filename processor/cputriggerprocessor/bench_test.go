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
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
)

// hostOfBench has containers 0 to 49, of which the first ones are hot.
func hostOfBench() *fakeHost {
	h := theHost()
	for i := range 50 {
		id := fmt.Sprintf("%064x", i+1)
		h.units[id] = cgroup.Unit{ID: id, ContainerID: id, Cgroup: "/docker/" + id}
	}
	return h
}

// batchOfBench is what a busy host sends at once: 50 resources, 5,000 events.
func batchOfBench(b *testing.B, end time.Time) pprofile.Profiles {
	var parts []part
	for i := range 50 {
		p := inContainer(fmt.Sprintf("%064x", i+1))
		p.events, p.leaves = 100, 50
		parts = append(parts, p)
	}
	return batch(b, end, parts...)
}

func gateOfBench(b *testing.B, hot int) (*cpuTrigger, time.Time) {
	now := epoch
	clock := func() time.Time { return now }
	p, err := newProcessorAt(processortest.NewNopSettings(metadata.Type), createDefaultConfig(), consumertest.NewNop(), clock, &evenly{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, p.Shutdown(context.Background())) })
	h := hostOfBench()
	p.gate.host = h
	source := &fakeSource{cores: map[string]float64{}, errs: map[string]error{}}
	c := p.newCollector(nil, source)
	c.openTimes = func(*unit) *userTimes { return nil }
	for i := range 50 {
		id := fmt.Sprintf("%064x", i+1)
		p.units.Add(target{name: id, unit: h.units[id]}, now)
		if i < hot {
			source.cores[id] = 2
		}
	}
	for range 40 {
		now = now.Add(time.Second)
		c.collect()
	}
	p.eval.evaluate()
	_, gates := p.units.Count()
	require.Equal(b, hot, gates)
	return p, now
}

// BenchmarkGate measures a batch of 5,000 events of 50 containers on its way
// through the gate, beside handing it to the next consumer as it is.
func BenchmarkGate(b *testing.B) {
	perEvent := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/5000, "ns/event")
	}
	b.Run("baseline: pass-through", func(b *testing.B) {
		pd := batchOfBench(b, epoch)
		next := consumertest.NewNop()
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, next.ConsumeProfiles(context.Background(), pd))
		}
		perEvent(b)
	})
	b.Run("baseline: pass-through with a copy", func(b *testing.B) {
		pd := batchOfBench(b, epoch)
		next := consumertest.NewNop()
		b.ReportAllocs()
		for b.Loop() {
			c := pprofile.NewProfiles()
			pd.CopyTo(c)
			require.NoError(b, next.ConsumeProfiles(context.Background(), c))
		}
		perEvent(b)
	})
	for _, c := range []struct {
		name string
		hot  int
	}{{"shut", 0}, {"open for one of 50", 1}, {"open for all", 50}} {
		b.Run(c.name, func(b *testing.B) {
			p, now := gateOfBench(b, c.hot)
			pd := batchOfBench(b, now.Add(time.Second))
			pd.MarkReadOnly() // so that each round sees the same; what leaves is copied
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, p.ConsumeProfiles(context.Background(), pd))
			}
			perEvent(b)
		})
	}
	b.Run("open for all, in place", func(b *testing.B) {
		p, now := gateOfBench(b, 50)
		src := batchOfBench(b, now.Add(time.Second))
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			pd := pprofile.NewProfiles()
			src.CopyTo(pd)
			b.StartTimer()
			require.NoError(b, p.ConsumeProfiles(context.Background(), pd))
		}
		perEvent(b)
	})
}

func TestShutGateAllocatesLittle(t *testing.T) {
	r := newRig(t, "pre_trigger: 0s")
	r.watch(containerA)
	pd := batch(t, r.now, inContainer(containerA), inService())
	pd.MarkReadOnly()
	for range 2 {
		require.NoError(t, r.send(pd))
	}
	n := testing.AllocsPerRun(100, func() { _ = r.send(pd) })
	require.LessOrEqual(t, n, 2.0, "a shut gate is what most profiles meet")
}
