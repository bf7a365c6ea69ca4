// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"context"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
)

// nowhere is a sink that only counts its samples.
type nowhere struct{ n atomic.Uint64 }

func (s *nowhere) AddBoth(samples.Key, samples.Key, int64, int64, int64) bool {
	s.n.Add(1)
	return true
}

func (s *nowhere) KernelLost(*samples.Type, uint64) {}
func (s *nowhere) ReadUpTo(int64)                   {}

// newTestReader returns a reader that knows the test process as its only member. The
// program's allocating functions are at offsets below 1000.
func newTestReader(t testing.TB, limit int) (*reader, *member) {
	s, _, _ := newTestSampler(t, func(c *Settings) {
		c.Limit = limit
		c.ThreadName = true
		c.Sink = &nowhere{}
	})
	m := &member{Process: procfs.Process{PID: os.Getpid()}, program: &program{site: site{address: 500}}}
	m.program.Program = &goprogram.Program{Runs: []goprogram.Run{{Start: 0, End: 1000}}}
	m.rate.Store(defaultRate)
	s.members.Store(&map[int]*member{m.PID: m})
	r := &s.reader
	r.members = s.members.Load()
	return r, m
}

// testRecord returns a hit whose stack consists of different callers. refill restores
// the stack after it was changed.
func testRecord(pid int) (rec *perfevent.Record, refill func()) {
	const loaded, frames = 0x10000, 20
	rec = &perfevent.Record{}
	rec.Sample.HasRegisters, rec.Sample.Registers.Third = true, 4096
	rec.Type, rec.PID, rec.TID = perfevent.TypeSample, pid, pid
	stack := []uint64{500 + loaded, 700 + loaded, 900 + loaded}
	for i := range uint64(frames) {
		stack = append(stack, 5000+i*100+loaded)
	}
	room := make([]uint64, len(stack))
	return rec, func() { rec.Sample.User = room[:copy(room, stack)] }
}

func TestHitOfAKnownStackAllocatesNothing(t *testing.T) {
	for name, limit := range map[string]int{"without a limit": 0, "limited": 200} {
		t.Run(name, func(t *testing.T) {
			r, m := newTestReader(t, limit)
			rec, refill := testRecord(m.PID)
			hit := func() {
				refill()
				r.handle(rec)
			}
			for range 1000 {
				hit()
			}
			require.Zero(t, testing.AllocsPerRun(1000, hit))
			flush := func() {
				hit()
				r.flush()
			}
			flush()
		})
	}
}

func BenchmarkHit(b *testing.B) {
	for name, limit := range map[string]int{"every one is kept": 0, "200 a minute": 200} {
		b.Run(name, func(b *testing.B) {
			r, m := newTestReader(b, limit)
			rec, refill := testRecord(m.PID)
			b.ReportAllocs()
			for b.Loop() {
				refill()
				r.handle(rec)
			}
		})
	}
	b.Run("of another process", func(b *testing.B) {
		r, m := newTestReader(b, 200)
		rec, refill := testRecord(m.PID + 1)
		b.ReportAllocs()
		for b.Loop() {
			refill()
			r.handle(rec)
		}
	})
	b.Run("baseline: copying the stack", func(b *testing.B) {
		_, refill := testRecord(1)
		b.ReportAllocs()
		for b.Loop() {
			refill()
		}
	})
}

// BenchmarkSlowdown makes a program allocate memory, alternately without and with the
// sampler. It reports the additional CPU time that the program needs with the sampler,
// and half the width of the 95 % confidence interval.
func BenchmarkSlowdown(b *testing.B) {
	skipWithoutProbes(b)
	for _, c := range []struct {
		kind  string
		rate  int
		bytes int
	}{
		{"pages", 512 << 10, 1 << 30},
		{"small", 512 << 10, 128 << 20},
		{"large", 512 << 10, 2 << 30},
		{"pages", 64 << 10, 1 << 30},
		{"pages", 4 << 10, 256 << 20},
	} {
		b.Run(fmt.Sprintf("%s/rate=%d", c.kind, c.rate), func(b *testing.B) {
			a := start(b, buildAllocator(b, ""), c.rate)
			s, _, _ := newTestSampler(b, func(cfg *Settings) { cfg.Limit = 200 })
			require.NoError(b, s.Start(context.Background()))
			defer func() { require.NoError(b, s.Stop(context.Background())) }()
			set := func(wanted ...procfs.Process) {
				s.Set(wanted)
				require.Eventually(b, func() bool { return s.Stats().Processes == len(wanted) && (len(wanted) > 0 || s.uprobes.Load() == nil) }, patience, time.Millisecond)
			}
			a.allocate(c.kind, c.bytes/4, 1) // warms up the program
			var ratios []float64
			var off, on, bytes float64
			for b.Loop() {
				set()
				without := a.allocate(c.kind, c.bytes, 1)
				set(a.Process)
				with := a.allocate(c.kind, c.bytes, 1)
				s.Flush()
				ratios = append(ratios, with.seconds/without.seconds-1)
				off, on, bytes = off+without.seconds, on+with.seconds, bytes+with.bytes
			}
			mean, sd := 0.0, 0.0
			n := float64(len(ratios))
			for _, r := range ratios {
				mean += r / n
			}
			for _, r := range ratios {
				sd += (r - mean) * (r - mean) / max(1, n-1)
			}
			read := float64(s.Stats().Read + s.Stats().Lost)
			b.ReportMetric(100*mean, "%more-CPU")
			b.ReportMetric(100*1.96*math.Sqrt(sd/n), "±%")
			b.ReportMetric(bytes/off/1e9, "GB/s-of-CPU")
			b.ReportMetric(read/on, "hits/s")
			b.ReportMetric((on-off)/read*1e9, "ns/hit")
			b.ReportMetric(0, "ns/op")
		})
	}
}
