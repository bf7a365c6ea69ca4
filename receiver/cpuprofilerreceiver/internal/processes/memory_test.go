// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// mapMany adds n mappings of a file to a process that has just executed a program.
func mapMany(table *Table, pid, n int, path string) {
	table.Exec(pid, []byte("idle"))
	for i := range n {
		table.Mmap(pid, &perfevent.Mmap{
			PID: pid, Address: uint64(0x10000 + i*0x2000), Length: 0x1000, Prot: 4, Inode: 7, Filename: []byte(path),
		})
	}
}

// checkBytes compares the counted memory with the memory that the table really uses.
func checkBytes(t *testing.T, table *Table) {
	t.Helper()
	want := 0
	seen := map[*space]bool{}
	for _, p := range table.processes.Values() {
		want += p.bytes
		if p.space != nil && !seen[p.space] {
			seen[p.space] = true
			require.Equal(t, mappingsBytes(p.space.mappings), p.space.mapped)
			want += p.space.mapped
		}
	}
	require.Equal(t, want, table.stats.Bytes)
	names := 0
	for name := range table.names {
		names += len(name) + stringBytes
	}
	require.Equal(t, names, table.nameBytes)
}

func TestMappingsOfAllProcessesAreBounded(t *testing.T) {
	const limit = 1 << 20
	h := newHost(t, false)
	h.process(1, proc{name: "hot", exe: "/bin/hot", maps: "1000-2000 r-xp 00000000 fe:00 5 /bin/hot\n"})
	table := h.table(func(cfg *Config) { cfg.Limits.Bytes = limit })
	hot := table.Lookup(1, 0)
	for pid := range 200 {
		h.process(1000+pid, proc{name: "idle", exe: "/bin/idle"})
		mapMany(table, 1000+pid, 8192, "/bin/idle")
		require.LessOrEqual(t, table.Stats().Bytes, limit+limit/4, "one process's more, until the next record")
		table.NextBatch()
		require.Same(t, hot, table.Lookup(1, 0))
	}
	checkBytes(t, table)
	s := table.Stats()
	require.LessOrEqual(t, s.Bytes, limit)
	require.Positive(t, s.Evicted)
	require.Positive(t, s.MappingsLeftOut, "one process has a quarter at most")
	require.Len(t, hot.Mapped(), 1)

	// After a loss, the process has not been read again yet.
	// Even then, it must not be evicted.
	mapMany(table, 2000, 8192, "/bin/idle")
	table.AfterLoss()
	ranked := table.ranking((*Process).size)
	require.Same(t, hot, ranked[len(ranked)-1])
	require.Same(t, hot, table.Lookup(1, 0))
	table.Exit(2000, 2000)

	for pid := range 200 {
		table.Exit(1000+pid, 1000+pid)
	}
	table.NextBatch()
	table.NextBatch()
	checkBytes(t, table)
	require.Less(t, table.Stats().Bytes, 100<<10)
}

// TestMemoryOfMappingsIsCloseToTheHeap checks that the counted bytes are close to the memory
// on the heap.
func TestMemoryOfMappingsIsCloseToTheHeap(t *testing.T) {
	for name, tt := range map[string]struct {
		processes, mappings int
		path                string
	}{
		"of many mappings": {20, 8192, "/bin/idle"},
		"of long names":    {2000, 1, "/" + strings.Repeat("x", 3000)},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, false)
			table := h.table(func(cfg *Config) { cfg.Limits.Bytes = 64 << 20 })
			counted, before := table.Stats().Bytes, hosttest.Heap()
			for pid := range tt.processes {
				mapMany(table, 1000+pid, tt.mappings, tt.path+strconv.Itoa(pid))
			}
			counted, held := table.Stats().Bytes-counted, hosttest.Heap()-before
			t.Logf("counted %d bytes, held %d", counted, held)
			require.Greater(t, float64(counted), 0.8*float64(held))
			require.Less(t, float64(counted), 2.5*float64(held))
			runtime.KeepAlive(table)
		})
	}
}

func TestSharedMappingsCountOnce(t *testing.T) {
	h := newHost(t, false)
	table := h.table(nil)
	mapMany(table, 1, 1000, "/bin/a")
	before := table.Stats().Bytes
	for pid := 2; pid < 100; pid++ {
		table.Fork(pid, 1, pid, 1)
	}
	checkBytes(t, table)
	require.Less(t, table.Stats().Bytes, before+100*(processBytes+500))
	table.Mmap(50, &perfevent.Mmap{PID: 50, Address: 0x90000000, Length: 0x1000, Prot: 4, Inode: 7, Filename: []byte("/bin/b")})
	checkBytes(t, table)
	require.Greater(t, table.Stats().Bytes, before+1000*mappingBytes, "it has its own now")
}

// TestTextOfProcessesIsBounded checks that text from containers is counted as memory.
// Such text is found in environments and in the paths of programs.
func TestTextOfProcessesIsBounded(t *testing.T) {
	const limit = 1 << 20
	h := newHost(t, false)
	table := h.table(func(cfg *Config) { cfg.Limits.Bytes = limit })
	value := strings.Repeat("v", maxValue)
	for i := range 500 {
		h.process(2000+i, proc{
			name: "x", exe: fmt.Sprintf("/%d/%s", i, value[:1000]), cgroup: fmt.Sprintf("0::/%d/%s\n", i, value[:200]),
			environ: environ(fmt.Sprintf("OTEL_SERVICE_NAME=%d%s", i, value), "OTEL_RESOURCE_ATTRIBUTES=service.version="+value),
		})
		table.Lookup(2000+i, 0)
		require.LessOrEqual(t, table.Stats().Bytes, limit)
		if i%50 == 0 {
			table.NextBatch()
		}
	}
	checkBytes(t, table)
	require.Greater(t, table.Stats().Evicted, uint64(100))
}

func TestProcessesGiveWayInOrder(t *testing.T) {
	h := newHost(t, false)
	hot := map[int]bool{3: true}
	table := h.table(func(cfg *Config) {
		cfg.Limits.Bytes = 256 << 10
		cfg.Hot = func() func(*Process) bool { return func(p *Process) bool { return hot[p.PID] } }
	})
	size := map[int]int{1: 10, 2: 10, 3: 200, 4: 100, 5: 20}
	for pid := 1; pid <= 5; pid++ {
		h.process(pid, proc{name: "x", exe: "/bin/x"})
		mapMany(table, pid, size[pid], "/bin/x")
	}
	table.Lookup(2, 0) // the process is idle from here on
	table.NextBatch()
	table.NextBatch()
	for pid := 3; pid <= 5; pid++ {
		table.Lookup(pid, 0)
	}
	var order []int
	for _, p := range table.ranking((*Process).size) {
		order = append(order, p.PID)
	}
	require.Equal(t, []int{1, 2, 4, 5, 3}, order, "never sampled; idle; the largest; the other; the hot one")
}

// TestStacksOfSmallProcessesSurviveLargeOnes checks that a sampled program keeps its stacks
// while other programs have very many stacks. Stacks are dropped in the same order as
// processes are evicted.
func TestStacksOfSmallProcessesSurviveLargeOnes(t *testing.T) {
	h := newHost(t, false)
	maps := "1000-900000 r-xp 00000000 fe:00 5 /bin/x\n"
	table := h.table(func(cfg *Config) { cfg.Limits.StackBytes = 256 << 10 })
	for pid := 1; pid <= 10; pid++ {
		h.process(pid, proc{name: "x", exe: "/bin/x", maps: maps})
	}
	sample := func(from uint64) *perfevent.Sample {
		user := make([]uint64, 20)
		for i := range user {
			user[i] = from + uint64(i)
		}
		return &perfevent.Sample{User: user}
	}
	small := table.Lookup(1, 0).Stack(sample(0x1000), false)
	for i := range 2000 {
		pid := 2 + i%9
		table.Lookup(pid, 0).Stack(sample(uint64(0x2000+i*32)), false)
		require.Same(t, small, table.Lookup(1, 0).Stack(sample(0x1000), false))
		require.LessOrEqual(t, table.Stats().StackBytes, 256<<10)
	}
	require.Positive(t, table.Stats().StackResets)
}

// TestMappingsWaitWhenReadingHasHadItsTime checks that mappings are read within the CPU
// time budget for files. Mappings of hot units are read within the budget of hot units.
// Mappings that have to wait are read later.
func TestMappingsWaitWhenReadingHasHadItsTime(t *testing.T) {
	h := newHost(t, false)
	large := proc{name: "large", exe: "/bin/large", ticks: 1, environ: environ("OTEL_SERVICE_NAME=large"), maps: "1000-2000 r-xp 00000000 08:01 7 /bin/large\n"}
	large.maps += strings.Repeat("ffff0000-ffff1000 r--p 00000000 08:01 7 /usr/lib/large.so\n", 100_000)
	h.process(100, large)
	h.process(200, large)
	now := time.Unix(1_000_000, 0)
	meter := new(cputime.Meter)
	budget := cputime.NewBudget(0.01, zap.NewNop(), func() time.Time { return now })
	table := h.table(func(c *Config) { c.Budget, c.Meter = budget, meter })
	mapping := func(pid int) *samples.Mapping {
		return table.Lookup(pid, 0).Stack(&perfevent.Sample{User: []uint64{0x1100}}, false).Locations[0].Mapping
	}
	spent := meter.Total()
	require.NotNil(t, mapping(100))
	require.Positive(t, meter.Total()-spent, "reading is measured")

	for budget.May(100) {
		budget.Spend(100, time.Second)
	}
	budget.Spend(200, time.Second)
	require.Nil(t, mapping(200))
	require.Equal(t, "large", attributes(t, table.Lookup(200, 0).Resource)["service.name"], "all else is known")
	waits := budget.Waits()
	require.Positive(t, waits)
	require.Nil(t, mapping(200))
	require.Equal(t, waits, budget.Waits(), "it is tried once a batch")
	table.NextBatch()
	require.Nil(t, mapping(200))

	budget.SetHot(map[int]string{200: "hot"})
	table.NextBatch()
	require.NotNil(t, mapping(200), "it is hot")

	h.process(300, large)
	budget.Spend(300, time.Second)
	require.Nil(t, mapping(300))
	now = now.Add(time.Hour)
	table.NextBatch()
	require.NotNil(t, mapping(300), "there is time again")
}
