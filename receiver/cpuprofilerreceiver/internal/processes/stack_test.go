// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

const maps = `1000-5000 r-xp 00000000 08:01 7                          /bin/shop
5000-6000 rw-p 00004000 08:01 7                          /bin/shop
7000-8000 rwxp 00000000 00:00 0 
9000-a000 r-xp 00002000 08:01 8                          /lib/a\012b.so
b000-c000 r-xp 00000000 00:00 0                          [vdso]
`

func mapped(t testing.TB, change func(*Config)) (*Table, *Process) {
	h := newHost(t, false)
	h.process(100, proc{name: "shop", exe: "/bin/shop", ticks: 1, maps: maps})
	table := h.table(change)
	return table, table.Lookup(100, 0)
}

func TestStackHasMappingsAndLeaves(t *testing.T) {
	_, p := mapped(t, nil)
	s := p.Stack(&perfevent.Sample{
		Kernel: []uint64{0xffffffff81000010, 0xffffffff81000020},
		User:   []uint64{0x1000, 0x5000, 0x9010, 0xb001, 0x7500, 0x6000, 0, 1<<64 - 1},
	}, false)
	type frame struct {
		Type   samples.FrameType
		Path   string
		Leaf   bool
		Offset uint64
	}
	var got []frame
	for _, l := range s.Locations {
		f := frame{Type: l.Type, Leaf: l.Leaf}
		if l.Mapping != nil {
			f.Path = l.Mapping.Path
			f.Offset = l.Mapping.FileOffset
		}
		got = append(got, f)
	}
	require.Equal(t, []frame{
		{samples.FrameKernel, "[kernel.kallsyms]", true, 0},
		{samples.FrameKernel, "[kernel.kallsyms]", false, 0},
		{samples.FrameNative, "/bin/shop", true, 0},
		{samples.FrameNative, "/bin/shop", false, 0}, // the call is the last instruction of the mapping
		{samples.FrameNative, "/lib/a\nb.so", false, 0x2000},
		{samples.FrameNative, "[vdso]", false, 0},
		{samples.FrameNative, "", false, 0}, // an anonymous mapping
		{samples.FrameNative, "", false, 0}, // a mapping that is not executable
		{samples.FrameNative, "", false, 0},
		{samples.FrameNative, "", false, 0},
	}, got)
	require.Nil(t, p.Stack(&perfevent.Sample{}, false), "no frames, no stack")
}

func TestStacksAreInterned(t *testing.T) {
	table, p := mapped(t, nil)
	a := p.Stack(&perfevent.Sample{Kernel: []uint64{1, 2}, User: []uint64{0x1100}}, false)
	require.Same(t, a, p.Stack(&perfevent.Sample{Kernel: []uint64{1, 2}, User: []uint64{0x1100}}, false))
	for _, other := range []perfevent.Sample{
		{Kernel: []uint64{1}, User: []uint64{2, 0x1100}},
		{User: []uint64{1, 2, 0x1100}},
		{Kernel: []uint64{1, 2}},
		{Kernel: []uint64{1, 2}, User: []uint64{0x1100, 0x1200}},
	} {
		require.NotSame(t, a, p.Stack(&other, false))
	}
	require.Equal(t, 5, table.Stats().Stacks)

	b := p.Stack(&perfevent.Sample{User: []uint64{0x1200, 0x1100}}, false)
	c := p.Stack(&perfevent.Sample{User: []uint64{0x1300, 0x1100}}, false)
	require.Same(t, b.Locations[1], c.Locations[1], "frames are interned too")
	require.NotSame(t, a.Locations[2], b.Locations[1], "a leaf is not a return address")
}

func TestCollisionDoesNotMixStacks(t *testing.T) {
	_, p := mapped(t, nil)
	a := p.Stack(&perfevent.Sample{User: []uint64{0x1100}}, false)
	other := &perfevent.Sample{User: []uint64{0x1200}}
	h := hash(nil, other.User)
	p.space.stacks[h] = p.space.stacks[hash(nil, []uint64{0x1100})]
	b := p.Stack(other, false)
	require.NotSame(t, a, b)
	require.EqualValues(t, 0x1200, b.Locations[0].Address)
	require.Same(t, b, p.Stack(other, false))
}

func TestHashTellsSimilarStacksApart(t *testing.T) {
	seen := map[uint64]string{}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 20000 {
		kernel, user := make([]uint64, r.IntN(3)), make([]uint64, 1+r.IntN(4))
		for j := range kernel {
			kernel[j] = 0xffffffff81000000 + uint64(r.IntN(8))*16
		}
		for j := range user {
			user[j] = 0x400000 + uint64(r.IntN(8))*4
		}
		stack := fmt.Sprint(kernel, user)
		h := hash(kernel, user)
		if was, ok := seen[h]; ok {
			require.Equal(t, was, stack, "after %d", i)
		}
		seen[h] = stack
	}
}

func TestMmapChangesWhatAddressesMean(t *testing.T) {
	table, p := mapped(t, nil)
	sample := &perfevent.Sample{User: []uint64{0x2000, 0x1100, 0x7800}}
	before := p.Stack(sample, false)

	t.Run("what is known already changes nothing", func(t *testing.T) {
		table.Mmap(100, &perfevent.Mmap{Address: 0x1000, Length: 0x4000, Inode: 7, Prot: 5, Filename: []byte("/bin/shop")})
		require.Same(t, before, table.Lookup(100, 0).Stack(sample, false))
	})
	t.Run("nor does memory without a file", func(t *testing.T) {
		table.Mmap(100, &perfevent.Mmap{Address: 0x7000, Length: 0x1000, Prot: 7, Filename: []byte("//anon")})
		require.Same(t, before, table.Lookup(100, 0).Stack(sample, false))
	})
	t.Run("a library in the middle of another mapping", func(t *testing.T) {
		table.Mmap(100, &perfevent.Mmap{Address: 0x2000, Length: 0x1000, Offset: 0x300, Inode: 9, Prot: 5, Filename: []byte("/lib/new.so"), BuildID: []byte{0xab, 0x01}})
		p = table.Lookup(100, 0)
		s := p.Stack(&perfevent.Sample{User: []uint64{0x2000, 0x1100, 0x3001, 0x3000, 0x7800}}, false)
		require.Equal(t, "/lib/new.so", s.Locations[0].Mapping.Path)
		require.Equal(t, "ab01", s.Locations[0].Mapping.BuildID)
		require.Equal(t, samples.Mapping{PID: 100, Start: 0x1000, Limit: 0x2000, Path: "/bin/shop", DeviceMajor: 8, DeviceMinor: 1, Inode: 7}, *s.Locations[1].Mapping)
		require.Equal(t, samples.Mapping{PID: 100, Start: 0x3000, Limit: 0x5000, FileOffset: 0x2000, Path: "/bin/shop", DeviceMajor: 8, DeviceMinor: 1, Inode: 7}, *s.Locations[2].Mapping)
		require.Equal(t, "/lib/new.so", s.Locations[3].Mapping.Path)
		require.Equal(t, "/bin/shop", before.Locations[0].Mapping.Path, "what a batch holds does not change")
		require.EqualValues(t, 0x5000, before.Locations[0].Mapping.Limit)
	})
	t.Run("a library where addresses had no mapping", func(t *testing.T) {
		table.Mmap(100, &perfevent.Mmap{Address: 0x7000, Length: 0x1000, Inode: 10, Prot: 5, Filename: []byte("/lib/jit.so")})
		require.Equal(t, "/lib/jit.so", table.Lookup(100, 0).Stack(sample, false).Locations[2].Mapping.Path)
	})
	t.Run("memory over everything", func(t *testing.T) {
		table.Mmap(100, &perfevent.Mmap{Address: 0, Length: 0x20000, Prot: 7, Filename: []byte("//anon")})
		p := table.Lookup(100, 0)
		require.Empty(t, p.space.mappings)
		require.Nil(t, p.Stack(sample, false).Locations[0].Mapping)
	})
	t.Run("nonsense", func(t *testing.T) {
		table.Mmap(100, &perfevent.Mmap{Address: 1<<64 - 10, Length: 100, Prot: 5, Filename: []byte("/x")})
		table.Mmap(100, &perfevent.Mmap{Address: 10, Prot: 5, Filename: []byte("/x")})
		require.Empty(t, table.Lookup(100, 0).space.mappings)
	})
}

// TestMappingsNeverOverlap adds mappings at random addresses. For each address, it
// compares the mapping in the table with the last added mapping that contains the
// address.
func TestMappingsNeverOverlap(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		table, p := mapped(t, nil)
		var all []procfs.Mapping
		for inode := uint64(100); inode < 140; inode++ {
			reg := procfs.Mapping{Start: uint64(r.IntN(200)) * 16, Inode: inode, Path: []byte("/lib/x.so")}
			reg.Limit = reg.Start + uint64(1+r.IntN(60))*16
			if r.IntN(4) == 0 {
				reg.Path = []byte("//anon")
			}
			all = append(all, reg)
			table.Mmap(100, &perfevent.Mmap{Address: reg.Start, Length: reg.Limit - reg.Start, Offset: reg.Start, Inode: inode, Prot: 5, Filename: reg.Path})
		}
		for address := uint64(0); address < 300*16; address += 8 {
			var want uint64
			for _, reg := range all {
				if address >= reg.Start && address < reg.Limit {
					want = reg.Inode
					if reg.Path[1] == '/' {
						want = 0
					}
				}
			}
			m := p.space.mapping(address)
			if m != nil && m.Path != "/lib/x.so" {
				continue // a mapping from before the test, which is not in the list
			}
			var got uint64
			if m != nil {
				got = m.Inode
				require.Equal(t, m.Start, m.FileOffset)
			}
			require.Equal(t, want, got, "at %#x", address)
		}
	}
}

func TestForkedChildrenShareStacks(t *testing.T) {
	h := newHost(t, false)
	h.process(100, proc{name: "shop", exe: "/bin/shop", ticks: 1, maps: maps})
	table := h.table(nil)
	sample := &perfevent.Sample{User: []uint64{0x1100, 0x9100}}
	stack := table.Lookup(100, 0).Stack(sample, false)
	table.Fork(101, 100, 101, 100)
	table.Fork(102, 100, 102, 100)
	child := table.Lookup(101, 0)
	require.Same(t, stack, child.Stack(sample, false))
	require.NotSame(t, table.Lookup(100, 0).Resource, child.Resource)

	table.Mmap(101, &perfevent.Mmap{Address: 0x9000, Length: 0x1000, Inode: 9, Prot: 5, Filename: []byte("/lib/other.so")})
	require.Equal(t, "/lib/other.so", table.Lookup(101, 0).Stack(sample, false).Locations[1].Mapping.Path)
	require.Same(t, stack, table.Lookup(100, 0).Stack(sample, false))
	require.Same(t, stack, table.Lookup(102, 0).Stack(sample, false))

	for pid := 100; pid <= 102; pid++ {
		h.exit(pid)
		table.Exit(pid, pid)
	}
	table.NextBatch()
	table.NextBatch()
	require.Zero(t, table.Stats().Stacks)
	require.Zero(t, table.Stats().StackBytes)
}

func TestStacksAreBounded(t *testing.T) {
	const limit = 1 << 20
	table, _ := mapped(t, func(cfg *Config) { cfg.Limits.StackBytes = limit })
	for pid := 101; pid < 105; pid++ {
		table.Fork(pid, 100, pid, 100)
		table.Exec(pid, []byte("x")) // the process gets its own address space
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 20000 {
		p := table.Lookup(100+r.IntN(5), 0)
		user := make([]uint64, 1+r.IntN(127))
		for i := range user {
			user[i] = uint64(r.IntN(100000))
		}
		require.Len(t, p.Stack(&perfevent.Sample{User: user}, false).Locations, len(user))
		require.LessOrEqual(t, table.Stats().StackBytes, limit)
	}
	s := table.Stats()
	require.NotZero(t, s.StackResets)
	sum, stacks := 0, 0
	for _, p := range table.processes.Values() {
		sum += p.space.bytes
		stacks += len(p.space.stacks)
	}
	require.Equal(t, sum, s.StackBytes)
	require.Equal(t, stacks, s.Stacks)
}

func TestMappingsAreBounded(t *testing.T) {
	h := newHost(t, false)
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, "%x-%x r-xp 00000000 08:01 7 /lib/x.so\n", 0x10000+i*0x2000, 0x11000+i*0x2000)
	}
	h.process(100, proc{name: "a", exe: "/bin/a", ticks: 1, maps: b.String()})
	table := h.table(func(cfg *Config) { cfg.Limits.Mappings = 20 })
	p := table.Lookup(100, 0)
	require.Len(t, p.space.mappings, 20)
	for i := range 10 {
		table.Mmap(100, &perfevent.Mmap{Address: 0x900000 + uint64(i)*0x2000, Length: 0x1000, Inode: 9, Prot: 5, Filename: []byte("/lib/new.so")})
	}
	require.Len(t, p.space.mappings, 20)
	require.EqualValues(t, 90, table.Stats().MappingsLeftOut)
}

func TestMalformedMapsAreSkipped(t *testing.T) {
	h := newHost(t, false)
	h.process(100, proc{name: "a", exe: "/bin/a", ticks: 1, maps: "nonsense\n5000-6000 r-xp 0 08:01 7 /b\n\n1000-2000 r-xp 0 08:01 7 /before\n5800-7000 r-xp 0 08:01 7 /within\n7000-8000 r-xp 0 08:01 7 /c"})
	p := h.table(nil).Lookup(100, 0)
	var paths []string
	for _, m := range p.space.mappings {
		paths = append(paths, m.Path)
	}
	require.Equal(t, []string{"/b", "/c"}, paths)
}

func TestStackSeenBeforeAllocatesNothing(t *testing.T) {
	table, p := mapped(t, nil)
	sample := deepSample()
	p.Stack(sample, false)
	table.ThreadName(100, 101)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		p := table.Lookup(100, 0)
		if p.Stack(sample, false) == nil || p.Resource == nil {
			t.Fatal("no stack")
		}
		table.ThreadName(100, 101)
	}))
}

// deepSample returns a sample whose stack has a typical depth.
func deepSample() *perfevent.Sample {
	s := &perfevent.Sample{Kernel: make([]uint64, 8), User: make([]uint64, 24)}
	for i := range s.Kernel {
		s.Kernel[i] = 0xffffffff81000000 + uint64(i)*64
	}
	for i := range s.User {
		s.User[i] = 0x1000 + uint64(i)*64
	}
	return s
}

// BenchmarkStack measures interning a stack of 32 frames. For comparison, it also
// measures a lookup with a known key.
func BenchmarkStack(b *testing.B) {
	table, p := mapped(b, nil)
	sample := deepSample()
	table.Lookup(100, 0).Stack(sample, false)
	b.Run("seen before", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if table.Lookup(100, 0).Stack(sample, false) == nil {
				b.Fatal("no stack")
			}
		}
	})
	b.Run("baseline: map lookup", func(b *testing.B) {
		h := hash(sample.Kernel, sample.User)
		b.ReportAllocs()
		for b.Loop() {
			if p.space.stacks[h] == nil {
				b.Fatal("no stack")
			}
		}
	})
	b.Run("never seen", func(b *testing.B) {
		n := uint64(0)
		b.ReportAllocs()
		for b.Loop() {
			n++
			sample.User[3] = 0x1000 + n%0x4000
			sample.User[4] = n
			if table.Lookup(100, 0).Stack(sample, false) == nil {
				b.Fatal("no stack")
			}
		}
	})
}
