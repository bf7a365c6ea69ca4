// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/languages"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Counters adds the common counters of all samplers to the collector's own telemetry. It is
// safe for concurrent use.
type Counters struct{ *metadata.TelemetryBuilder }

// Outcome is the outcome of a sample, and a value of the attribute outcome.
type Outcome string

// These are the outcomes of samples.
const (
	Exported    Outcome = "exported"
	Refused     Outcome = "refused"
	BufferFull  Outcome = "buffer_full"
	Unreadable  Outcome = "unreadable"
	RateLimited Outcome = "rate_limited"
	Shutdown    Outcome = "shutdown"
	LeftOut     Outcome = "left_out"
)

// Operators search the logs for these messages, so the messages must not change.
const (
	MsgThreadsFull     = "Skipping a thread sample period, buffers are full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **"
	MsgAllocationsFull = "Discarding captured allocation sample. Allocation buffer is full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **"
)

// With returns an option that adds the attribute key=value to a measurement.
func With(key, value string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))
}

// Add adds n to a counter with the attribute key=value. If n is 0, Add does not touch the
// counter.
func Add(ctx context.Context, to metric.Int64Counter, n uint64, key, value string) {
	if n > 0 {
		to.Add(ctx, int64(n), With(key, value))
	}
}

// Samples counts n samples of a sampler by their outcome. It ignores types without a
// sampler, because their samples are counted with another type.
func (c *Counters) Samples(o Outcome, sampler string, n int) {
	if n > 0 && sampler != "" {
		c.CPUProfilerSamples.Add(context.Background(), int64(n), metric.WithAttributeSet(attribute.NewSet(
			attribute.String("outcome", string(o)),
			attribute.String("sampler", sampler),
		)))
	}
}

// LimitHit adds n to the number of times that a limit was reached.
func (c *Counters) LimitHit(ctx context.Context, limit string, n uint64) {
	Add(ctx, c.CPUProfilerLimitsHit, n, "limit", limit)
}

// Memory adds n bytes to the memory of a part of the collector. n may be negative.
func (c *Counters) Memory(ctx context.Context, what string, n int64) {
	if n != 0 {
		c.CPUProfilerMemory.Add(ctx, n, With("what", what))
	}
}

// Count adds the difference between now and seen to the telemetry, for the sampler of this
// type.
func (c *Counters) Count(ctx context.Context, of *samples.Type, now, seen *perftargets.Counts) {
	c.Samples(BufferFull, of.Sampler, int(now.BufferFull-seen.BufferFull))
	c.Samples(Unreadable, of.Sampler, int(now.Unreadable-seen.Unreadable))
	c.Samples(RateLimited, of.Sampler, int(now.RateLimited-seen.RateLimited))
	c.CPUProfilerSamplesLost.Add(ctx, int64(now.Lost-seen.Lost))
	Add(ctx, c.CPUProfilerRecordsLost, now.LostRecords-seen.LostRecords, "sampler", of.Sampler)
	c.table(ctx, &now.Table, &seen.Table)
}

func (c *Counters) table(ctx context.Context, now, seen *processes.Stats) {
	c.Memory(ctx, "processes", int64(now.Bytes-seen.Bytes))
	c.Memory(ctx, "stacks", int64(now.StackBytes-seen.StackBytes))
	c.LimitHit(ctx, "mappings", now.MappingsLeftOut-seen.MappingsLeftOut)
	c.LimitHit(ctx, "processes", now.Evicted-seen.Evicted)
	c.LimitHit(ctx, "program_starts", now.StartsLeftOut-seen.StartsLeftOut)
	c.LimitHit(ctx, "stacks", now.StackResets-seen.StackResets)
	c.LimitHit(ctx, "thread_names", now.ThreadNameResets-seen.ThreadNameResets)
}

// Walks adds the walks since the last call to the telemetry.
func (c *Counters) Walks(ctx context.Context, w *languages.Walker) {
	for o := range languages.Outcomes {
		Add(ctx, c.CPUProfilerInterpretedStacks, w.Count(o), "outcome", o.String())
	}
	proven, unproven := w.Links()
	Add(ctx, c.CPUProfilerThreadContexts, proven, "outcome", "proven")
	Add(ctx, c.CPUProfilerThreadContexts, unproven, "outcome", "unproven")
}

// ObserveTargets makes the targets gauge report the number of targets of a sampler.
func (c *Counters) ObserveTargets(sampler string, targets func() int) error {
	with := With("sampler", sampler)
	return c.RegisterCPUProfilerTargetsCallback(func(_ context.Context, o metric.Int64Observer) error {
		o.Observe(int64(targets()), with)
		return nil
	})
}
