// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/allocs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/dotnet"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/offcpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/oncpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// counters moves what samplers and the symbolizer have counted into the
// collector's own telemetry, now and then and once at the end. What one has seen
// belongs to one goroutine at a time, the counting one; left, stacks and took are
// for any.
type counters struct {
	telemetry *metadata.TelemetryBuilder
	// Each is nil where what it counts is not configured.
	spent   func() time.Duration // the CPU time that samples of running threads cost
	sampler func() oncpu.Stats
	symbols func() symbolizer.Counters
	offCPU  func() offcpu.Stats
	allocs  func() allocs.Stats
	dotnet  func() dotnet.Stats
	copies  func() unwind.Stats

	seenSpent   time.Duration
	seenOffCPU  offcpu.Stats
	seenAllocs  allocs.Stats
	seenSampler oncpu.Stats
	seenSymbols symbolizer.Counters
	seenDotnet  dotnet.Stats
	seenUnwind  unwind.Stats
}

// fate is what became of a sample: the values of the attribute outcome.
type fate string

const (
	exported   fate = "exported"
	refused    fate = "refused"
	bufferFull fate = "buffer_full"
	unreadable fate = "unreadable"
	rateLimit  fate = "rate_limited"
	lostToStop fate = "shutdown"
	leftOut    fate = "left_out"
)

func bySampler(s string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("sampler", s)))
}

func inBuffer(b string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("buffer", b)))
}

func direction(d string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("direction", d)))
}

func outcome(o string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", o)))
}

// left counts a sampler's samples that left, one way or another; none where they
// are counted as others are.
func (c *counters) left(o fate, sampler string, n int) {
	if n > 0 && sampler != "" {
		c.telemetry.CPUProfilerSamples.Add(context.Background(), int64(n), metric.WithAttributeSet(attribute.NewSet(
			attribute.String("outcome", string(o)),
			attribute.String("sampler", sampler),
		)))
	}
}

func (c *counters) stacks(whole, truncated int) {
	ctx := context.Background()
	c.telemetry.CPUProfilerStacks.Add(ctx, int64(whole), outcome("whole"))
	c.telemetry.CPUProfilerStacks.Add(ctx, int64(truncated), outcome("truncated"))
}

func (c *counters) took(ctx context.Context, d time.Duration) {
	c.telemetry.CPUProfilerExportDuration.Record(ctx, d.Seconds())
}

// record adds what has been counted elsewhere since the last time.
func (c *counters) record(ctx context.Context) {
	if c.spent != nil {
		spent := c.spent()
		c.telemetry.CPUProfilerCPUTime.Add(ctx, (spent - c.seenSpent).Seconds())
		c.seenSpent = spent
	}
	if c.sampler != nil {
		c.recordSampler(ctx)
	}
	if c.offCPU != nil {
		c.recordOffCPU(ctx)
	}
	if c.allocs != nil {
		c.recordAllocs(ctx)
	}
	if c.symbols != nil {
		c.recordSymbols(ctx)
	}
	if c.copies != nil {
		c.recordUnwinding(ctx)
	}
	if c.dotnet != nil {
		c.recordDotnet(ctx)
	}
}

func (c *counters) recordSampler(ctx context.Context) {
	s := c.sampler()
	c.left(bufferFull, samples.OnCPU.Sampler, int(s.BufferFull-c.seenSampler.BufferFull))
	c.left(unreadable, samples.OnCPU.Sampler, int(s.Unreadable-c.seenSampler.Unreadable))
	c.telemetry.CPUProfilerSamplesLost.Add(ctx, int64(s.Lost-c.seenSampler.Lost))
	c.telemetry.CPUProfilerFrequencyChanges.Add(ctx, int64(s.Lowered-c.seenSampler.Lowered), direction("lowered"))
	c.telemetry.CPUProfilerFrequencyChanges.Add(ctx, int64(s.Raised-c.seenSampler.Raised), direction("raised"))
	c.telemetry.CPUProfilerPeriodsSkipped.Add(ctx, int64(s.PeriodsSkipped-c.seenSampler.PeriodsSkipped))
	c.recordTable(ctx, &s.Table, &c.seenSampler.Table)
	c.seenSampler = s
}

func (c *counters) recordTable(ctx context.Context, t, seen *processes.Stats) {
	c.hit(ctx, "mappings", t.MappingsLeftOut-seen.MappingsLeftOut)
	c.hit(ctx, "processes", t.Evicted-seen.Evicted)
	c.hit(ctx, "program_starts", t.StartsLeftOut-seen.StartsLeftOut)
	c.hit(ctx, "stacks", t.StackResets-seen.StackResets)
	c.hit(ctx, "thread_names", t.ThreadNameResets-seen.ThreadNameResets)
}

func (c *counters) recordOffCPU(ctx context.Context) {
	s, seen := c.offCPU(), &c.seenOffCPU
	sampler := samples.OffCPU.Sampler
	c.left(bufferFull, sampler, int(s.BufferFull-seen.BufferFull))
	c.left(unreadable, sampler, int(s.Unreadable-seen.Unreadable))
	c.left(rateLimit, sampler, int(s.RateLimited-seen.RateLimited))
	c.telemetry.CPUProfilerSamplesLost.Add(ctx, int64(s.Lost-seen.Lost))
	for _, h := range [...]struct {
		reason string
		n      uint64
	}{
		{"forgotten", s.Forgotten - seen.Forgotten},
		{"left_out", s.LeftOut - seen.LeftOut},
		{"short", s.Short - seen.Short},
		{"under_way", s.UnderWay - seen.UnderWay},
	} {
		if h.n > 0 {
			c.telemetry.CPUProfilerOffCPUHidden.Add(ctx, int64(h.n), metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", h.reason))))
		}
	}
	c.telemetry.CPUProfilerOffCPUUnshared.Add(ctx, (s.Unshared - seen.Unshared).Seconds())
	c.telemetry.CPUProfilerOffCPUPaused.Add(ctx, (s.PausedFull - seen.PausedFull).Seconds(), metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", string(bufferFull)))))
	c.telemetry.CPUProfilerOffCPUPaused.Add(ctx, (s.PausedRate - seen.PausedRate).Seconds(), metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", string(rateLimit)))))
	c.recordTable(ctx, &s.Table, &seen.Table)
	c.seenOffCPU = s
}

func (c *counters) recordAllocs(ctx context.Context) {
	s, seen := c.allocs(), &c.seenAllocs
	sampler := samples.AllocSpace.Sampler
	c.left(bufferFull, sampler, int(s.BufferFull-seen.BufferFull))
	c.left(unreadable, sampler, int(s.Unreadable-seen.Unreadable))
	c.left(rateLimit, sampler, int(s.Limited-seen.Limited))
	c.telemetry.CPUProfilerSamplesLost.Add(ctx, int64(s.Lost-seen.Lost))
	c.recordTable(ctx, &s.Table, &seen.Table)
	c.seenAllocs = s
}

func (c *counters) recordSymbols(ctx context.Context) {
	y := c.symbols()
	c.hit(ctx, "files", y.Evictions-c.seenSymbols.Evictions)
	c.hit(ctx, "file_requests", y.Dropped-c.seenSymbols.Dropped)
	for _, o := range symbolizer.Outcomes() {
		if n := y.Locations[o] - c.seenSymbols.Locations[o]; n > 0 {
			c.telemetry.CPUProfilerSymbols.Add(ctx, int64(n), outcome(o.String()))
		}
	}
	c.seenSymbols = y
}

func (c *counters) recordDotnet(ctx context.Context) {
	s, seen := c.dotnet(), &c.seenDotnet
	for _, k := range [...]struct {
		sampler   string
		now, seen *dotnet.Events
	}{
		{samples.DotnetThreads.Sampler, &s.Threads, &seen.Threads},
		{samples.DotnetAllocSpace.Sampler, &s.Allocations, &seen.Allocations},
		{samples.DotnetSelected.Sampler, &s.Selected, &seen.Selected},
	} {
		c.left(bufferFull, k.sampler, int(k.now.BufferFull-k.seen.BufferFull))
		c.left(unreadable, k.sampler, int(k.now.Unreadable-k.seen.Unreadable))
		c.left(leftOut, k.sampler, int(k.now.LeftOut-k.seen.LeftOut))
	}
	c.hit(ctx, "dotnet_attributes", s.Attributes-seen.Attributes)
	c.hit(ctx, "dotnet_names", s.Names-seen.Names)
	c.hit(ctx, "dotnet_resources", s.Resources-seen.Resources)
	c.hit(ctx, "dotnet_stacks", s.Stacks-seen.Stacks)
	c.seenDotnet = s
}

// hit counts how often a limit was hit.
func (c *counters) hit(ctx context.Context, limit string, n uint64) {
	if n > 0 {
		c.telemetry.CPUProfilerLimitsHit.Add(ctx, int64(n), metric.WithAttributeSet(attribute.NewSet(attribute.String("limit", limit))))
	}
}
