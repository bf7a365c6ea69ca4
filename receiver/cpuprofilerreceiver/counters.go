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
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/oncpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
)

// counters moves what samplers and the symbolizer have counted into the
// collector's own telemetry, now and then and once at the end. What one has seen
// belongs to one goroutine at a time, the counting one; left, stacks and took are
// for any.
type counters struct {
	telemetry *metadata.TelemetryBuilder
	sampler   func() oncpu.Stats
	symbols   func() symbolizer.Counters

	seenSampler oncpu.Stats
	seenSymbols symbolizer.Counters
}

// fate is what became of a sample: the values of the attribute outcome.
type fate string

const (
	exported   fate = "exported"
	refused    fate = "refused"
	bufferFull fate = "buffer_full"
	unreadable fate = "unreadable"
	lostToStop fate = "shutdown"
	leftOut    fate = "left_out"
)

func outcome(o string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", o)))
}

// left counts a sampler's samples that left, one way or another.
func (c *counters) left(o fate, sampler string, n int) {
	if n > 0 {
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
	s := c.sampler()
	c.left(bufferFull, samples.OnCPU.Sampler, int(s.BufferFull-c.seenSampler.BufferFull))
	c.left(unreadable, samples.OnCPU.Sampler, int(s.Unreadable-c.seenSampler.Unreadable))
	c.telemetry.CPUProfilerSamplesLost.Add(ctx, int64(s.Lost-c.seenSampler.Lost))
	c.telemetry.CPUProfilerPeriodsSkipped.Add(ctx, int64(s.PeriodsSkipped-c.seenSampler.PeriodsSkipped))
	y := c.symbols()
	t, seen := &s.Table, &c.seenSampler.Table
	for _, l := range [...]struct {
		limit string
		n     uint64
	}{
		{"files", y.Evictions - c.seenSymbols.Evictions},
		{"file_requests", y.Dropped - c.seenSymbols.Dropped},
		{"mappings", t.MappingsLeftOut - seen.MappingsLeftOut},
		{"processes", t.Evicted - seen.Evicted},
		{"program_starts", t.StartsLeftOut - seen.StartsLeftOut},
		{"stacks", t.StackResets - seen.StackResets},
		{"thread_names", t.ThreadNameResets - seen.ThreadNameResets},
	} {
		if l.n > 0 {
			c.telemetry.CPUProfilerLimitsHit.Add(ctx, int64(l.n), metric.WithAttributeSet(attribute.NewSet(
				attribute.String("limit", l.limit))))
		}
	}
	c.seenSampler = s
	for _, o := range symbolizer.Outcomes() {
		if n := y.Locations[o] - c.seenSymbols.Locations[o]; n > 0 {
			c.telemetry.CPUProfilerSymbols.Add(ctx, int64(n), outcome(o.String()))
		}
	}
	c.seenSymbols = y
}
