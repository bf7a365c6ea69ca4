// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// newReader returns a reader without a session, and the sink of its samples.
func newReader(t testing.TB, change func(*Settings)) (testReader, *recordSink) {
	sink := &recordSink{batch: samples.NewBatch(1 << 30)}
	cfg := Settings{
		Config: perftargets.Config{
			Table:  processes.NewTable(processes.Config{}),
			Stacks: unwind.NewStacks(unwind.StacksConfig{}),
			Logger: zap.NewNop(),
			Now:    func() int64 { return 0 },
		},
		Sink:      sink,
		Frequency: 97,
	}
	if change != nil {
		change(&cfg)
	}
	s := New(cfg)
	return testReader{&s.reader, s}, sink
}

// testReader is a reader whose Stats are up to date.
type testReader struct {
	*reader
	sampler *Sampler
}

func (r testReader) Stats() Stats {
	r.publish()
	return r.sampler.Stats()
}

// recordSink is a sink that adds all samples to one batch. If
// full is set, it refuses samples.
type recordSink struct {
	batch *samples.Batch
	full  bool
	lost  uint64
}

func (s *recordSink) AddValue(k samples.Key, time, _ int64) bool {
	return !s.full && s.batch.Add(k, time)
}

func (s *recordSink) ReadUpTo(int64)                       {}
func (s *recordSink) KernelLost(_ *samples.Type, n uint64) { s.lost += n }
func (s *recordSink) Paused() bool                         { return s.full }
func (s *recordSink) Batch() uint64                        { return 1 }

// pc returns the address of a function of the test binary.
func pc(f any) uint64 { return uint64(reflect.ValueOf(f).Pointer()) }

// record returns a sample of the test process. The stack consists
// of functions of the test binary.
func record() *perfevent.Record {
	rec := new(perfevent.Record)
	rec.Type, rec.Time, rec.PID, rec.TID = perfevent.TypeSample, 1000, os.Getpid(), os.Getpid()
	rec.Sample = perfevent.Sample{
		User:   []uint64{pc(strings.Repeat) + 4, pc(slices.Sort[[]int]) + 4, pc(os.Getpid) + 4, pc(time.Now) + 4},
		Period: int64(time.Second / 97),
	}
	return rec
}

func TestSampleIsOfItsThread(t *testing.T) {
	r, sink := newReader(t, func(c *Settings) { c.ThreadName, c.ThreadID = true, true })
	r.handle(record())
	r.handle(record())
	got := sink.batch.Samples()
	require.Len(t, got, 1)
	require.Equal(t, []int64{1000, 1000}, got[0].Times)
	require.Same(t, samples.OnCPU, got[0].Type)
	require.EqualValues(t, time.Second/97, got[0].Period)
	require.Equal(t, os.Getpid(), got[0].Resource.PID)
	require.EqualValues(t, os.Getpid(), got[0].Thread.ID)
	name, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(name)), got[0].Thread.Name)
	require.Len(t, got[0].Stack.Locations, 4)
	require.NotNil(t, got[0].Stack.Locations[0].Mapping)
}

func TestThreadsAreNotToldApartUnlessAskedFor(t *testing.T) {
	r, sink := newReader(t, nil)
	r.handle(record())
	require.Equal(t, samples.Thread{}, sink.batch.Samples()[0].Thread)
}

func TestSampleOfNoProcessIsCounted(t *testing.T) {
	for name, pid := range map[string]int{"of another pid namespace, or idle": 0, "exiting": -1} {
		t.Run(name, func(t *testing.T) {
			r, sink := newReader(t, nil)
			rec := record()
			rec.PID, rec.TID = pid, pid
			r.handle(rec)
			require.Zero(t, sink.batch.Count())
			require.EqualValues(t, 1, r.Stats().Unreadable)
		})
	}
}

func TestSampleWithoutAStackIsCounted(t *testing.T) {
	r, sink := newReader(t, nil)
	rec := record()
	rec.Sample.User = nil
	r.handle(rec)
	require.Zero(t, sink.batch.Count())
	require.EqualValues(t, 1, r.Stats().Unreadable)
}

func TestSampleThatFindsBothBuffersFullIsCounted(t *testing.T) {
	r, sink := newReader(t, nil)
	sink.full = true
	r.handle(record())
	require.EqualValues(t, 1, r.Stats().BufferFull)
}

func TestSampleOfAProcessThatIsNotATargetIsDropped(t *testing.T) {
	matcher, err := processes.NewMatcher([]processes.Target{{PID: os.Getpid() + 1}}, 0)
	require.NoError(t, err)
	r, sink := newReader(t, func(c *Settings) { c.Table = processes.NewTable(processes.Config{Wanted: matcher}) })
	r.handle(record())
	require.Zero(t, sink.batch.Count())
	require.Zero(t, r.Stats().Unreadable)
}

func TestOwnProcessIsLeftOutUnlessATargetNamesIt(t *testing.T) {
	own := os.Getpid()
	for name, test := range map[string]struct {
		targets []processes.Target
		want    int
	}{
		"whole host":       {nil, 0},
		"named by its pid": {[]processes.Target{{PID: own}}, 1},
		"named by program": {[]processes.Target{{Executable: "/**"}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			matcher, err := processes.NewMatcher(test.targets, own)
			require.NoError(t, err)
			r, sink := newReader(t, func(c *Settings) { c.Table = processes.NewTable(processes.Config{Wanted: matcher}) })
			r.handle(record())
			require.Equal(t, test.want, sink.batch.Count())
		})
	}
}

func TestLossIsCounted(t *testing.T) {
	skipWithoutRights(t)
	core, logs := observer.New(zap.InfoLevel)
	r, sink := newReader(t, func(c *Settings) { c.Logger = zap.New(core) })
	session, err := perfevent.Open(perfevent.Options{})
	require.NoError(t, err)
	defer session.Close()
	r.loop.ReadUpTo(session, perfevent.Stats{Lost: 3, LostSamples: 2, Throttled: 1, Corrupt: 1, Duplicate: 5, Foreign: 5}, 0, &r.counts.Counts)
	require.EqualValues(t, 7, r.Stats().Lost)
	r.loop.ReadUpTo(session, perfevent.Stats{Lost: 4, LostSamples: 2, Throttled: 1, Corrupt: 1}, 0, &r.counts.Counts)
	require.EqualValues(t, 8, r.Stats().Lost)
	require.EqualValues(t, 8, sink.lost, "told of with the samples of that time")
	require.Equal(t, 1, logs.FilterMessageSnippet("kernel loses samples").Len())
}

func TestPausedTimeIsCountedInPeriods(t *testing.T) {
	now := int64(0)
	r, _ := newReader(t, func(c *Settings) { c.Now = func() int64 { return now } })
	r.paused = true
	now = int64(time.Second)
	r.skip()
	require.EqualValues(t, 97, r.Stats().PeriodsSkipped, "seen while the pause lasts")
	now = int64(2 * time.Second)
	r.resume("")
	require.EqualValues(t, 2*97, r.Stats().PeriodsSkipped)
	r.resume("")
	require.EqualValues(t, 2*97, r.Stats().PeriodsSkipped)

	for range 10 { // each pause is shorter than a period
		r.paused, r.pausedSince = true, now
		now += int64(r.full) / 2
		r.resume("")
	}
	require.EqualValues(t, 2*97+5, r.Stats().PeriodsSkipped)
}

func TestSampleSeenBeforeAllocatesNothing(t *testing.T) {
	r, sink := newReader(t, func(c *Settings) { c.ThreadName, c.ThreadID = true, true })
	rec := record()
	for range 1 << 13 {
		r.handle(rec)
	}
	sink.batch.Reset() // keeps the allocated memory
	r.handle(rec)
	require.Zero(t, testing.AllocsPerRun(1000, func() { r.handle(rec) }))
}

// BenchmarkRecordToBuffer measures the time that the reader of the rings needs for a sample
// whose stack is already known. For comparison, it also measures the batch's own Add.
func BenchmarkRecordToBuffer(b *testing.B) {
	rec := record()
	b.Run("record", func(b *testing.B) {
		r, sink := newReader(b, func(c *Settings) { c.ThreadName = true })
		r.handle(rec)
		b.ReportAllocs()
		for b.Loop() {
			r.handle(rec)
			if sink.batch.Count() == 1<<15 {
				sink.batch.Reset()
			}
		}
	})
	b.Run("baseline=add", func(b *testing.B) {
		r, sink := newReader(b, func(c *Settings) { c.ThreadName = true })
		r.handle(rec)
		key := sink.batch.Samples()[0].Key
		b.ReportAllocs()
		for b.Loop() {
			sink.batch.Add(key, rec.Time)
			if sink.batch.Count() == 1<<15 {
				sink.batch.Reset()
			}
		}
	})
}
