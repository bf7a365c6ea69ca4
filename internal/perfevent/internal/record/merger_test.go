// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package record

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

func readRound(m *merger, cutoff int64) (times []int64, records [][]uint64) {
	m.begin(cutoff)
	for {
		words, _ := m.next()
		if words == nil {
			return times, records
		}
		times = append(times, recordTime(words))
		records = append(records, slices.Clone(words))
	}
}

func recordTime(words []uint64) int64 {
	d := Decoder{MaxStack: sys.MaxStackDepth}
	var rec Record
	d.decode(words, &rec)
	return rec.Time
}

func TestRingIsReleasedAsItIsRead(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	// The positions pass the end of the buffer many times and pass 2^64 once.
	for _, position := range []uint64{0, ^uint64(0) - 1<<14 + 1} {
		f := newRing(512, position)
		m := newMerger(perftest.Readers([]*fakeRing{f}))
		now := int64(0)
		for range 500 {
			var want [][]uint64
			for range random.IntN(20) {
				now++
				ips := make([]uint64, random.IntN(40))
				for i := range ips {
					ips[i] = random.Uint64()
				}
				if words := perftest.Sample(sys.MiscUser, now, ips...); f.Write(words) {
					want = append(want, words)
				}
			}
			_, got := readRound(m, now)
			require.Equal(t, want, got)
			require.Equal(t, f.Head, f.Tail)
		}
		require.Zero(t, m.corrupt)
		require.NotZero(t, f.Lost, "the ring was never full")
	}
}

func TestRingIsReleasedDuringARound(t *testing.T) {
	f := newRing(64, 0)
	words := perftest.Sample(sys.MiscUser, 1, 1) // 8 words long
	for range 8 {
		require.True(t, f.Write(words))
	}
	m := newMerger(perftest.Readers([]*fakeRing{f}))
	m.begin(1)
	for range 3 {
		m.next()
	}
	require.False(t, f.Write(words), "the third record is still in use")
	m.next()
	require.True(t, f.Write(words), "a quarter was read and not released")
}

func TestMergeByTime(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	rings := make([]*fakeRing, 7)
	for i := range rings {
		rings[i] = newRing(1<<12, 0)
	}
	m := newMerger(perftest.Readers(rings))
	now, written := int64(0), 0
	var got []int64
	for range 300 {
		for range random.IntN(100) {
			now += int64(random.IntN(3))
			f := rings[random.IntN(len(rings))]
			if random.IntN(2) == 0 {
				require.True(t, f.Write(perftest.Sample(sys.MiscUser, now, 1)))
			} else {
				require.True(t, f.Write(perftest.Record(sys.RecordFork, 0, 1, 2, 3).SampleID(now).Words))
			}
			written++
		}
		times, _ := readRound(m, now)
		got = append(got, times...)
		require.False(t, m.pending)
	}
	require.Len(t, got, written)
	require.True(t, slices.IsSorted(got))
}

func TestMergeLeavesYoungerRecordsToTheNextRound(t *testing.T) {
	a, b := newRing(256, 0), newRing(256, 0)
	m := newMerger(perftest.Readers([]*fakeRing{a, b}))
	a.Write(perftest.Sample(sys.MiscUser, 10, 1))
	b.Write(perftest.Sample(sys.MiscUser, 5, 1))
	b.Write(perftest.Sample(sys.MiscUser, 15, 1))

	times, _ := readRound(m, 12)
	require.Equal(t, []int64{5, 10}, times)
	require.True(t, m.pending)
	times, _ = readRound(m, 20)
	require.Equal(t, []int64{15}, times)
	require.False(t, m.pending)
}

func TestMergeReadsARecordFromTheFarFuture(t *testing.T) {
	a := newRing(256, 0)
	m := newMerger(perftest.Readers([]*fakeRing{a}))
	a.Write(perftest.Sample(sys.MiscUser, 1<<62, 1))
	a.Write(perftest.Sample(sys.MiscUser, 5, 1))
	times, _ := readRound(m, 10)
	require.Len(t, times, 2)
}

func TestMergeSkipsARecordWithACorruptHeader(t *testing.T) {
	zero := perftest.Record(sys.RecordSample, 0)
	zero.Words[0] = 0
	odd := perftest.Record(sys.RecordSample, 0, 1, 2)
	odd.Words[0] += perftest.Pair(0, 1<<16) // the size is in the upper half of the second word's field
	long := perftest.Record(sys.RecordSample, 0, make([]uint64, 200)...)
	long.Words = long.Words[:3]
	for name, bad := range map[string][]uint64{"no size": zero.Words, "a size that is not a multiple of a word": odd.Words, "a size beyond the round": long.Words} {
		t.Run(name, func(t *testing.T) {
			f := newRing(256, 0)
			m := newMerger(perftest.Readers([]*fakeRing{f}))
			f.Write(perftest.Sample(sys.MiscUser, 1, 1))
			f.Write(bad)
			times, _ := readRound(m, 10)
			require.Equal(t, []int64{1}, times)
			require.Equal(t, uint64(1), m.corrupt)
			require.Equal(t, f.Head, f.Tail)

			f.Write(perftest.Sample(sys.MiscUser, 2, 1))
			times, _ = readRound(m, 10)
			require.Equal(t, []int64{2}, times, "later records are not read")
		})
	}
}

func TestMergeSkipsARoundLargerThanTheRing(t *testing.T) {
	f := newRing(64, 0)
	f.Head = 1 << 20
	m := newMerger(perftest.Readers([]*fakeRing{f}))
	times, _ := readRound(m, 10)
	require.Empty(t, times)
	require.Equal(t, uint64(1), m.corrupt)
}

func FuzzMerger(f *testing.F) {
	seed := slices.Concat(perftest.Sample(sys.MiscUser, 1, sys.ContextUser, 2), perftest.Record(sys.RecordFork, 0, 1, 2, 3).SampleID(2).Words)
	f.Add(slices.Clone(ring.Bytes(seed)), uint64(0), uint16(len(seed)*ring.WordSize))
	f.Add(slices.Clone(ring.Bytes(seed)), uint64(1016), uint16(len(seed)*ring.WordSize))
	f.Fuzz(func(t *testing.T, raw []byte, position uint64, length uint16) {
		fake := newRing(128, position&^(ring.WordSize-1))
		copy(ring.Bytes(fake.Data), raw)
		fake.Head += uint64(length)
		m := newMerger(perftest.Readers([]*fakeRing{fake}))
		d := Decoder{Cgroup: length%2 == 0, MaxStack: sys.MaxStackDepth}
		var rec Record
		m.begin(100)
		for n := 0; ; n++ {
			words, _ := m.next()
			if words == nil {
				break
			}
			d.decode(words, &rec)
			if n > len(fake.Data) {
				t.Fatal("the round does not end")
			}
		}
		if !m.pending && fake.Tail != fake.Head {
			t.Fatalf("tail %d, head %d", fake.Tail, fake.Head)
		}
	})
}

func TestReadingAllocatesNothing(t *testing.T) {
	f := newRing(1<<12, 0)
	m := newMerger(perftest.Readers([]*fakeRing{f}))
	d := Decoder{MaxStack: sys.MaxStackDepth}
	words := perftest.Sample(sys.MiscKernel, 1, perftest.DeepStack()...)
	mapping := perftest.Record(sys.RecordMmap2, 0, append(make([]uint64, 8), perftest.Text("/usr/bin/true")...)...).SampleID(1).Words
	var rec Record
	require.Zero(t, testing.AllocsPerRun(100, func() {
		f.Write(words)
		f.Write(mapping)
		m.begin(2)
		for {
			words, _ := m.next()
			if words == nil {
				break
			}
			d.decode(words, &rec)
		}
	}))
}

// BenchmarkReadSample reads samples in the order of their times and decodes them. The
// baseline copies the bytes of the samples.
func BenchmarkReadSample(b *testing.B) {
	registers, err := RegistersFor(1 << 14)
	require.NoError(b, err)
	flat := perftest.Sample(sys.MiscKernel, 1, perftest.DeepStack()...)
	stack := make([]uint64, 1+registers.count()+1+1<<14/ring.WordSize+1)
	stack[0] = sys.RegistersABI64
	stack[1+registers.count()], stack[len(stack)-1] = 1<<14, 1<<14
	for name, c := range map[string]struct {
		of        []uint64
		rings     int
		registers RegisterSet
	}{
		"1 ring":               {of: flat, rings: 1},
		"16 rings":             {of: flat, rings: 16},
		"512 rings":            {of: flat, rings: 512},
		"16 rings with stacks": {of: append(slices.Clone(flat), stack...), rings: 16, registers: registers},
	} {
		words := (&perftest.Packed{Words: c.of}).With().Words
		rings := make([]*fakeRing, c.rings)
		for i := range rings {
			rings[i] = newRing(1<<16, 0)
			for rings[i].Write(words) {
			}
		}
		b.Run(name+"/copy", func(b *testing.B) {
			scratch := make([]uint64, len(words))
			b.ReportAllocs()
			b.SetBytes(int64(len(words) * ring.WordSize))
			for i := 0; b.Loop(); i++ {
				k := rings[i%len(rings)]
				at := i / len(rings) * len(words) % (len(k.Data) - len(words))
				copy(scratch, k.Data[at:])
			}
		})
		b.Run(name+"/read", func(b *testing.B) {
			m := newMerger(perftest.Readers(rings))
			d := Decoder{MaxStack: sys.MaxStackDepth, Registers: c.registers}
			var rec Record
			b.ReportAllocs()
			b.SetBytes(int64(len(words) * ring.WordSize))
			for b.Loop() {
				got, _ := m.next()
				if got == nil {
					for _, k := range rings {
						k.Rewind()
					}
					m.begin(2)
					got, _ = m.next()
				}
				d.decode(got, &rec)
			}
			require.Equal(b, c.registers != RegisterSet{}, len(rec.Sample.Stack) > 0)
		})
	}
}
