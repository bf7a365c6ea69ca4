// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

type emitterTest struct {
	*emitter
	t         *testing.T
	telemetry *componenttest.Telemetry
	refused   atomic.Uint64 // the number of events that did not fit because both buffers were full
	buffer    *buffer.Buffer
	logs      *observer.ObservedLogs
	key       samples.Key
}

func newEmitterTest(t *testing.T, next xconsumer.Profiles, change func(*emitter)) *emitterTest {
	x := &emitterTest{t: t, telemetry: componenttest.NewTelemetry()}
	t.Cleanup(func() { require.NoError(t, x.telemetry.Shutdown(context.Background())) })
	set := receivertest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = x.telemetry.NewTelemetrySettings()
	core, logs := observer.New(zap.InfoLevel)
	x.logs = logs
	builder, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	require.NoError(t, err)
	obs, err := receiverhelper.NewObsReport(receiverhelper.ObsReportSettings{ReceiverID: set.ID, ReceiverCreateSettings: set})
	require.NoError(t, err)
	x.emitter = &emitter{
		profiler: &profiler{
			cfg: &Config{ExportInterval: time.Hour}, exportTimeout: time.Minute,
			next: next, obs: obs, telemetry: builder, logger: zap.New(core), meters: new(sampler.Meters), spent: make(map[string]time.Duration),
		},
		patience: time.Minute,
		full:     make(chan struct{}, 1),
		names:    noNames{}, builder: otlpprofiles.NewBuilder(otlpprofiles.Options{}),
		counters: &sampler.Counters{TelemetryBuilder: builder},
	}
	recorded := 0
	x.parts = []sampler.Sampler{recorder(func() {
		full := int(x.refused.Load())
		x.counters.Samples(sampler.BufferFull, samples.OnCPU.Sampler, full-recorded)
		recorded = full
	})}
	x.add("samples", buffer.New(4096, buffer.SystemClock{}), nil)
	x.key = samples.Key{
		Resource: &samples.Resource{}, Type: samples.OnCPU, Period: 1,
		Stack: &samples.Stack{Locations: []*samples.Location{{Address: 1, Type: samples.FrameNative, Resolved: true}}},
	}
	if change != nil {
		change(x.emitter)
	}
	x.buffer = x.sources[0].Buffer
	x.buffer.ReadUpTo(buffer.Idle) // as if no sampler were reading
	require.NoError(t, x.Start(context.Background()))
	return x
}

// recorder is a sampler whose Record method calls the function.
// Its other methods have no effect.
type recorder func()

func (recorder) Start(context.Context) error { return nil }
func (recorder) Stop(context.Context) error  { return nil }
func (r recorder) Record(context.Context)    { r() }

// addEvents adds n events and returns the number of events that fitted.
func (x *emitterTest) addEvents(n int) (fitted int) {
	for i := range n {
		x.key.Thread.ID = int32(i % 4)
		if x.buffer.AddValue(x.key, buffer.SystemClock{}.Monotonic(), 0) {
			fitted++
		} else {
			x.refused.Add(1)
		}
	}
	return fitted
}

// counted returns the number of emitted and dropped samples by outcome.
func (x *emitterTest) counted() map[string]int64 {
	x.t.Helper()
	return counted(x.t, x.telemetry)
}

func counted(t *testing.T, tel *componenttest.Telemetry) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	m, err := tel.GetMetric("otelcol_cpu_profiler.samples")
	if err != nil {
		return out // no sample has been counted yet
	}
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		o, _ := p.Attributes.Value(attribute.Key("outcome"))
		out[o.AsString()] += p.Value
	}
	return out
}

func consumerOf(f func(context.Context, pprofile.Profiles) error) xconsumer.Profiles {
	next, err := xconsumer.NewProfiles(f, consumer.WithCapabilities(consumer.Capabilities{}))
	if err != nil {
		panic(err)
	}
	return next
}

// lateNames is a namer whose first calls of Take fail. late
// is the number of failing calls.
type lateNames struct {
	noNames
	late, takes int
}

func (n *lateNames) Take(work func()) error {
	n.takes++
	if n.takes <= n.late {
		return stuckread.ErrLate
	}
	work()
	return nil
}

func (n *lateNames) Name(_ int, s *samples.Stack) {
	s.Locations[0].Lines = []samples.Line{{Function: "main"}}
}

func (n *lateNames) Mark(s *samples.Stack) { s.Truncated = true }

func TestEmitterGoesOnWithoutFilesThatDoNotAnswer(t *testing.T) {
	for _, late := range []int{0, 1, maxTakes - 1, maxTakes, 100} {
		sink := new(consumertest.ProfilesSink)
		names := &lateNames{late: late}
		x := newEmitterTest(t, sink, func(e *emitter) { e.names = names })
		require.Equal(t, 10, x.addEvents(10))
		require.NoError(t, x.Stop(context.Background()))
		require.Equal(t, 10, sampleEvents(sink.AllProfiles()), late)
		require.Equal(t, late < maxTakes, len(x.key.Stack.Locations[0].Lines) > 0, "named, if there was time")
		require.True(t, x.key.Stack.Truncated, "marked in any case")
		require.Equal(t, min(late+1, maxTakes), names.takes)
	}
}

func TestEmitterEmitsWhatIsLeftAtShutdown(t *testing.T) {
	sink := new(consumertest.ProfilesSink)
	x := newEmitterTest(t, sink, nil)
	require.Equal(t, 10, x.addEvents(10))
	require.NoError(t, x.Stop(context.Background()))
	require.Equal(t, 10, sampleEvents(sink.AllProfiles()))
	require.Equal(t, map[string]int64{"exported": 10}, x.counted())
}

func TestEmitterEmitsAFullBufferEarly(t *testing.T) {
	sink := new(consumertest.ProfilesSink)
	x := newEmitterTest(t, sink, nil)
	full := 0
	for !x.buffer.Paused() && full < 1<<20 && len(sink.AllProfiles()) == 0 {
		full += x.addEvents(1)
	}
	require.Eventually(t, func() bool { return len(sink.AllProfiles()) > 0 }, 30*time.Second, time.Millisecond)
	require.NoError(t, x.Stop(context.Background()))
	require.Equal(t, full, sampleEvents(sink.AllProfiles()))
}

func TestEmitterDropsAndCountsRefusedSamples(t *testing.T) {
	refuse := errors.New("no")
	next := consumerOf(func(context.Context, pprofile.Profiles) error { return refuse })
	x := newEmitterTest(t, next, func(e *emitter) { e.cfg.ExportInterval = time.Millisecond })
	x.addEvents(3)
	require.Eventually(t, func() bool { return x.counted()["refused"] == 3 }, 30*time.Second, time.Millisecond)
	x.addEvents(4)
	require.Eventually(t, func() bool { return x.counted()["refused"] == 7 }, 30*time.Second, time.Millisecond)
	require.NoError(t, x.Stop(context.Background()))
	require.Equal(t, 1, x.logs.FilterMessageSnippet("refused").Len(), "said once, not at each batch")
}

func TestEmitterContextHasTheExportTimeout(t *testing.T) {
	next := consumerOf(func(ctx context.Context, _ pprofile.Profiles) error {
		<-ctx.Done()
		return ctx.Err()
	})
	x := newEmitterTest(t, next, func(e *emitter) { e.cfg.ExportInterval, e.exportTimeout = time.Millisecond, 20*time.Millisecond })
	x.addEvents(5)
	require.Eventually(t, func() bool { return x.counted()["refused"] == 5 }, 30*time.Second, time.Millisecond)
	require.NoError(t, x.Stop(context.Background()))
}

func TestEmitterConsumerThatBlocksFillsBothBuffersAndNoMore(t *testing.T) {
	called, release := make(chan struct{}, 100), make(chan struct{})
	next := consumerOf(func(context.Context, pprofile.Profiles) error {
		called <- struct{}{}
		<-release // the consumer ignores its context
		return nil
	})
	// At the end, all remaining samples must be emitted within the
	// timeout, even on a busy machine.
	x := newEmitterTest(t, next, func(e *emitter) { e.cfg.ExportInterval, e.exportTimeout = time.Millisecond, time.Second })
	in := x.addEvents(1)
	<-called
	for !x.buffer.Paused() {
		in += x.addEvents(1)
		require.Less(t, in, 10_000)
	}
	require.LessOrEqual(t, x.buffer.Usage(), 4096)
	in += x.addEvents(7)
	require.EqualValues(t, 8, x.refused.Load(), "the one that paused and seven more")
	require.True(t, x.buffer.Paused())
	require.Eventually(t, func() bool { return x.counted()["buffer_full"] == 8 }, 30*time.Second, time.Millisecond,
		"loss is seen while the call lasts")

	close(release)
	require.Eventually(t, func() bool { return !x.buffer.Paused() }, 30*time.Second, time.Millisecond)
	in += x.addEvents(2)
	require.NoError(t, x.Stop(context.Background()))
	require.Equal(t, map[string]int64{"exported": int64(in), "buffer_full": 8}, x.counted(),
		"what came in is the sum of what left")
}

func TestEmitterShutdownCancelsACallThatDoesNotEnd(t *testing.T) {
	called := make(chan struct{})
	var x *emitterTest
	next := consumerOf(func(ctx context.Context, _ pprofile.Profiles) error {
		close(called) // a second call would panic, because no time is left for it
		<-x.ctx.Done()
		return ctx.Err()
	})
	x = newEmitterTest(t, next, func(e *emitter) { e.exportTimeout = 50 * time.Millisecond })
	in := 0
	for !x.buffer.Paused() {
		in += x.addEvents(1)
	}
	<-called
	require.NoError(t, x.Stop(context.Background()))
	got := x.counted()
	require.EqualValues(t, in, got["refused"]+got["shutdown"])
	require.Positive(t, got["refused"])
	require.Positive(t, got["shutdown"])
}

func TestEmitterShutdownDoesNotOutliveItsContext(t *testing.T) {
	called, release := make(chan struct{}), make(chan struct{})
	next := consumerOf(func(context.Context, pprofile.Profiles) error {
		close(called)
		<-release
		return nil
	})
	x := newEmitterTest(t, next, func(e *emitter) { e.cfg.ExportInterval = time.Millisecond })
	x.addEvents(1)
	<-called
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, x.Stop(ctx), context.Canceled)
	close(release)
	<-x.done
}

func TestEmitterStopWithoutADeadlineLeavesBehindAComponentThatDoesNotReturn(t *testing.T) {
	called, release := make(chan struct{}), make(chan struct{})
	next := consumerOf(func(context.Context, pprofile.Profiles) error {
		close(called)
		<-release // the consumer ignores its context
		return nil
	})
	x := newEmitterTest(t, next, func(e *emitter) {
		e.cfg.ExportInterval, e.exportTimeout, e.patience = time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	})
	x.addEvents(1)
	<-called
	require.ErrorContains(t, x.Stop(context.Background()), "left behind")
	close(release)
	<-x.done
}

func TestEmitterDropsTheRestOfABatchThatExpired(t *testing.T) {
	calls := 0
	next := consumerOf(func(ctx context.Context, _ pprofile.Profiles) error {
		calls++
		<-ctx.Done() // the consumer is late but returns no error
		return nil
	})
	x := newEmitterTest(t, next, func(e *emitter) {
		e.exportTimeout = time.Millisecond
		e.sources = nil
		e.add("samples", buffer.New(64<<20, buffer.SystemClock{}), nil)
	})
	const samples = 600_000 // more samples than fit into one request
	require.Equal(t, samples, x.addEvents(samples))
	require.NoError(t, x.Stop(context.Background()))
	require.Equal(t, 1, calls)
	got := x.counted()
	require.Positive(t, got["exported"])
	require.EqualValues(t, samples, got["exported"]+got["refused"]+got["shutdown"])
	require.Positive(t, got["refused"])
	require.Equal(t, 1, x.logs.FilterMessageSnippet("refused").Len())
}

func TestEmitterCountsASampleWithoutAStack(t *testing.T) {
	sink := new(consumertest.ProfilesSink)
	x := newEmitterTest(t, sink, nil)
	x.key.Stack = &samples.Stack{}
	x.addEvents(2)
	require.NoError(t, x.Stop(context.Background()))
	require.Empty(t, sink.AllProfiles())
	require.Equal(t, map[string]int64{"unreadable": 2}, x.counted())
}

// sampleEvents counts events in the same way as the metrics.
func sampleEvents(all []pprofile.Profiles) (n int) {
	for _, ps := range all {
		for _, rp := range ps.ResourceProfiles().All() {
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					for _, s := range p.Samples().All() {
						n += s.TimestampsUnixNano().Len()
					}
				}
			}
		}
	}
	return n
}
