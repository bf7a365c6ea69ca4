// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package switches

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/test/perftest"
)

// fakeRing is a ring that the test fills in place of the kernel.
type fakeRing = perftest.Ring[ring.Ring]

func newRing(words int, position uint64) *fakeRing {
	return perftest.NewRing(ring.New, words, position)
}

// trailed appends the fields that end every record of a session.
func trailed(p *perftest.Packed, pid uint32, time int64) []uint64 {
	return p.With(perftest.Pair(pid, pid), uint64(time)).Words
}

// leaves and comes return the two records of a context switch.
func leaves(time int64, from, to uint32) []uint64 {
	return trailed(perftest.Record(sys.RecordSwitchCPUWide, sys.MiscSwitchOut, perftest.Pair(to, to)), from, time)
}

func comes(time int64, from, to uint32) []uint64 {
	return trailed(perftest.Record(sys.RecordSwitchCPUWide, 0, perftest.Pair(from, from)), to, time)
}

func lostRecord(time int64, count uint64) []uint64 {
	return trailed(perftest.Record(sys.RecordLost, 0, 1, count), 0, time)
}

func mergerOf(rings ...*fakeRing) *merger {
	m := newMerger(perftest.Readers(rings))
	return &m
}

func readRound(m *merger, cutoff int64) (out []Record) {
	var rec Record
	m.begin(cutoff)
	for m.next(&rec) {
		out = append(out, rec)
	}
	return out
}

func switched(time int64, cpu, from, to int) Record {
	return Record{Kind: Switch, Time: time, CPU: cpu, PID: to, TID: to, OtherPID: from, OtherTID: from}
}

func TestRecords(t *testing.T) {
	for _, c := range []struct {
		name    string
		records [][]uint64
		want    []Record
		corrupt uint64
	}{
		{
			name:    "the second record of a switch adds nothing",
			records: [][]uint64{leaves(10, 5, 6), comes(11, 5, 6), leaves(20, 6, 0), comes(21, 6, 0)},
			want:    []Record{switched(10, 0, 5, 6), switched(20, 0, 6, 0)},
		},
		{
			name:    "unless the thread that left wrote none",
			records: [][]uint64{leaves(10, 5, 6), comes(30, 6, 7), leaves(40, 7, 8)},
			want:    []Record{switched(10, 0, 5, 6), switched(30, 0, 6, 7), switched(40, 0, 7, 8)},
		},
		{
			name:    "or it is the first",
			records: [][]uint64{comes(30, 6, 7), comes(31, 6, 7)},
			want:    []Record{switched(30, 0, 6, 7)},
		},
		{
			name:    "records were lost since the one before",
			records: [][]uint64{leaves(10, 5, 6), comes(11, 5, 6), lostRecord(50, 9), comes(50, 5, 6)},
			want:    []Record{switched(10, 0, 5, 6), {Kind: Lost, Time: 10, Count: 9}, switched(50, 0, 5, 6)},
		},
		{
			name:    "a snapshot",
			records: [][]uint64{trailed(perftest.Record(sys.RecordSample, sys.MiscKernel), 6, 10)},
			want:    []Record{{Kind: Running, Time: 10, PID: 6, TID: 6}},
		},
		{
			name: "processes are reported, threads are not",
			records: [][]uint64{
				trailed(perftest.Record(sys.RecordFork, 0, perftest.Pair(20, 6), perftest.Pair(20, 6), 10), 6, 10),
				trailed(perftest.Record(sys.RecordFork, 0, perftest.Pair(6, 6), perftest.Pair(21, 6), 11), 6, 11),
				trailed(perftest.Record(sys.RecordExit, 0, perftest.Pair(6, 1), perftest.Pair(21, 1), 12), 6, 12),
				trailed(perftest.Record(sys.RecordExit, 0, perftest.Pair(20, 6), perftest.Pair(20, 6), 13), 20, 13),
				trailed(perftest.Record(sys.RecordComm, 0, append([]uint64{perftest.Pair(6, 6)}, perftest.Text("name")...)...), 6, 14),
				trailed(perftest.Record(sys.RecordComm, sys.MiscCommExec, append([]uint64{perftest.Pair(6, 6)}, perftest.Text("program")...)...), 6, 15),
			},
			want: []Record{
				{Kind: Fork, Time: 10, PID: 20, TID: 20, OtherPID: 6, OtherTID: 6},
				{Kind: Exit, Time: 13, PID: 20, TID: 20, OtherPID: 6, OtherTID: 6},
				{Kind: Exec, Time: 15, PID: 6, TID: 6},
			},
		},
		{
			name:    "a record that no event asks for",
			records: [][]uint64{trailed(perftest.Record(sys.RecordThrottle, 0, 1, 2, 3), 6, 10), leaves(20, 5, 6)},
			want:    []Record{switched(20, 0, 5, 6)},
		},
		{
			name: "records shorter than their type demands",
			records: [][]uint64{
				trailed(perftest.Record(sys.RecordSwitchCPUWide, sys.MiscSwitchOut), 6, 10),
				trailed(perftest.Record(sys.RecordFork, 0, 1), 6, 11),
				trailed(perftest.Record(sys.RecordComm, sys.MiscCommExec), 6, 12),
				trailed(perftest.Record(sys.RecordLost, 0, 1), 6, 13),
				leaves(20, 5, 6),
			},
			want:    []Record{switched(20, 0, 5, 6)},
			corrupt: 4,
		},
		{
			name:    "after a corrupt header, records may be missing",
			records: [][]uint64{leaves(10, 5, 6), {0}, leaves(20, 5, 6)},
			want:    []Record{switched(10, 0, 5, 6), {Kind: Lost, Time: 10}},
			corrupt: 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newRing(256, 0)
			for _, words := range c.records {
				require.True(t, f.Write(words))
			}
			m := mergerOf(f)
			require.Equal(t, c.want, readRound(m, 100))
			require.Equal(t, c.corrupt, m.corrupt)
			require.Equal(t, f.Head, f.Tail)
			require.True(t, f.Write(leaves(200, 7, 8)))
			require.Equal(t, []Record{switched(200, 0, 7, 8)}, readRound(m, 300), "later records are not read")
		})
	}
}

func TestSwitchesOfAllCPUsAreReadByTime(t *testing.T) {
	a, b := newRing(256, 0), newRing(256, ^uint64(0)-63)
	a.Write(leaves(10, 1, 2))
	a.Write(leaves(30, 2, 3))
	a.Write(leaves(50, 3, 4))
	b.Write(leaves(20, 5, 6))
	b.Write(leaves(40, 6, 7))
	m := mergerOf(a, b)
	require.Equal(t, []Record{switched(10, 0, 1, 2), switched(20, 1, 5, 6), switched(30, 0, 2, 3)}, readRound(m, 35))
	require.Equal(t, []Record{switched(40, 1, 6, 7), switched(50, 0, 3, 4)}, readRound(m, 55))
	require.Empty(t, readRound(m, 100))
	a.Write(leaves(1<<62, 4, 5))
	require.Len(t, readRound(m, 100), 1, "a time in the far future blocks the ring")
}

// TestEveryLossIsReported acts like the kernel. A record that does not fit is lost, and
// the next record that fits reports the loss. The reader must always know the running
// thread, or know that the running thread is unknown.
func TestEveryLossIsReported(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	f := newRing(128, 0)
	m := mergerOf(f)
	var lost uint64
	running, believed := uint32(1), -1
	now := int64(0)
	unknown := 0
	for range 3000 {
		for range random.IntN(60) {
			now += 1 + int64(random.IntN(3))
			next := uint32(random.IntN(50))
			words := leaves(now, running, next)
			if lost > 0 {
				words = slices.Concat(lostRecord(now, lost), words)
			}
			if f.Write(words) {
				lost = 0
			} else {
				lost++
			}
			running = next
		}
		for _, rec := range readRound(m, now) {
			switch rec.Kind {
			case Switch:
				if believed >= 0 {
					require.Equal(t, believed, rec.OtherPID, "at %d", rec.Time)
				}
				believed = rec.PID
			case Lost:
				believed = -1
			}
		}
		if believed < 0 {
			unknown++
			continue
		}
		require.Equal(t, int(running), believed, "at %d", now)
	}
	require.NotZero(t, unknown, "nothing was lost")
	require.NotZero(t, f.Lost)
	require.Less(t, unknown, 3000)
	require.Zero(t, m.corrupt)
}

func TestReadingSwitchesAllocatesNothing(t *testing.T) {
	f := newRing(1<<12, 0)
	m := mergerOf(f)
	out, in := leaves(1, 5, 6), comes(1, 5, 6)
	var rec Record
	m.begin(2)
	m.next(&rec)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		f.Write(out)
		f.Write(in)
		m.begin(2)
		for m.next(&rec) {
		}
	}))
}

func FuzzMerger(f *testing.F) {
	seed := slices.Concat(leaves(1, 5, 6), comes(2, 5, 6), lostRecord(3, 9), trailed(perftest.Record(sys.RecordFork, 0, perftest.Pair(20, 6), perftest.Pair(20, 6), 10), 6, 10))
	f.Add(slices.Clone(ring.Bytes(seed)), uint64(0), uint16(len(seed)*ring.WordSize))
	f.Add(slices.Clone(ring.Bytes(seed)), uint64(1016), uint16(len(seed)*ring.WordSize))
	f.Fuzz(func(t *testing.T, raw []byte, position uint64, length uint16) {
		fake := newRing(128, position&^(ring.WordSize-1))
		copy(ring.Bytes(fake.Data), raw)
		fake.Head += uint64(length)
		m := mergerOf(fake)
		var rec Record
		m.begin(100)
		for n := 0; m.next(&rec); n++ {
			if n > len(fake.Data) {
				t.Fatal("the round does not end")
			}
		}
		m.begin(1 << 62)
		for m.next(&rec) {
		}
		if fake.Tail != fake.Head {
			t.Fatalf("tail %d, head %d", fake.Tail, fake.Head)
		}
	})
}

// BenchmarkReadSwitch reads context switches in the order of their times. The baseline
// copies the two records of a switch.
func BenchmarkReadSwitch(b *testing.B) {
	out, in := leaves(1, 5, 6), comes(1, 5, 6)
	b.Run("copy", func(b *testing.B) {
		scratch := make([]uint64, len(out)+len(in))
		b.ReportAllocs()
		for b.Loop() {
			copy(scratch, out)
			copy(scratch[len(out):], in)
		}
	})
	for name, count := range map[string]int{"1 ring": 1, "16 rings": 16, "128 rings": 128} {
		b.Run(name, func(b *testing.B) {
			rings := make([]*fakeRing, count)
			for i := range rings {
				rings[i] = newRing(1<<12, 0)
				for rings[i].Write(out) && rings[i].Write(in) {
				}
			}
			m := mergerOf(rings...)
			var rec Record
			b.ReportAllocs()
			for b.Loop() {
				if m.next(&rec) && rec.Kind == Switch {
					continue
				}
				for i, k := range rings {
					k.Rewind()
					m.rings[i].maybeLost = false
				}
				m.begin(2)
				m.next(&rec)
			}
		})
	}
}
