// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// packed builds records as the kernel lays them out.
type packed struct{ words []uint64 }

func record(kind uint32, misc uint16, body ...uint64) *packed {
	p := &packed{words: append([]uint64{0}, body...)}
	return p.header(kind, misc)
}

func (p *packed) header(kind uint32, misc uint16) *packed {
	var b [wordSize]byte
	binary.NativeEndian.PutUint32(b[:], kind)
	binary.NativeEndian.PutUint16(b[4:], misc)
	binary.NativeEndian.PutUint16(b[6:], uint16(len(p.words)*wordSize))
	p.words[0] = binary.NativeEndian.Uint64(b[:])
	return p
}

// sampleIDAll appends struct sample_id: pid 7, tid 8, CPU 3, id 99.
func (p *packed) sampleIDAll(time int64) *packed {
	h := parseHeader(p.words[0])
	p.words = append(p.words, pair(7, 8), uint64(time), pair(3, 0), 99)
	return p.header(h.kind, h.misc)
}

func pair(first, second uint32) uint64 {
	var b [wordSize]byte
	binary.NativeEndian.PutUint32(b[:], first)
	binary.NativeEndian.PutUint32(b[4:], second)
	return binary.NativeEndian.Uint64(b[:])
}

func text(s string) []uint64 {
	b := append([]byte(s), make([]byte, wordSize-len(s)%wordSize)...)
	words := make([]uint64, len(b)/wordSize)
	copy(bytesOf(words), b)
	return words
}

func sampleWords(misc uint16, time int64, ips ...uint64) []uint64 {
	body := append([]uint64{99, pair(7, 8), uint64(time), pair(3, 0), 1000, uint64(len(ips))}, ips...)
	return record(recordSample, misc, body...).words
}

func TestDecode(t *testing.T) {
	from := Record{PID: 7, TID: 8, CPU: 3, ID: 99, Time: 1234}
	with := func(kind Type, set func(*Record)) Record {
		r := from
		r.Type = kind
		set(&r)
		return r
	}
	tests := []struct {
		name  string
		words []uint64
		want  Record
	}{
		{
			name:  "a sample in user mode",
			words: sampleWords(miscUser, 1234, contextUser, 0x10, 0x20),
			want:  with(TypeSample, func(r *Record) { r.Sample = Sample{User: []uint64{0x10, 0x20}, Period: 1000} }),
		},
		{
			name:  "a sample in the kernel has both stacks",
			words: sampleWords(miscKernel, 1234, contextKernel, 0xffffffff81000000, contextUser, 0x10, 0x20),
			want: with(TypeSample, func(r *Record) {
				r.Sample = Sample{Kernel: []uint64{0xffffffff81000000}, User: []uint64{0x10, 0x20}, InKernel: true, Period: 1000}
			}),
		},
		{
			name:  "a sample in the kernel whose stack is excluded",
			words: sampleWords(miscKernel, 1234, contextUser, 0x10),
			want:  with(TypeSample, func(r *Record) { r.Sample = Sample{User: []uint64{0x10}, InKernel: true, Period: 1000} }),
		},
		{
			name:  "a callchain without markers is the interrupted mode's",
			words: sampleWords(miscKernel, 1234, 0xffffffff81000000),
			want: with(TypeSample, func(r *Record) {
				r.Sample = Sample{Kernel: []uint64{0xffffffff81000000}, InKernel: true, Period: 1000}
			}),
		},
		{
			name:  "a guest's and a hypervisor's frames are left out",
			words: sampleWords(miscUser, 1234, ^uint64(0)-31, 0x99, ^uint64(0)-2047, 0x98, contextUser, 0x10),
			want:  with(TypeSample, func(r *Record) { r.Sample = Sample{User: []uint64{0x10}, Period: 1000} }),
		},
		{
			name:  "a sample without a stack",
			words: sampleWords(miscUser, 1234),
			want:  with(TypeSample, func(r *Record) { r.Sample = Sample{Period: 1000} }),
		},
		{
			name: "a mapping",
			words: record(recordMmap2, miscUser, append([]uint64{
				pair(7, 8), 0x400000, 0x1000, 0x2000, pair(254, 1), 42, 5, pair(5, 2),
			}, text("/usr/bin/true")...)...).sampleIDAll(1234).words,
			want: with(TypeMmap, func(r *Record) {
				r.Mmap = Mmap{
					PID: 7, TID: 8, Address: 0x400000, Length: 0x1000, Offset: 0x2000,
					DeviceMajor: 254, DeviceMinor: 1, Inode: 42, InodeGeneration: 5, Prot: 5, Flags: 2,
					Filename: []byte("/usr/bin/true"),
				}
			}),
		},
		{
			name: "a mapping with a build id",
			words: record(recordMmap2, miscUser|miscMmapBuildID, append([]uint64{
				pair(7, 8), 0x400000, 0x1000, 0x2000, text("\x03\x00\x00\x00abc")[0], 0, 0, pair(5, 2),
			}, text("/a")...)...).sampleIDAll(1234).words,
			want: with(TypeMmap, func(r *Record) {
				r.Mmap = Mmap{
					PID: 7, TID: 8, Address: 0x400000, Length: 0x1000, Offset: 0x2000,
					Prot: 5, Flags: 2, Filename: []byte("/a"), BuildID: []byte("abc"),
				}
			}),
		},
		{
			name:  "a thread's name",
			words: record(recordComm, 0, append([]uint64{pair(7, 8)}, text("worker")...)...).sampleIDAll(1234).words,
			want:  with(TypeComm, func(r *Record) { r.Comm = Comm{PID: 7, TID: 8, Name: []byte("worker")} }),
		},
		{
			name:  "a name by exec",
			words: record(recordComm, miscCommExec, append([]uint64{pair(7, 7)}, text("sh")...)...).sampleIDAll(1234).words,
			want:  with(TypeComm, func(r *Record) { r.Comm = Comm{PID: 7, TID: 7, Name: []byte("sh"), Exec: true} }),
		},
		{
			name:  "a fork",
			words: record(recordFork, 0, pair(9, 7), pair(10, 8), 1).sampleIDAll(1234).words,
			want:  with(TypeFork, func(r *Record) { r.Task = Task{PID: 9, PPID: 7, TID: 10, PTID: 8} }),
		},
		{
			name:  "an exit",
			words: record(recordExit, 0, pair(9, 7), pair(10, 8), 1).sampleIDAll(1234).words,
			want:  with(TypeExit, func(r *Record) { r.Task = Task{PID: 9, PPID: 7, TID: 10, PTID: 8} }),
		},
		{
			name:  "a thread that exits has no id any more",
			words: record(recordExit, 0, pair(9, ^uint32(0)), pair(10, 0), 1).sampleIDAll(1234).words,
			want:  with(TypeExit, func(r *Record) { r.Task = Task{PID: 9, PPID: -1, TID: 10} }),
		},
		{
			name:  "lost records",
			words: record(recordLost, 0, 99, 17).sampleIDAll(1234).words,
			want:  with(TypeLost, func(r *Record) { r.Lost.Count = 17 }),
		},
		{
			name:  "lost samples",
			words: record(recordLostSamples, 0, 17).sampleIDAll(1234).words,
			want:  with(TypeLostSamples, func(r *Record) { r.Lost.Count = 17 }),
		},
		{
			name:  "a throttled event",
			words: record(recordThrottle, 0, 1, 99, 99).sampleIDAll(1234).words,
			want:  with(TypeThrottle, func(*Record) {}),
		},
		{
			name:  "an event that goes on",
			words: record(recordUnthrottle, 0, 1, 99, 99).sampleIDAll(1234).words,
			want:  with(TypeUnthrottle, func(*Record) {}),
		},
		{
			name:  "a cgroup",
			words: record(recordCgroup, 0, append([]uint64{77}, text("/a/b")...)...).sampleIDAll(1234).words,
			want:  with(TypeCgroup, func(r *Record) { r.Cgroup = Cgroup{ID: 77, Path: []byte("/a/b")} }),
		},
		{
			name:  "a switch out",
			words: record(recordSwitch, miscSwitchOut).sampleIDAll(1234).words,
			want:  with(TypeSwitch, func(r *Record) { r.Switch = Switch{Out: true} }),
		},
		{
			name:  "a preemption, CPU-wide",
			words: record(recordSwitchCPUWide, miscSwitchOut|miscSwitchOutPreempt, pair(20, 21)).sampleIDAll(1234).words,
			want:  with(TypeSwitch, func(r *Record) { r.Switch = Switch{Out: true, Preempted: true, OtherPID: 20, OtherTID: 21} }),
		},
		{
			name:  "a switch in, CPU-wide",
			words: record(recordSwitchCPUWide, 0, pair(20, 21)).sampleIDAll(1234).words,
			want:  with(TypeSwitch, func(r *Record) { r.Switch = Switch{OtherPID: 20, OtherTID: 21} }),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := decoder{maxStack: maxStackDepth}
			var got Record
			require.Equal(t, decoded, d.decode(test.words, &got))
			require.Equal(t, test.want, got)

			for n := range len(test.words) { // cut anywhere it must be refused, not misread
				cut := slices.Clone(test.words[:n])
				require.Equal(t, corrupt, d.decode(cut, &got))
			}
		})
	}
}

func TestDecodeOfRecordsThatSayTooMuch(t *testing.T) {
	d := decoder{maxStack: maxStackDepth}
	var rec Record
	long := sampleWords(miscUser, 1, contextUser, 1)
	long[sampleNr] = 3
	require.Equal(t, corrupt, d.decode(long, &rec), "a callchain longer than its record")
	long[sampleNr] = 1 << 63
	require.Equal(t, corrupt, d.decode(long, &rec), "a callchain whose size overflows")
	for _, kind := range []uint32{recordMmap2, recordComm, recordFork, recordExit, recordLost, recordLostSamples, recordSwitchCPUWide, recordCgroup} {
		require.Equal(t, corrupt, d.decode(record(kind, 0).sampleIDAll(1).words, &rec), "record %d without its body", kind)
	}
	require.Equal(t, skipped, d.decode(record(16, 0, 1, 2).sampleIDAll(1).words, &rec), "a record that no event asks for")
}

func TestDecodeCgroupOfSample(t *testing.T) {
	words := sampleWords(miscUser, 1, contextUser, 0x10)
	words = (&packed{words: append(words, 4711)}).header(recordSample, miscUser).words
	d := decoder{cgroup: true, maxStack: maxStackDepth}
	var rec Record
	require.Equal(t, decoded, d.decode(words, &rec))
	require.Equal(t, uint64(4711), rec.Sample.CgroupID)
	require.Equal(t, []uint64{0x10}, rec.Sample.User)

	require.Equal(t, decoded, d.decode((&packed{words: append(sampleWords(miscUser, 1), 0)}).header(recordSample, miscUser).words, &rec))
	require.Zero(t, rec.Sample.CgroupID)
	require.Empty(t, rec.Sample.User)
}

func TestDecodeMarksTheDepthLimit(t *testing.T) {
	d := decoder{maxStack: 4}
	for name, test := range map[string]struct {
		ips  []uint64
		want bool
	}{
		"below":             {[]uint64{contextUser, 1, 2, 3}, false},
		"user at the limit": {[]uint64{contextUser, 1, 2, 3, 4}, true},
		"both at the limit": {[]uint64{contextKernel, 1, 2, contextUser, 3, 4}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var rec Record
			require.Equal(t, decoded, d.decode(sampleWords(miscKernel, 1, test.ips...), &rec))
			require.Equal(t, test.want, rec.Sample.Truncated)
		})
	}
}

func FuzzDecode(f *testing.F) {
	add := func(words []uint64) { f.Add(slices.Clone(bytesOf(words)), true) }
	add(sampleWords(miscKernel, 1, contextKernel, 1, contextUser, 2, 3))
	add(record(recordMmap2, miscMmapBuildID, make([]uint64, 12)...).sampleIDAll(1).words)
	add(record(recordComm, 0, append([]uint64{1}, text("a")...)...).sampleIDAll(1).words)
	add(record(recordCgroup, 0, append([]uint64{1}, text("/a")...)...).sampleIDAll(1).words)
	add(record(recordSwitchCPUWide, 0, 1).sampleIDAll(1).words)
	add(record(recordFork, 0, 1, 2, 3).sampleIDAll(1).words)
	f.Fuzz(func(t *testing.T, raw []byte, cgroup bool) {
		words := make([]uint64, len(raw)/wordSize)
		copy(bytesOf(words), raw)
		var rec Record
		for _, w := range [][]uint64{words, withTrueSize(words)} {
			d := decoder{cgroup: cgroup, maxStack: maxStackDepth}
			if d.decode(w, &rec) != decoded {
				continue
			}
			if rec.Type < TypeSample || rec.Type > TypeSwitch {
				t.Fatalf("type %d", rec.Type)
			}
			if rec.Type == TypeSample && len(rec.Sample.Kernel)+len(rec.Sample.User) > len(w) {
				t.Fatal("more addresses than words")
			}
			for _, ip := range slices.Concat(rec.Sample.Kernel, rec.Sample.User) {
				if rec.Type == TypeSample && ip >= contextMax {
					t.Fatalf("marker %#x taken for an address", ip)
				}
			}
		}
	})
}

// withTrueSize lets a fuzzed body past the check of its length.
func withTrueSize(words []uint64) []uint64 {
	if len(words) == 0 || len(words) >= maxRecordWords {
		return nil
	}
	h := parseHeader(words[0])
	return (&packed{words: slices.Clone(words)}).header(h.kind%24, h.misc).words
}
