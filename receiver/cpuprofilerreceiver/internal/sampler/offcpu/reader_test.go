// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// batchSink is a sink that adds all samples to one batch.
type batchSink struct{ kept *samples.Batch }

func (s batchSink) AddValue(k samples.Key, time, value int64) bool {
	return s.kept.AddValue(k, time, value)
}

func (batchSink) ReadUpTo(int64)                   {}
func (batchSink) KernelLost(*samples.Type, uint64) {}
func (batchSink) Paused() bool                     { return false }
func (batchSink) Batch() uint64                    { return 1 }
func (batchSink) Closing() int64                   { return 0 }

// newReader returns a reader without a session, and the sink of its waits.
func newReader() (*reader, batchSink) {
	sink := batchSink{samples.NewBatch(1 << 30)}
	s := New(Settings{
		Config: perftargets.Config{
			Stacks: unwind.NewStacks(unwind.StacksConfig{}),
			Table:  processes.NewTable(processes.Config{}), ThreadName: true, Logger: zap.NewNop(), Now: func() int64 { return 0 },
		},
		Sink: sink, MinDuration: time.Microsecond, MaxEventsPerSecond: 10000,
	})
	r := &s.reader
	r.rate = newRate(10000, 10000, 0)
	r.begin(0)
	r.most = 1 << 30
	return r, sink
}

// blocking returns the records that are written when the test process waits.
func blocking() (sample, out, in perfevent.Record) {
	pc := func(f any) uint64 { return uint64(reflect.ValueOf(f).Pointer()) + 4 }
	target := new(perfevent.Attachment)
	record := func(t perfevent.Type) perfevent.Record {
		rec := perfevent.Record{Attachment: target}
		rec.Type, rec.PID, rec.TID = t, os.Getpid(), os.Getpid()
		return rec
	}
	sample, out, in = record(perfevent.TypeSample), record(perfevent.TypeSwitch), record(perfevent.TypeSwitch)
	sample.Sample.User = []uint64{pc(strings.Repeat), pc(slices.Sort[[]int]), pc(os.Getpid), pc(time.Now)}
	sample.Sample.Kernel = []uint64{1<<63 + 5, 1<<63 + 500}
	out.Switch.Out = true
	return sample, out, in
}

func TestRecordsBecomeAWait(t *testing.T) {
	r, sink := newReader()
	sample, out, in := blocking()
	sample.Time, out.Time, in.Time = 999_000, 1_000_000, 5_000_000
	r.handle(&sample)
	r.handle(&out)
	r.handle(&in)
	got := sink.kept.Samples()
	require.Len(t, got, 1)
	require.Same(t, samples.OffCPU, got[0].Type)
	require.Equal(t, []int64{4_999_999}, got[0].Times, "the last nanosecond of it")
	require.Equal(t, []int64{4_000_000}, got[0].Values)
	require.EqualValues(t, 1, got[0].Period)
	require.Len(t, got[0].Stack.Locations, 6)
	require.Equal(t, os.Getpid(), got[0].Resource.PID)
	require.NotEmpty(t, got[0].Thread.Name)
}

// TestTimeOfLostRecordsIsNotShown loses records while a thread waits. Switches may be
// missing in this time, so the time must not be part of a wait.
func TestTimeOfLostRecordsIsNotShown(t *testing.T) {
	r, sink := newReader()
	sample, out, in := blocking()
	out.Time = 1_000_000
	r.handle(&sample)
	r.handle(&out)
	var lost perfevent.Record
	lost.Type, lost.Time = perfevent.TypeLost, 3_000_000
	lost.Lost.Count, lost.Lost.Since, lost.Lost.Kinds = 1, 2_500_000, 3 // both samples and switches were lost
	r.handle(&lost)
	in.Time = 5_000_000
	r.handle(&in)
	require.Equal(t, []int64{3_500_000}, sink.kept.Samples()[0].Values)
}

// TestStacksBeyondTheBoundAreNotUnwound covers a round of reading with more stacks than
// the limit allows. The time of the stacks beyond the limit is divided among the unwound
// stacks.
func TestStacksBeyondTheBoundAreNotUnwound(t *testing.T) {
	r, sink := newReader()
	now := int64(0)
	waits := func(n int) {
		for range n {
			now += 2_000_000
			sample, out, in := blocking()
			sample.Time, out.Time, in.Time = now, now, now+1_000_000
			r.handle(&sample)
			r.handle(&out)
			r.handle(&in)
		}
	}
	r.most = 3
	waits(10)
	require.EqualValues(t, 7, r.counts.RateLimited)
	r.begin(now)
	r.most = 0
	waits(2) // the limit does not apply to a thread's first stack
	require.EqualValues(t, 8, r.counts.RateLimited)
	r.scaler.settle()
	var sum int64
	for _, s := range sink.kept.Samples() {
		require.Greater(t, len(s.Stack.Locations), 1)
		for _, v := range s.Values {
			sum += v
		}
	}
	require.EqualValues(t, 12_000_000, sum)
	require.Zero(t, r.scaler.stackless)
}

func TestRecordsWithoutAProcessAreIgnored(t *testing.T) {
	for name, change := range map[string]func(*perfevent.Record){
		"idle":           func(r *perfevent.Record) { r.PID, r.TID = 0, 0 },
		"ended":          func(r *perfevent.Record) { r.PID, r.TID = -1, -1 },
		"detached since": func(r *perfevent.Record) { r.Attachment = nil },
	} {
		t.Run(name, func(t *testing.T) {
			r, sink := newReader()
			sample, out, in := blocking()
			for i, rec := range []*perfevent.Record{&sample, &out, &in} {
				change(rec)
				rec.Time = int64(i) * 1e6
				r.handle(rec)
			}
			require.Zero(t, sink.kept.Count())
			require.Empty(t, r.waits.threads)
		})
	}
}

func TestWaitSeenBeforeAllocatesNothing(t *testing.T) {
	r, sink := newReader()
	sample, out, in := blocking()
	now := int64(0)
	wait := func() {
		now += 10_000
		sample.Time, out.Time, in.Time = now, now+500, now+5000
		r.handle(&sample)
		r.handle(&out)
		r.handle(&in)
	}
	for range 1 << 13 {
		wait()
	}
	sink.kept.Reset() // keeps the allocated memory
	wait()
	require.Zero(t, testing.AllocsPerRun(1000, wait))
}

// BenchmarkSwitch measures the time that the reader needs for a wait, which consists of
// two switches. The benchmark runs with and without a stack for the wait. For comparison,
// it also measures the batch's own AddValue.
func BenchmarkSwitch(b *testing.B) {
	sample, out, in := blocking()
	run := func(b *testing.B, mean int, stack bool, least time.Duration) {
		r, sink := newReader()
		r.waits.least = int64(least)
		r.waits.setMean(mean, 0)
		now := int64(0)
		b.ReportAllocs()
		for b.Loop() {
			now += 10_000
			sample.Time, out.Time, in.Time = now, now+500, now+5000
			if stack {
				r.handle(&sample)
			}
			r.handle(&out)
			r.handle(&in)
			if sink.kept.Count() >= 1<<15 {
				sink.kept.Reset()
			}
		}
	}
	b.Run("wait with its stack", func(b *testing.B) { run(b, 1, true, time.Microsecond) })
	b.Run("short wait with its stack", func(b *testing.B) { run(b, 1, true, time.Second) })
	b.Run("wait without a stack", func(b *testing.B) { run(b, 10, false, time.Microsecond) })
	b.Run("baseline=add", func(b *testing.B) {
		r, sink := newReader()
		now := int64(0)
		sample.Time, out.Time, in.Time = 0, 500, 5000
		r.handle(&sample)
		r.handle(&out)
		r.handle(&in)
		key := sink.kept.Samples()[0].Key
		b.ReportAllocs()
		for b.Loop() {
			now += 10_000
			sink.kept.AddValue(key, now, 5000)
			if sink.kept.Count() >= 1<<15 {
				sink.kept.Reset()
			}
		}
	})
}
