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
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/oncpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
)

// noNames leaves stacks as they are.
type noNames struct{}

func (noNames) Name(int, *samples.Stack) {}

// exporterTest is an exporter without samplers before it.
type exporterTest struct {
	*exporter
	t         *testing.T
	telemetry *componenttest.Telemetry
	full      atomic.Uint64 // what found both buffers full
	logs      *observer.ObservedLogs
	key       samples.Key
}

func newExporterTest(t *testing.T, next xconsumer.Profiles, change func(*exporter)) *exporterTest {
	x := &exporterTest{t: t, telemetry: componenttest.NewTelemetry()}
	t.Cleanup(func() { require.NoError(t, x.telemetry.Shutdown(context.Background())) })
	set := receivertest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = x.telemetry.NewTelemetrySettings()
	core, logs := observer.New(zap.InfoLevel)
	x.logs = logs
	builder, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	require.NoError(t, err)
	obs, err := receiverhelper.NewObsReport(receiverhelper.ObsReportSettings{ReceiverID: set.ID, ReceiverCreateSettings: set})
	require.NoError(t, err)
	x.exporter = &exporter{
		interval: time.Hour, timeout: time.Minute, patience: time.Minute,
		buffer: newBuffer(4096, systemClock{}, func() {}),
		namer:  noNames{}, builder: otlpprofiles.NewBuilder(otlpprofiles.Options{}),
		next: next, obs: obs, logger: zap.New(core),
		counters: &counters{
			telemetry: builder,
			sampler:   func() oncpu.Stats { return oncpu.Stats{BufferFull: x.full.Load()} },
			symbols:   func() symbolizer.Counters { return symbolizer.Counters{} },
		},
	}
	x.key = samples.Key{
		Resource: &samples.Resource{}, Type: samples.OnCPU, Period: 1,
		Stack: &samples.Stack{Locations: []*samples.Location{{Address: 1, Type: samples.FrameNative, Resolved: true}}},
	}
	if change != nil {
		change(x.exporter)
	}
	x.start()
	return x
}

// add adds n events and returns how many fitted.
func (x *exporterTest) add(n int) (fitted int) {
	for i := range n {
		x.key.Thread.ID = int32(i % 4)
		if x.buffer.Add(x.key, systemClock{}.Monotonic()) {
			fitted++
		} else {
			x.full.Add(1)
		}
	}
	return fitted
}

// counted is the samples that left, by outcome.
func (x *exporterTest) counted() map[string]int64 {
	x.t.Helper()
	return counted(x.t, x.telemetry)
}

func counted(t *testing.T, tel *componenttest.Telemetry) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	m, err := tel.GetMetric("otelcol_cpu_profiler.samples")
	if err != nil {
		return out // nothing has left yet
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

func TestExporterHandsOverWhatIsLeftAtShutdown(t *testing.T) {
	sink := new(consumertest.ProfilesSink)
	x := newExporterTest(t, sink, nil)
	require.Equal(t, 10, x.add(10))
	require.NoError(t, x.shutdown(context.Background()))
	require.Equal(t, 10, sampleEvents(sink.AllProfiles()))
	require.Equal(t, map[string]int64{"exported": 10}, x.counted())
}

func TestExporterTakesAFullBufferBeforeItsTime(t *testing.T) {
	sink := new(consumertest.ProfilesSink)
	x := newExporterTest(t, sink, nil)
	full := 0
	for !x.buffer.Paused() && full < 1<<20 && len(sink.AllProfiles()) == 0 {
		full += x.add(1)
	}
	require.Eventually(t, func() bool { return len(sink.AllProfiles()) > 0 }, 30*time.Second, time.Millisecond)
	require.NoError(t, x.shutdown(context.Background()))
	require.Equal(t, full, sampleEvents(sink.AllProfiles()))
}

func TestExporterDropsAndCountsWhatIsRefused(t *testing.T) {
	refuse := errors.New("no")
	next := consumerOf(func(context.Context, pprofile.Profiles) error { return refuse })
	x := newExporterTest(t, next, func(e *exporter) { e.interval = time.Millisecond })
	x.add(3)
	require.Eventually(t, func() bool { return x.counted()["refused"] == 3 }, 30*time.Second, time.Millisecond)
	x.add(4)
	require.Eventually(t, func() bool { return x.counted()["refused"] == 7 }, 30*time.Second, time.Millisecond)
	require.NoError(t, x.shutdown(context.Background()))
	require.Equal(t, 1, x.logs.FilterMessageSnippet("refused").Len(), "said once, not at each batch")
}

func TestExporterContextHasTheExportTimeout(t *testing.T) {
	next := consumerOf(func(ctx context.Context, _ pprofile.Profiles) error {
		<-ctx.Done()
		return ctx.Err()
	})
	x := newExporterTest(t, next, func(e *exporter) { e.interval, e.timeout = time.Millisecond, 20*time.Millisecond })
	x.add(5)
	require.Eventually(t, func() bool { return x.counted()["refused"] == 5 }, 30*time.Second, time.Millisecond)
	require.NoError(t, x.shutdown(context.Background()))
}

func TestExporterConsumerThatBlocksFillsBothBuffersAndNoMore(t *testing.T) {
	called, release := make(chan struct{}, 100), make(chan struct{})
	next := consumerOf(func(context.Context, pprofile.Profiles) error {
		called <- struct{}{}
		<-release // whatever its context says
		return nil
	})
	x := newExporterTest(t, next, func(e *exporter) { e.interval, e.timeout = time.Millisecond, time.Millisecond })
	in := x.add(1)
	<-called
	for !x.buffer.Paused() {
		in += x.add(1)
		require.Less(t, in, 10_000)
	}
	require.LessOrEqual(t, x.buffer.usage(4096), 4096)
	in += x.add(7)
	require.EqualValues(t, 8, x.full.Load(), "the one that paused and seven more")
	require.True(t, x.buffer.Paused())
	require.Eventually(t, func() bool { return x.counted()["buffer_full"] == 8 }, 30*time.Second, time.Millisecond,
		"loss is seen while the call lasts")

	close(release)
	require.Eventually(t, func() bool { return !x.buffer.Paused() }, 30*time.Second, time.Millisecond)
	in += x.add(2)
	require.NoError(t, x.shutdown(context.Background()))
	require.Equal(t, map[string]int64{"exported": int64(in), "buffer_full": 8}, x.counted(),
		"what came in is the sum of what left")
}

func TestExporterShutdownCancelsACallThatDoesNotEnd(t *testing.T) {
	called := make(chan struct{})
	var x *exporterTest
	next := consumerOf(func(ctx context.Context, _ pprofile.Profiles) error {
		close(called) // a second call would panic: no time is left for one
		<-x.ctx.Done()
		return ctx.Err()
	})
	x = newExporterTest(t, next, func(e *exporter) { e.timeout = 50 * time.Millisecond })
	in := 0
	for !x.buffer.Paused() {
		in += x.add(1)
	}
	<-called
	require.NoError(t, x.shutdown(context.Background()))
	got := x.counted()
	require.EqualValues(t, in, got["refused"]+got["shutdown"])
	require.Positive(t, got["refused"])
	require.Positive(t, got["shutdown"])
}

func TestExporterShutdownDoesNotOutliveItsContext(t *testing.T) {
	called, release := make(chan struct{}), make(chan struct{})
	next := consumerOf(func(context.Context, pprofile.Profiles) error {
		close(called)
		<-release
		return nil
	})
	x := newExporterTest(t, next, func(e *exporter) { e.interval = time.Millisecond })
	x.add(1)
	<-called
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, x.shutdown(ctx), context.Canceled)
	close(release)
	<-x.done
}

func TestExporterShutdownWithoutADeadlineLeavesBehindWhoDoesNotReturn(t *testing.T) {
	called, release := make(chan struct{}), make(chan struct{})
	next := consumerOf(func(context.Context, pprofile.Profiles) error {
		close(called)
		<-release // whatever its context says
		return nil
	})
	x := newExporterTest(t, next, func(e *exporter) {
		e.interval, e.timeout, e.patience = time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	})
	x.add(1)
	<-called
	require.ErrorContains(t, x.shutdown(context.Background()), "left behind")
	close(release)
	<-x.done
}

func TestExporterDropsTheRestOfABatchThatExpired(t *testing.T) {
	calls := 0
	next := consumerOf(func(ctx context.Context, _ pprofile.Profiles) error {
		calls++
		<-ctx.Done() // late, and yet successful
		return nil
	})
	x := newExporterTest(t, next, func(e *exporter) {
		e.timeout = time.Millisecond
		e.buffer = newBuffer(64<<20, systemClock{}, func() {})
	})
	const samples = 600_000 // more than one request
	require.Equal(t, samples, x.add(samples))
	require.NoError(t, x.shutdown(context.Background()))
	require.Equal(t, 1, calls)
	got := x.counted()
	require.Positive(t, got["exported"])
	require.EqualValues(t, samples, got["exported"]+got["refused"]+got["shutdown"])
	require.Positive(t, got["refused"])
	require.Equal(t, 1, x.logs.FilterMessageSnippet("refused").Len())
}

func TestLimitsThatAreHitAreCounted(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	builder, err := metadata.NewTelemetryBuilder(tel.NewTelemetrySettings())
	require.NoError(t, err)
	var table processes.Stats
	var files symbolizer.Counters
	c := &counters{
		telemetry: builder,
		sampler:   func() oncpu.Stats { return oncpu.Stats{Table: table} },
		symbols:   func() symbolizer.Counters { return files },
	}
	c.record(context.Background())
	table = processes.Stats{Evicted: 1, MappingsLeftOut: 2, StackResets: 3, ThreadNameResets: 4, StartsLeftOut: 5}
	files = symbolizer.Counters{Evictions: 6, Dropped: 7}
	c.record(context.Background())
	table.Evicted = 11
	c.record(context.Background())
	m, err := tel.GetMetric("otelcol_cpu_profiler.limits.hit")
	require.NoError(t, err)
	got := map[string]int64{}
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		limit, _ := p.Attributes.Value(attribute.Key("limit"))
		got[limit.AsString()] = p.Value
	}
	require.Equal(t, map[string]int64{
		"processes": 11, "mappings": 2, "stacks": 3, "thread_names": 4, "program_starts": 5, "files": 6, "file_requests": 7,
	}, got)
}

func TestExporterCountsASampleWithoutAStack(t *testing.T) {
	sink := new(consumertest.ProfilesSink)
	x := newExporterTest(t, sink, nil)
	x.key.Stack = &samples.Stack{}
	x.add(2)
	require.NoError(t, x.shutdown(context.Background()))
	require.Empty(t, sink.AllProfiles())
	require.Equal(t, map[string]int64{"unreadable": 2}, x.counted())
}

// sampleEvents counts events, as the metrics do.
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
