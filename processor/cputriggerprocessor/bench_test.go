// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/collector/processor/xprocessor"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/collect"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
	"github.com/hotprofile/hotprofile/test/identifytest"
)

// hostOfBench returns a host with 50 containers. The first containers can be made hot.
func hostOfBench() *identifytest.Host {
	h := identifytest.NewHost()
	for i := range 50 {
		id := fmt.Sprintf("%064x", i+1)
		h.Groups[id] = cgroup.Group{ID: id, ContainerID: id, Cgroup: "/docker/" + id}
	}
	return h
}

// batchOfBench returns a batch of a busy host, with 50 resources and 5,000 events.
func batchOfBench(b *testing.B, end time.Time) pprofile.Profiles {
	var parts []part
	for i := range 50 {
		p := inContainer(fmt.Sprintf("%064x", i+1))
		p.events, p.leaves = 100, 50
		parts = append(parts, p)
	}
	return batch(b, end, parts...)
}

func gateOfBench(b *testing.B, hot int, pre time.Duration) (*cpuTrigger, time.Time) {
	cfg := createDefaultConfig()
	cfg.PreTrigger, cfg.MinAge, cfg.Budgets.MaxConcurrentUnits = pre, 0, 0
	now := epoch
	clock := func() time.Time { return now }
	p, err := newProcessorAt(processortest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop(), clock, &evenly{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, p.Shutdown(context.Background())) })
	h := hostOfBench()
	p.router.Host = h
	source := &fakeSource{cores: map[string]float64{}, errs: map[string]error{}}
	c := p.newCollector(nil, source)
	c.UserTimes = func(*units.Unit) collect.ReadTimes { return nil }
	for i := range 50 {
		id := fmt.Sprintf("%064x", i+1)
		p.units.Add(identify.Identity{Name: id, Group: h.Groups[id]}, now)
		if i < hot {
			source.cores[id] = 2
		}
	}
	for range 40 {
		now = now.Add(time.Second)
		c.Collect()
	}
	p.evaluate()
	gates := p.units.Count().Gates
	require.Equal(b, hot, gates)
	return p, now
}

// BenchmarkReadings measures Readings for 1,000 units and for all 10,000 units. The
// baseline is an evaluation of all units. The lock is held for 64 units at a time.
func BenchmarkReadings(b *testing.B) {
	p, now := gateOfBench(b, 0, 0)
	p.publishTo(hotUnits(b))
	for i := p.units.Count().Units; i < units.Max; i++ {
		name := fmt.Sprintf("/s%05d", i)
		p.units.Add(identify.Identity{Name: name, Group: cgroup.Group{ID: name, Cgroup: name}}, now)
	}
	b.Run("baseline: evaluation", func(b *testing.B) {
		for b.Loop() {
			p.units.Evaluate(now)
		}
	})
	for _, most := range []int{1000, units.Max} {
		b.Run(fmt.Sprintf("%d units", most), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				all, left := p.units.Readings(nil, most, now, p.peers.Load().Peers)
				require.Equal(b, units.Max, len(all)+left)
			}
		})
	}
}

// BenchmarkGate measures how long a batch of 5,000 events of 50 containers takes to pass
// the gate. The baseline passes the batch to the next consumer without a gate.
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
			p, now := gateOfBench(b, c.hot, 0)
			p.publishTo(hotUnits(b))
			pd := batchOfBench(b, now.Add(time.Second))
			pd.MarkReadOnly() // each round gets the same batch, and emitted profiles are copied
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, p.ConsumeProfiles(context.Background(), pd))
			}
			perEvent(b)
		})
	}
	b.Run("open for all, in place", func(b *testing.B) {
		p, now := gateOfBench(b, 50, 0)
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

// deep returns a batch as a profiler sends it. Each unit has a thousand events of a few
// hundred stacks. The stacks are thirty frames deep and share most of their frames.
func deep(t testing.TB, end time.Time, ids ...string) pprofile.Profiles {
	t.Helper()
	b := samples.NewBatch(64 << 20)
	b.Start, b.End = end.Add(-5*time.Second).UnixNano(), end.UnixNano()
	rnd := rand.New(rand.NewPCG(1, 2))
	for i, id := range ids {
		r := &samples.Resource{PID: i + 1, Attributes: []samples.Attribute{
			{Key: "container.id", Value: id},
			{Key: "process.executable.name", Value: "app"},
			{Key: "process.pid", Value: int64(i + 1)},
			{Key: "service.name", Value: "checkout"},
		}}
		m := &samples.Mapping{Start: 0x400000, Limit: 0x900000, Path: "/bin/app", BuildID: "cc01"}
		var locations []*samples.Location
		for n := range 600 {
			locations = append(locations, &samples.Location{Type: samples.FrameGo, Mapping: m, Address: 0x400100 + 16*uint64(n), Resolved: true, Lines: []samples.Line{
				{Function: fmt.Sprintf("github.com/example/app/internal/package%d.(*Type).Method%d", n%40, n), File: fmt.Sprintf("/src/app/file%d.go", n%100), Line: int64(n)},
			}})
		}
		var stacks []*samples.Stack
		for range 300 {
			st := &samples.Stack{}
			for depth := range 30 {
				// Stacks share most frames near the root and few frames near the leaf.
				st.Locations = append(st.Locations, locations[rnd.IntN(max(1, 600-20*depth))])
			}
			stacks = append(stacks, st)
		}
		for n := range 1000 {
			require.True(t, b.Add(samples.Key{
				Resource: r, Type: samples.OnCPU, Stack: stacks[rnd.IntN(len(stacks))], Period: 10_309_278,
				Thread: samples.Thread{Name: fmt.Sprintf("worker-%d", n%8)},
			}, b.Start+int64(n+1)*int64(time.Millisecond)))
		}
	}
	for pd := range otlpprofiles.NewBuilder(otlpprofiles.Options{ScopeName: "test", Rand: &evenly{}}).Build(b) {
		return pd
	}
	return pprofile.Profiles{}
}

// pipeline is the processor between the two ends of a collector. Incoming profiles are
// unmarshalled, and outgoing profiles are marshalled.
type pipeline struct {
	*cpuTrigger
	out int
}

func (p *pipeline) marshal(_ context.Context, pd pprofile.Profiles) error {
	data, err := pprofileotlp.NewExportRequestFromProfiles(pd).MarshalProto()
	p.out += len(data)
	return err
}

func (p *pipeline) unmarshal(b testing.TB, data []byte) pprofile.Profiles {
	request := pprofileotlp.NewExportRequest()
	require.NoError(b, request.UnmarshalProto(data))
	return request.Profiles()
}

// BenchmarkPipeline alternates between two pipelines. In the first pipeline, a batch passes
// directly from one end to the other. In the second pipeline, the batch also passes the gate.
// The metric of-pass-through is the throughput with the gate relative to the throughput
// without the gate, by CPU time. The reported times and allocations are the sum of both
// pipelines.
func BenchmarkPipeline(b *testing.B) {
	for _, c := range []struct {
		name string
		hot  int
		pre  time.Duration
		ids  int
	}{
		{"no gate: what noise does", -1, 0, 1},
		{"shut, no recorder", 0, 0, 1},
		{"shut, recorded", 0, 10 * time.Second, 1},
		{"open", 50, 0, 1},
		{"mixed, open for one of ten, no recorder", 1, 0, 10},
		{"mixed, open for one of ten, recorded", 1, 10 * time.Second, 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, now := gateOfBench(b, max(0, c.hot), c.pre)
			line := &pipeline{cpuTrigger: p}
			next, err := xconsumer.NewProfiles(line.marshal)
			require.NoError(b, err)
			p.router.Next = next
			gated := xconsumer.Profiles(p)
			if c.hot < 0 {
				gated = next
			}
			var ids []string
			for i := range c.ids {
				ids = append(ids, fmt.Sprintf("%064x", i+1))
			}
			data, err := recorder.Pack(deep(b, now.Add(time.Second), ids...))
			require.NoError(b, err)
			var straight, through time.Duration
			n := 0
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			pass := func() {
				start := cpuTime()
				require.NoError(b, line.marshal(context.Background(), line.unmarshal(b, data)))
				straight += cpuTime() - start
			}
			for b.Loop() {
				n++
				if n%2 == 0 { // alternates the order, so that garbage collection does not always fall on the same way
					pass()
				}
				start := cpuTime()
				require.NoError(b, gated.ConsumeProfiles(context.Background(), line.unmarshal(b, data)))
				through += cpuTime() - start
				p.forgetRecorded()
				if n%2 == 1 {
					pass()
				}
			}
			b.ReportMetric(straight.Seconds()/through.Seconds(), "of-pass-through")
			b.ReportMetric(float64(through.Microseconds())/float64(b.N), "gate-us/op")
		})
	}
}

// forgetRecorded empties the recorder, so that each round of a benchmark appends to an
// empty recorder.
func (p *cpuTrigger) forgetRecorded() { p.recorder.Sweep(p.now().Add(time.Hour)) }

// BenchmarkRecorderAppend measures the recording of a batch, which includes marshalling.
// The batch has one unit, or ten units that have to be split.
func BenchmarkRecorderAppend(b *testing.B) {
	for _, n := range []int{1, 10} {
		b.Run(fmt.Sprintf("%d units", n), func(b *testing.B) {
			p, now := gateOfBench(b, 0, 10*time.Second)
			var ids []string
			for i := range n {
				ids = append(ids, fmt.Sprintf("%064x", i+1))
			}
			pd := deep(b, now, ids...)
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, p.ConsumeProfiles(context.Background(), pd))
				p.forgetRecorded()
			}
		})
	}
}

// BenchmarkSplit copies one of ten units out of a batch.
func BenchmarkSplit(b *testing.B) {
	var ids []string
	for i := range 10 {
		ids = append(ids, fmt.Sprintf("%064x", i+1))
	}
	pd := deep(b, epoch, ids...)
	s, resource := &dictionary.Subset{}, pd.ResourceProfiles().At(4)
	of := dictionary.ProfileRef{Resource: resource, Scope: resource.ScopeProfiles().At(0), Profile: resource.ScopeProfiles().At(0).Profiles().At(0)}
	b.ReportAllocs()
	for b.Loop() {
		picked := of // Copy makes it refer to the copy
		s.Copy(pd, []*dictionary.ProfileRef{&picked})
	}
}

func TestShutGateAllocatesLittle(t *testing.T) {
	r := newRig(t, "pre_trigger: 0s")
	r.watch(containerA)
	pd := batch(t, r.now, inContainer(containerA), inService())
	pd.MarkReadOnly()
	for range 2 {
		require.NoError(t, r.send(pd))
	}
	// The race detector and the garbage collector empty pools at random. The test
	// therefore uses the minimum of many runs.
	least := math.Inf(1)
	for range 50 {
		least = min(least, testing.AllocsPerRun(1, func() { _ = r.send(pd) }))
	}
	require.LessOrEqual(t, least, 2.0, "most profiles meet a shut gate")
}

// BenchmarkTap passes 10,000 server spans with new paths through the traces
// pipeline, in batches of 500. The conditions of the component have a uri. The
// baseline is a pipeline without the component. One op is one second of a load that
// should cost at most 5 % of a core.
func BenchmarkTap(b *testing.B) {
	const perSecond, perBatch = 10_000, 500
	f := NewFactory()
	cfg, err := load(b, `policies: [{name: slow, any_of: [
  {monitor: http_error_rate, threshold: 5, uri: {regex: "^/orders"}},
  {monitor: http_response_time, threshold: 500, uri: {list: ["/cart/*"]}}]}]`)
	require.NoError(b, err)
	set := processortest.NewNopSettings(metadata.Type)
	trigger, err := f.(xprocessor.Factory).CreateProfiles(b.Context(), set, cfg, consumertest.NewNop())
	require.NoError(b, err)
	tap, err := f.CreateTraces(b.Context(), set, cfg, consumertest.NewNop())
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, tap.Shutdown(context.Background()))
		require.NoError(b, trigger.Shutdown(context.Background()))
	})
	host := identifytest.NewHost()
	var running sync.WaitGroup
	b.Cleanup(running.Wait)
	running.Go(func() { trigger.(*cpuTrigger).requests.Run(b.Context(), host) }) // b.Context ends before b.Cleanup
	var batches []ptrace.Traces
	for range perSecond / perBatch {
		batches = append(batches, serverSpans(perBatch, time.Now()))
	}
	for _, c := range []struct {
		name string
		next consumer.Traces
	}{{"pass through", consumertest.NewNop()}, {"a million paths", tap}} {
		b.Run(c.name, func(b *testing.B) {
			var took time.Duration
			for n := 0; b.Loop(); {
				for _, td := range batches {
					for _, s := range td.ResourceSpans().At(0).ScopeSpans().At(0).Spans().All() {
						s.Attributes().PutStr("url.path", fmt.Sprint("/cart/", n%1_000_000))
						s.SetEndTimestamp(pcommon.NewTimestampFromTime(time.Now()))
						n++
					}
				}
				started := time.Now()
				for _, td := range batches {
					require.NoError(b, c.next.ConsumeTraces(b.Context(), td))
				}
				took += time.Since(started)
			}
			each := float64(took) / float64(b.N) / perSecond
			b.ReportMetric(each, "ns/span")
			b.ReportMetric(100*each*perSecond/1e9, "%core")
		})
	}
}
