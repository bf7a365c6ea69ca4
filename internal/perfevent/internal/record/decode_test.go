// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/test/perftest"
)

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
			words: perftest.Sample(sys.MiscUser, 1234, sys.ContextUser, 0x10, 0x20),
			want:  with(TypeSample, func(r *Record) { r.Sample = Sample{User: []uint64{0x10, 0x20}, Period: 1000} }),
		},
		{
			name:  "a sample in the kernel has both stacks",
			words: perftest.Sample(sys.MiscKernel, 1234, sys.ContextKernel, 0xffffffff81000000, sys.ContextUser, 0x10, 0x20),
			want: with(TypeSample, func(r *Record) {
				r.Sample = Sample{Kernel: []uint64{0xffffffff81000000}, User: []uint64{0x10, 0x20}, InKernel: true, Period: 1000}
			}),
		},
		{
			name:  "a sample in the kernel whose stack is excluded",
			words: perftest.Sample(sys.MiscKernel, 1234, sys.ContextUser, 0x10),
			want:  with(TypeSample, func(r *Record) { r.Sample = Sample{User: []uint64{0x10}, InKernel: true, Period: 1000} }),
		},
		{
			name:  "a callchain without markers is the interrupted mode's",
			words: perftest.Sample(sys.MiscKernel, 1234, 0xffffffff81000000),
			want: with(TypeSample, func(r *Record) {
				r.Sample = Sample{Kernel: []uint64{0xffffffff81000000}, InKernel: true, Period: 1000}
			}),
		},
		{
			name:  "a guest's and a hypervisor's frames are left out",
			words: perftest.Sample(sys.MiscUser, 1234, ^uint64(0)-31, 0x99, ^uint64(0)-2047, 0x98, sys.ContextUser, 0x10),
			want:  with(TypeSample, func(r *Record) { r.Sample = Sample{User: []uint64{0x10}, Period: 1000} }),
		},
		{
			name:  "a sample without a stack",
			words: perftest.Sample(sys.MiscUser, 1234),
			want:  with(TypeSample, func(r *Record) { r.Sample = Sample{Period: 1000} }),
		},
		{
			name: "a mapping",
			words: perftest.Record(sys.RecordMmap2, sys.MiscUser, append([]uint64{
				perftest.Pair(7, 8), 0x400000, 0x1000, 0x2000, perftest.Pair(254, 1), 42, 5, perftest.Pair(5, 2),
			}, perftest.Text("/usr/bin/true")...)...).SampleID(1234).Words,
			want: with(TypeMmap, func(r *Record) {
				r.Mmap = Mmap{
					PID: 7, TID: 8, Address: 0x400000, Length: 0x1000, Offset: 0x2000,
					DeviceMajor: 254, DeviceMinor: 1, Inode: 42, Prot: 5, Flags: 2,
					Filename: []byte("/usr/bin/true"),
				}
			}),
		},
		{
			name: "a mapping with a build id",
			words: perftest.Record(sys.RecordMmap2, sys.MiscUser|sys.MiscMmapBuildID, append([]uint64{
				perftest.Pair(7, 8), 0x400000, 0x1000, 0x2000, perftest.Text("\x03\x00\x00\x00abc")[0], 0, 0, perftest.Pair(5, 2),
			}, perftest.Text("/a")...)...).SampleID(1234).Words,
			want: with(TypeMmap, func(r *Record) {
				r.Mmap = Mmap{
					PID: 7, TID: 8, Address: 0x400000, Length: 0x1000, Offset: 0x2000,
					Prot: 5, Flags: 2, Filename: []byte("/a"), BuildID: []byte("abc"),
				}
			}),
		},
		{
			name:  "a thread's name",
			words: perftest.Record(sys.RecordComm, 0, append([]uint64{perftest.Pair(7, 8)}, perftest.Text("worker")...)...).SampleID(1234).Words,
			want:  with(TypeComm, func(r *Record) { r.Comm = Comm{PID: 7, TID: 8, Name: []byte("worker")} }),
		},
		{
			name:  "a name set by exec",
			words: perftest.Record(sys.RecordComm, sys.MiscCommExec, append([]uint64{perftest.Pair(7, 7)}, perftest.Text("sh")...)...).SampleID(1234).Words,
			want:  with(TypeComm, func(r *Record) { r.Comm = Comm{PID: 7, TID: 7, Name: []byte("sh"), Exec: true} }),
		},
		{
			name:  "a fork",
			words: perftest.Record(sys.RecordFork, 0, perftest.Pair(9, 7), perftest.Pair(10, 8), 1).SampleID(1234).Words,
			want:  with(TypeFork, func(r *Record) { r.Task = Task{PID: 9, PPID: 7, TID: 10, PTID: 8} }),
		},
		{
			name:  "an exit",
			words: perftest.Record(sys.RecordExit, 0, perftest.Pair(9, 7), perftest.Pair(10, 8), 1).SampleID(1234).Words,
			want:  with(TypeExit, func(r *Record) { r.Task = Task{PID: 9, PPID: 7, TID: 10, PTID: 8} }),
		},
		{
			name:  "a thread that exits has no id any more",
			words: perftest.Record(sys.RecordExit, 0, perftest.Pair(9, ^uint32(0)), perftest.Pair(10, 0), 1).SampleID(1234).Words,
			want:  with(TypeExit, func(r *Record) { r.Task = Task{PID: 9, PPID: -1, TID: 10} }),
		},
		{
			name:  "lost records",
			words: perftest.Record(sys.RecordLost, 0, 99, 17).SampleID(1234).Words,
			want:  with(TypeLost, func(r *Record) { r.Lost.Count = 17 }),
		},
		{
			name:  "lost samples",
			words: perftest.Record(sys.RecordLostSamples, 0, 17).SampleID(1234).Words,
			want:  with(typeLostSamples, func(r *Record) { r.Lost.Count = 17 }),
		},
		{
			name:  "a throttled event",
			words: perftest.Record(sys.RecordThrottle, 0, 1, 99, 99).SampleID(1234).Words,
			want:  with(typeThrottle, func(*Record) {}),
		},
		{
			name:  "a switch out",
			words: perftest.Record(sys.RecordSwitch, sys.MiscSwitchOut).SampleID(1234).Words,
			want:  with(TypeSwitch, func(r *Record) { r.Switch = Switch{Out: true} }),
		},
		{
			name:  "a user address in the kernel's stack",
			words: perftest.Sample(sys.MiscKernel, 1234, sys.ContextKernel, 0xffffffff81000000, 0x55f605f6c9a8, 0xffffffff82000000, sys.ContextUser, 0x10),
			want: with(TypeSample, func(r *Record) {
				r.Sample = Sample{Kernel: []uint64{0xffffffff81000000}, User: []uint64{0x10}, InKernel: true, Period: 1000}
			}),
		},
		{
			name:  "a preemption, CPU-wide",
			words: perftest.Record(sys.RecordSwitchCPUWide, sys.MiscSwitchOut|sys.MiscSwitchOutPreempt, perftest.Pair(20, 21)).SampleID(1234).Words,
			want:  with(TypeSwitch, func(r *Record) { r.Switch = Switch{Out: true, Preempted: true} }),
		},
		{
			name:  "a switch in, CPU-wide",
			words: perftest.Record(sys.RecordSwitchCPUWide, 0, perftest.Pair(20, 21)).SampleID(1234).Words,
			want:  with(TypeSwitch, func(r *Record) { r.Switch = Switch{} }),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := Decoder{MaxStack: sys.MaxStackDepth}
			var got Record
			require.Equal(t, decoded, d.decode(test.words, &got))
			require.Equal(t, test.want, got)

			for n := range len(test.words) { // a record that is cut at any word is corrupt
				cut := slices.Clone(test.words[:n])
				require.Equal(t, corrupt, d.decode(cut, &got))
			}
		})
	}
}

func TestDecodeRejectsCorruptRecords(t *testing.T) {
	d := Decoder{MaxStack: sys.MaxStackDepth}
	var rec Record
	long := perftest.Sample(sys.MiscUser, 1, sys.ContextUser, 1)
	long[sampleIPs-1] = 3
	require.Equal(t, corrupt, d.decode(long, &rec), "a callchain longer than its record")
	long[sampleIPs-1] = 1 << 63
	require.Equal(t, corrupt, d.decode(long, &rec), "a callchain whose size overflows")
	for _, kind := range []uint32{sys.RecordMmap2, sys.RecordComm, sys.RecordFork, sys.RecordExit, sys.RecordLost, sys.RecordLostSamples} {
		require.Equal(t, corrupt, d.decode(perftest.Record(kind, 0).SampleID(1).Words, &rec), "record %d without its body", kind)
	}
	require.Equal(t, skipped, d.decode(perftest.Record(16, 0, 1, 2).SampleID(1).Words, &rec), "a record that no event asks for")
}

func TestDecodeCgroupOfSample(t *testing.T) {
	words := perftest.Sample(sys.MiscUser, 1, sys.ContextUser, 0x10)
	words = with(words, 4711)
	d := Decoder{Cgroup: true, MaxStack: sys.MaxStackDepth}
	var rec Record
	require.Equal(t, decoded, d.decode(words, &rec))
	require.Equal(t, uint64(4711), rec.Sample.CgroupID)
	require.Equal(t, []uint64{0x10}, rec.Sample.User)

	require.Equal(t, decoded, d.decode(with(perftest.Sample(sys.MiscUser, 1), 0), &rec))
	require.Zero(t, rec.Sample.CgroupID)
	require.Empty(t, rec.Sample.User)
}

func TestDecodeReportsTruncatedStacks(t *testing.T) {
	d := Decoder{MaxStack: 4}
	for name, test := range map[string]struct {
		ips  []uint64
		want bool
	}{
		"below":             {[]uint64{sys.ContextUser, 1, 2, 3}, false},
		"user at the limit": {[]uint64{sys.ContextUser, 1, 2, 3, 4}, true},
		"both at the limit": {[]uint64{sys.ContextKernel, 1 << 63, 1 << 63, sys.ContextUser, 3, 4}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var rec Record
			require.Equal(t, decoded, d.decode(perftest.Sample(sys.MiscKernel, 1, test.ips...), &rec))
			require.Equal(t, test.want, rec.Sample.Truncated)
		})
	}
}

func FuzzDecode(f *testing.F) {
	add := func(words []uint64) { f.Add(slices.Clone(ring.Bytes(words)), true) }
	add(perftest.Sample(sys.MiscKernel, 1, sys.ContextKernel, 1, sys.ContextUser, 2, 3))
	add(perftest.Record(sys.RecordMmap2, sys.MiscMmapBuildID, make([]uint64, 12)...).SampleID(1).Words)
	add(perftest.Record(sys.RecordComm, 0, append([]uint64{1}, perftest.Text("a")...)...).SampleID(1).Words)
	add(perftest.Record(sys.RecordSwitchCPUWide, 0, 1).SampleID(1).Words)
	add(perftest.Record(sys.RecordFork, 0, 1, 2, 3).SampleID(1).Words)
	f.Fuzz(func(t *testing.T, raw []byte, cgroup bool) {
		words := make([]uint64, len(raw)/ring.WordSize)
		copy(ring.Bytes(words), raw)
		var rec Record
		for _, w := range [][]uint64{words, withTrueSize(words)} {
			d := Decoder{Cgroup: cgroup, MaxStack: sys.MaxStackDepth}
			if d.decode(w, &rec) != decoded {
				continue
			}
			if rec.Type < TypeSample || rec.Type > typeThrottle {
				t.Fatalf("type %d", rec.Type)
			}
			if rec.Type == TypeSample && len(rec.Sample.Kernel)+len(rec.Sample.User) > len(w) {
				t.Fatal("more addresses than words")
			}
			for _, ip := range slices.Concat(rec.Sample.Kernel, rec.Sample.User) {
				if rec.Type == TypeSample && ip >= sys.ContextMax {
					t.Fatalf("marker %#x decoded as an address", ip)
				}
			}
		}
	})
}

// withTrueSize corrects the size of a record, so that fuzzed bodies are decoded.
func withTrueSize(words []uint64) []uint64 {
	if len(words) == 0 || len(words) >= ring.MaxRecordWords {
		return nil
	}
	h, _ := ring.ParseRecord(words)
	return perftest.Record(h.Kind%24, h.Misc, words[1:]...).Words
}
