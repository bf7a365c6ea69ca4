// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// trailed appends what records of switch sessions end in.
func (p *packed) trailed(pid uint32, time int64) []uint64 {
	h := parseHeader(p.words[0])
	p.words = append(p.words, pair(pid, pid), uint64(time))
	return p.header(h.kind, h.misc).words
}

// leaves and comes are the two records of a switch.
func leaves(time int64, from, to uint32) []uint64 {
	return record(recordSwitchCPUWide, miscSwitchOut, pair(to, to)).trailed(from, time)
}

func comes(time int64, from, to uint32) []uint64 {
	return record(recordSwitchCPUWide, 0, pair(from, from)).trailed(to, time)
}

func lostRecord(time int64, count uint64) []uint64 {
	return record(recordLost, 0, 1, count).trailed(0, time)
}

func newSwitchMerger(fakes ...*fakeRing) *switchMerger {
	m := &switchMerger{}
	for i, f := range fakes {
		r := f.ring
		m.rings = append(m.rings, &switchRing{ring: r, cpu: i, coming: nobody})
	}
	return m
}

func readSwitches(m *switchMerger, cutoff int64) (out []SwitchRecord) {
	var rec SwitchRecord
	m.begin(cutoff)
	for m.next(&rec) {
		out = append(out, rec)
	}
	return out
}

func switched(time int64, cpu, from, to int) SwitchRecord {
	return SwitchRecord{Type: TypeSwitch, Time: time, CPU: cpu, PID: to, TID: to, OtherPID: from, OtherTID: from}
}

func TestSwitchRecords(t *testing.T) {
	for _, c := range []struct {
		name    string
		records [][]uint64
		want    []SwitchRecord
		corrupt uint64
	}{
		{
			name:    "the second record of a switch adds nothing",
			records: [][]uint64{leaves(10, 5, 6), comes(11, 5, 6), leaves(20, 6, 0), comes(21, 6, 0)},
			want:    []SwitchRecord{switched(10, 0, 5, 6), switched(20, 0, 6, 0)},
		},
		{
			name:    "but where the one before wrote none",
			records: [][]uint64{leaves(10, 5, 6), comes(30, 6, 7), leaves(40, 7, 8)},
			want:    []SwitchRecord{switched(10, 0, 5, 6), switched(30, 0, 6, 7), switched(40, 0, 7, 8)},
		},
		{
			name:    "and at the beginning",
			records: [][]uint64{comes(30, 6, 7), comes(31, 6, 7)},
			want:    []SwitchRecord{switched(30, 0, 6, 7)},
		},
		{
			name:    "lost records are lost since the one before",
			records: [][]uint64{leaves(10, 5, 6), comes(11, 5, 6), lostRecord(50, 9), comes(50, 5, 6)},
			want:    []SwitchRecord{switched(10, 0, 5, 6), {Type: TypeLost, Time: 10, Count: 9}, switched(50, 0, 5, 6)},
		},
		{
			name:    "a look",
			records: [][]uint64{record(recordSample, miscKernel).trailed(6, 10)},
			want:    []SwitchRecord{{Type: TypeSample, Time: 10, PID: 6, TID: 6}},
		},
		{
			name: "processes, not threads",
			records: [][]uint64{
				record(recordFork, 0, pair(20, 6), pair(20, 6), 10).trailed(6, 10),
				record(recordFork, 0, pair(6, 6), pair(21, 6), 11).trailed(6, 11),
				record(recordExit, 0, pair(6, 1), pair(21, 1), 12).trailed(6, 12),
				record(recordExit, 0, pair(20, 6), pair(20, 6), 13).trailed(20, 13),
				record(recordComm, 0, append([]uint64{pair(6, 6)}, text("name")...)...).trailed(6, 14),
				record(recordComm, miscCommExec, append([]uint64{pair(6, 6)}, text("program")...)...).trailed(6, 15),
			},
			want: []SwitchRecord{
				{Type: TypeFork, Time: 10, PID: 20, TID: 20, OtherPID: 6, OtherTID: 6},
				{Type: TypeExit, Time: 13, PID: 20, TID: 20, OtherPID: 6, OtherTID: 6},
				{Type: TypeExec, Time: 15, PID: 6, TID: 6},
			},
		},
		{
			name:    "what no one asked for",
			records: [][]uint64{record(recordThrottle, 0, 1, 2, 3).trailed(6, 10), leaves(20, 5, 6)},
			want:    []SwitchRecord{switched(20, 0, 5, 6)},
		},
		{
			name: "records too short for what they say they are",
			records: [][]uint64{
				record(recordSwitchCPUWide, miscSwitchOut).trailed(6, 10),
				record(recordFork, 0, 1).trailed(6, 11),
				record(recordComm, miscCommExec).trailed(6, 12),
				record(recordLost, 0, 1).trailed(6, 13),
				leaves(20, 5, 6),
			},
			want:    []SwitchRecord{switched(20, 0, 5, 6)},
			corrupt: 4,
		},
		{
			name:    "after a header without sense all may be missing",
			records: [][]uint64{leaves(10, 5, 6), {0}, leaves(20, 5, 6)},
			want:    []SwitchRecord{switched(10, 0, 5, 6), {Type: TypeLost, Time: 10}},
			corrupt: 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeRing(256, 0)
			for _, words := range c.records {
				require.True(t, f.write(words))
			}
			m := newSwitchMerger(f)
			require.Equal(t, c.want, readSwitches(m, 100))
			require.Equal(t, c.corrupt, m.corrupt)
			require.Equal(t, f.kernelHead, f.kernelTail)
			require.True(t, f.write(leaves(200, 7, 8)))
			require.Equal(t, []SwitchRecord{switched(200, 0, 7, 8)}, readSwitches(m, 300), "the ring is not read on")
		})
	}
}

func TestSwitchesOfAllCPUsComeByTime(t *testing.T) {
	a, b := newFakeRing(256, 0), newFakeRing(256, ^uint64(0)-63)
	a.write(leaves(10, 1, 2))
	a.write(leaves(30, 2, 3))
	a.write(leaves(50, 3, 4))
	b.write(leaves(20, 5, 6))
	b.write(leaves(40, 6, 7))
	m := newSwitchMerger(a, b)
	require.Equal(t, []SwitchRecord{switched(10, 0, 1, 2), switched(20, 1, 5, 6), switched(30, 0, 2, 3)}, readSwitches(m, 35))
	require.Equal(t, []SwitchRecord{switched(40, 1, 6, 7), switched(50, 0, 3, 4)}, readSwitches(m, 55))
	require.Empty(t, readSwitches(m, 100))
	a.write(leaves(1<<62, 4, 5))
	require.Len(t, readSwitches(m, 100), 1, "a time far ahead holds nothing up")
}

// TestNoSwitchIsLostUnsaid plays kernel: what does not fit is lost, and said with
// the next record that does. Whatever was read by then, a reader must have been
// told since when it does not know what runs.
func TestNoSwitchIsLostUnsaid(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	f := newFakeRing(128, 0)
	m := newSwitchMerger(f)
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
			if f.write(words) {
				lost = 0
			} else {
				lost++
			}
			running = next
		}
		for _, rec := range readSwitches(m, now) {
			switch rec.Type {
			case TypeSwitch:
				if believed >= 0 {
					require.Equal(t, believed, rec.OtherPID, "at %d", rec.Time)
				}
				believed = rec.PID
			case TypeLost:
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
	require.NotZero(t, f.lost)
	require.Less(t, unknown, 3000)
	require.Zero(t, m.corrupt)
}

func TestReadingSwitchesAllocatesNothing(t *testing.T) {
	f := newFakeRing(1<<12, 0)
	m := newSwitchMerger(f)
	out, in := leaves(1, 5, 6), comes(1, 5, 6)
	var rec SwitchRecord
	m.begin(2)
	m.next(&rec)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		f.write(out)
		f.write(in)
		m.begin(2)
		for m.next(&rec) {
		}
	}))
}

func FuzzSwitchRing(f *testing.F) {
	seed := slices.Concat(leaves(1, 5, 6), comes(2, 5, 6), lostRecord(3, 9), record(recordFork, 0, pair(20, 6), pair(20, 6), 10).trailed(6, 10))
	f.Add(slices.Clone(bytesOf(seed)), uint64(0), uint16(len(seed)*wordSize))
	f.Add(slices.Clone(bytesOf(seed)), uint64(1016), uint16(len(seed)*wordSize))
	f.Fuzz(func(t *testing.T, raw []byte, position uint64, length uint16) {
		fake := newFakeRing(128, position&^(wordSize-1))
		copy(bytesOf(fake.data), raw)
		fake.kernelHead += uint64(length)
		m := newSwitchMerger(fake)
		var rec SwitchRecord
		m.begin(100)
		for n := 0; m.next(&rec); n++ {
			if n > len(fake.data) {
				t.Fatal("the round does not end")
			}
		}
		m.begin(1 << 62)
		for m.next(&rec) {
		}
		if fake.kernelTail != fake.kernelHead {
			t.Fatalf("tail %d, head %d", fake.kernelTail, fake.kernelHead)
		}
	})
}

// The least that reading could cost, the copy of a switch's two records, stands
// beside reading them: out of the rings, by time, decoded.
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
			fakes := make([]*fakeRing, count)
			for i := range fakes {
				fakes[i] = newFakeRing(1<<12, 0)
				for fakes[i].write(out) && fakes[i].write(in) {
				}
			}
			m := newSwitchMerger(fakes...)
			full := fakes[0].kernelHead
			var rec SwitchRecord
			b.ReportAllocs()
			for b.Loop() {
				if m.next(&rec) && rec.Type == TypeSwitch {
					continue
				}
				for i, f := range fakes { // the same records once more
					r := m.rings[i]
					r.next, r.published, r.maybeLost, f.kernelHead = 0, 0, false, full
				}
				m.begin(2)
				m.next(&rec)
			}
		})
	}
}
