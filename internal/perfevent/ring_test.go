// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeRing is a ring with the kernel's end of it.
type fakeRing struct {
	ring
	kernelHead, kernelTail uint64
	lost                   int
}

func newFakeRing(words int, position uint64) *fakeRing {
	f := &fakeRing{kernelHead: position, kernelTail: position}
	f.ring = ring{
		head: &f.kernelHead, tail: &f.kernelTail, data: make([]uint64, words),
		next: position, published: position,
	}
	return f
}

// write does what perf_output_begin does: what does not fit is lost.
func (f *fakeRing) write(words []uint64) bool {
	if f.kernelHead+uint64(len(words)*wordSize)-f.kernelTail > uint64(len(f.data)*wordSize) {
		f.lost++
		return false
	}
	for _, w := range words {
		f.data[f.kernelHead/wordSize&uint64(len(f.data)-1)] = w
		f.kernelHead += wordSize
	}
	return true
}

func readRound(m *merger, cutoff int64) (times []int64, records [][]uint64) {
	m.begin(cutoff)
	for {
		words, r := m.next()
		if words == nil {
			return times, records
		}
		times = append(times, recordTime(words))
		records = append(records, slices.Clone(words))
		_ = r
	}
}

func recordTime(words []uint64) int64 {
	d := decoder{maxStack: maxStackDepth}
	var rec Record
	d.decode(words, &rec)
	return rec.Time
}

func TestRingGivesBackWhatItTook(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	// Positions wrap at the buffer's end all the time, and at 2^64 once.
	for _, position := range []uint64{0, ^uint64(0) - 1<<14 + 1} {
		f := newFakeRing(512, position)
		m := newMerger([]*ring{&f.ring})
		now := int64(0)
		for range 500 {
			var want [][]uint64
			for range random.IntN(20) {
				now++
				ips := make([]uint64, random.IntN(40))
				for i := range ips {
					ips[i] = random.Uint64()
				}
				if words := sampleWords(miscUser, now, ips...); f.write(words) {
					want = append(want, words)
				}
			}
			_, got := readRound(m, now)
			require.Equal(t, want, got)
			require.Equal(t, f.kernelHead, f.kernelTail)
		}
		require.Zero(t, m.corrupt)
		require.NotZero(t, f.lost, "the ring was never full")
	}
}

func TestRingMakesRoomDuringARound(t *testing.T) {
	f := newFakeRing(64, 0)
	words := sampleWords(miscUser, 1, 1) // 8 words
	for range 8 {
		require.True(t, f.write(words))
	}
	m := newMerger([]*ring{&f.ring})
	m.begin(1)
	for range 3 {
		m.next()
	}
	require.True(t, f.write(words), "a quarter was read and not given back")
}

func TestMergeByTime(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	rings := make([]*ring, 7)
	fakes := make([]*fakeRing, len(rings))
	for i := range rings {
		fakes[i] = newFakeRing(1<<12, 0)
		rings[i] = &fakes[i].ring
	}
	m := newMerger(rings)
	now, written := int64(0), 0
	var got []int64
	for range 300 {
		for range random.IntN(100) {
			now += int64(random.IntN(3))
			f := fakes[random.IntN(len(fakes))]
			if random.IntN(2) == 0 {
				require.True(t, f.write(sampleWords(miscUser, now, 1)))
			} else {
				require.True(t, f.write(record(recordFork, 0, 1, 2, 3).sampleIDAll(now).words))
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

func TestMergeLeavesWhatCameAfterTheRoundBegan(t *testing.T) {
	a, b := newFakeRing(256, 0), newFakeRing(256, 0)
	m := newMerger([]*ring{&a.ring, &b.ring})
	a.write(sampleWords(miscUser, 10, 1))
	b.write(sampleWords(miscUser, 5, 1))
	b.write(sampleWords(miscUser, 15, 1))

	times, _ := readRound(m, 12)
	require.Equal(t, []int64{5, 10}, times)
	require.True(t, m.pending)
	times, _ = readRound(m, 20)
	require.Equal(t, []int64{15}, times)
	require.False(t, m.pending)
}

func TestMergeIsNotHeldUpByATimeFarAhead(t *testing.T) {
	a := newFakeRing(256, 0)
	m := newMerger([]*ring{&a.ring})
	a.write(sampleWords(miscUser, 1<<62, 1))
	a.write(sampleWords(miscUser, 5, 1))
	times, _ := readRound(m, 10)
	require.Len(t, times, 2)
}

func TestRingSkipsWhatHasNoSensibleHeader(t *testing.T) {
	zero := record(recordSample, 0)
	zero.words[0] = 0
	odd := record(recordSample, 0, 1, 2)
	odd.words[0] += pair(0, 1<<16) // in the upper half of the second word's field: the size
	long := record(recordSample, 0, make([]uint64, 200)...)
	long.words = long.words[:3]
	for name, bad := range map[string][]uint64{"no size": zero.words, "a size not of words": odd.words, "a size beyond the head": long.words} {
		t.Run(name, func(t *testing.T) {
			f := newFakeRing(256, 0)
			m := newMerger([]*ring{&f.ring})
			f.write(sampleWords(miscUser, 1, 1))
			f.write(bad)
			times, _ := readRound(m, 10)
			require.Equal(t, []int64{1}, times)
			require.Equal(t, uint64(1), m.corrupt)
			require.Equal(t, f.kernelHead, f.kernelTail)

			f.write(sampleWords(miscUser, 2, 1))
			times, _ = readRound(m, 10)
			require.Equal(t, []int64{2}, times, "the ring is not read on")
		})
	}
}

func TestRingRefusesAHeadBeyondItsSize(t *testing.T) {
	f := newFakeRing(64, 0)
	f.kernelHead = 1 << 20
	m := newMerger([]*ring{&f.ring})
	times, _ := readRound(m, 10)
	require.Empty(t, times)
	require.Equal(t, uint64(1), m.corrupt)
}

func FuzzRing(f *testing.F) {
	seed := slices.Concat(sampleWords(miscUser, 1, contextUser, 2), record(recordFork, 0, 1, 2, 3).sampleIDAll(2).words)
	f.Add(slices.Clone(bytesOf(seed)), uint64(0), uint16(len(seed)*wordSize))
	f.Add(slices.Clone(bytesOf(seed)), uint64(1016), uint16(len(seed)*wordSize))
	f.Fuzz(func(t *testing.T, raw []byte, position uint64, length uint16) {
		fake := newFakeRing(128, position&^(wordSize-1))
		copy(bytesOf(fake.data), raw)
		fake.kernelHead += uint64(length)
		m := newMerger([]*ring{&fake.ring})
		d := decoder{cgroup: length%2 == 0, maxStack: maxStackDepth}
		var rec Record
		m.begin(100)
		for n := 0; ; n++ {
			words, _ := m.next()
			if words == nil {
				break
			}
			d.decode(words, &rec)
			if n > len(fake.data) {
				t.Fatal("the round does not end")
			}
		}
		if !m.pending && fake.kernelTail != fake.kernelHead {
			t.Fatalf("tail %d, head %d", fake.kernelTail, fake.kernelHead)
		}
	})
}

func TestReadingAllocatesNothing(t *testing.T) {
	f := newFakeRing(1<<12, 0)
	m := newMerger([]*ring{&f.ring})
	d := decoder{maxStack: maxStackDepth}
	words := sampleWords(miscKernel, 1, deepStack()...)
	mapping := record(recordMmap2, 0, append(make([]uint64, 8), text("/usr/bin/true")...)...).sampleIDAll(1).words
	var rec Record
	require.Zero(t, testing.AllocsPerRun(100, func() {
		f.write(words)
		f.write(mapping)
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

func deepStack() []uint64 {
	ips := []uint64{contextKernel}
	for i := range 20 {
		ips = append(ips, 0xffffffff81000000+uint64(i))
	}
	ips = append(ips, contextUser)
	for i := range 40 {
		ips = append(ips, 0x400000+uint64(i))
	}
	return ips
}

// The least that reading could cost, the copy of a record's bytes, stands beside
// reading it: out of the ring, by time, decoded.
func BenchmarkReadSample(b *testing.B) {
	words := sampleWords(miscKernel, 1, deepStack()...)
	b.Run("copy", func(b *testing.B) {
		scratch := make([]uint64, len(words))
		b.ReportAllocs()
		b.SetBytes(int64(len(words) * wordSize))
		for b.Loop() {
			copy(scratch, words)
		}
	})
	for name, count := range map[string]int{"1 ring": 1, "16 rings": 16, "512 rings": 512} {
		b.Run(name, func(b *testing.B) {
			fakes := make([]*fakeRing, count)
			rings := make([]*ring, count)
			for i := range fakes {
				fakes[i] = newFakeRing(1<<12, 0)
				rings[i] = &fakes[i].ring
				for fakes[i].write(words) {
					fakes[i].kernelTail = 0
				}
			}
			m := newMerger(rings)
			d := decoder{maxStack: maxStackDepth}
			var rec Record
			full := fakes[0].kernelHead
			b.ReportAllocs()
			b.SetBytes(int64(len(words) * wordSize))
			for b.Loop() {
				got, _ := m.next()
				if got == nil {
					for _, f := range fakes { // the same records once more
						f.next, f.published, f.kernelHead = 0, 0, full
					}
					m.begin(2)
					got, _ = m.next()
				}
				d.decode(got, &rec)
			}
		})
	}
}
