// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

const innermostPID = 17 // the pid of a jitHost's process in the innermost pid namespace

// jitHost is a host with a process that generates code.
type jitHost struct {
	host
	clock *testClock
	s     *Symbolizer
}

func newJITHost(t testing.TB, cfg Config) *jitHost {
	t.Helper()
	h := &jitHost{host: newHost(t), clock: &testClock{now: time.Now()}}
	cfg.Root, cfg.Now = h.root, h.clock.Now
	h.identify(t, h.pid, os.Geteuid())
	h.starts(t, h.pid, time.Minute)
	require.NoError(t, os.Mkdir(filepath.Join(h.processRoot, "tmp"), 0o755))
	h.s = newSymbolizer(t, cfg)
	return h
}

// identify writes the status file of a process.
func (h *jitHost) identify(t testing.TB, pid, uid int) {
	t.Helper()
	dir := filepath.Join(h.root, "proc", strconv.Itoa(pid))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	status := fmt.Sprintf("Name:\tx\nState:\tS (sleeping)\nPid:\t%d\nUid:\t%d\t%[2]d\t%[2]d\t%[2]d\nNSpid:\t%[1]d\t9\t%[3]d\n", pid, uid, innermostPID)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "status"), []byte(status), 0o644))
}

// starts writes the stat file of a process that started the given time ago.
func (h *jitHost) starts(t testing.TB, pid int, ago time.Duration) {
	t.Helper()
	ticks := procfs.Now() - uint64(ago/procfs.Tick)
	stat := fmt.Sprintf("%d (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, ticks)
	require.NoError(t, os.WriteFile(filepath.Join(h.root, "proc", strconv.Itoa(pid), "stat"), []byte(stat), 0o644))
}

func (h *jitHost) mapPath() string {
	return filepath.Join(h.processRoot, fmt.Sprintf("tmp/perf-%d.map", innermostPID))
}

func (h *jitHost) writeMap(t testing.TB, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(h.mapPath(), []byte(content), 0o644))
}

func (h *jitHost) appendMap(t testing.TB, content string) {
	t.Helper()
	f, err := os.OpenFile(h.mapPath(), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(content)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// at returns the name of the code at an address. It advances the clock first, so that
// the perf map may be read again.
func (h *jitHost) at(pc uint64) string {
	h.clock.advance(retryMapInterval)
	l := &samples.Location{Address: pc, Leaf: true}
	h.s.Resolve(h.pid, l)
	if len(l.Lines) == 0 {
		return ""
	}
	return l.Lines[0].Function
}

func TestGeneratedCodeHasNamesOfItsMap(t *testing.T) {
	h := newJITHost(t, Config{})
	require.Empty(t, h.at(0x1000), "nothing is written yet")
	require.Equal(t, uint64(1), h.s.Counters().Locations[NoFile])

	h.writeMap(t, "1000 100 JS:*first /a.js:3:1\n2000 100 JS:*se")
	require.Equal(t, "first", h.at(0x1080))
	require.Empty(t, h.at(0x2000), "its line is not at its end")
	h.appendMap(t, "cond /a.js:4:1\n")
	require.Equal(t, "second", h.at(0x2000))
	h.appendMap(t, "1080 10 JS:*third /a.js:5:1\n")
	require.Equal(t, "third", h.at(0x1080))
	require.Empty(t, h.at(0x1000), "it made room for another one")

	// Resolving a location again does not count it again while its outcome is unchanged.
	l := &samples.Location{Address: 0x1080, Leaf: true}
	h.s.Resolve(h.pid, l)
	before := h.s.Counters()
	for range 5 {
		h.clock.advance(retryMapInterval)
		Release(l)
		require.Empty(t, l.Lines)
		h.s.Resolve(h.pid, l)
		require.Equal(t, "third", l.Lines[0].Function)
	}
	require.Equal(t, before.Locations, h.s.Counters().Locations)
	require.Equal(t, 1, before.PerfMaps)
	require.Positive(t, before.Bytes)
}

func TestLocationsOfGeneratedCode(t *testing.T) {
	h := newJITHost(t, Config{})
	h.writeMap(t, "1000 100 py::f:/a.py\n")
	l := &samples.Location{Type: samples.FrameNative, Address: 0x1100} // a return address
	h.s.Resolve(h.pid, l)
	require.Equal(t, samples.FramePython, l.Type)
	require.Equal(t, []samples.Line{{Function: "f", SystemName: "py::f:/a.py", File: "/a.py"}}, l.Lines)
	require.False(t, l.Resolved, "to be asked for again")

	// This named mapping has no object file.
	h.write(t, "memfd:doublemapper", []byte(strings.Repeat("\xc3", 4096)))
	m := h.mapping(t, "/memfd:doublemapper", filepath.Join(h.processRoot, "memfd:doublemapper"))
	m.Start, m.Limit = 0x1000, 0x2000
	l = leaf(m, 0x1004)
	h.s.Resolve(h.pid, l)
	require.Equal(t, "f", l.Lines[0].Function)

	for _, l := range []*samples.Location{{Address: 0x1004}, {Address: 0x1004, Type: samples.FrameKernel}} {
		h.s.Resolve(0, l)
		require.Empty(t, l.Lines, "of no process, or of the kernel")
		require.True(t, l.Resolved)
	}
}

func TestRewrittenMapIsReadAgain(t *testing.T) {
	tests := map[string]func(t *testing.T, h *jitHost){
		"shorter": func(t *testing.T, h *jitHost) { h.writeMap(t, "1000 100 b\n") },
		"longer":  func(t *testing.T, h *jitHost) { h.writeMap(t, "1000 100 b\n"+strings.Repeat("9000 1 x\n", 100)) },
		"as long": func(t *testing.T, h *jitHost) { h.writeMap(t, "1000 100 b\n3000 100 x\n") },
		"as another one": func(t *testing.T, h *jitHost) {
			require.NoError(t, os.Remove(h.mapPath()))
			h.writeMap(t, "1000 100 b\n")
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			h := newJITHost(t, Config{})
			h.writeMap(t, "1000 100 a\n2000 100 a\n")
			require.Equal(t, "a", h.at(0x1000))
			change(t, h)
			require.Equal(t, "b", h.at(0x1000))
			require.Empty(t, h.at(0x2000))
			require.Equal(t, 1, h.s.Counters().PerfMaps)
		})
	}
}

func TestOpenMapOfAnEndedProcessIsKept(t *testing.T) {
	h := newJITHost(t, Config{})
	h.writeMap(t, "1000 100 a\n")
	require.Equal(t, "a", h.at(0x1000))
	h.appendMap(t, "2000 100 b\n")
	require.NoError(t, os.RemoveAll(filepath.Join(h.root, "proc", strconv.Itoa(h.pid))))
	require.Equal(t, "b", h.at(0x2000), "written in time")

	// Another process reuses the pid.
	h.identify(t, h.pid, os.Geteuid())
	h.starts(t, h.pid, 0)
	require.Empty(t, h.at(0x1000))
	require.Zero(t, h.s.Counters().PerfMaps)
}

func TestUntrustedMapsAreNotRead(t *testing.T) {
	const line = "1000 100 name\n"
	outside := func(t *testing.T, h *jitHost) string {
		path := filepath.Join(h.root, "outside")
		require.NoError(t, os.WriteFile(path, []byte(line), 0o644))
		return path
	}
	tests := map[string]struct {
		make func(t *testing.T, h *jitHost)
		want Outcome
	}{
		"a symbolic link out of the root": {func(t *testing.T, h *jitHost) { require.NoError(t, os.Symlink(outside(t, h), h.mapPath())) }, Invalid},
		"a symbolic link within the root": {func(t *testing.T, h *jitHost) {
			h.write(t, "tmp/elsewhere", []byte(line))
			require.NoError(t, os.Symlink("elsewhere", h.mapPath()))
		}, Invalid},
		"its directory is a link out of the root": {func(t *testing.T, h *jitHost) {
			path := outside(t, h)
			require.NoError(t, os.Rename(path, filepath.Join(h.root, filepath.Base(h.mapPath()))))
			require.NoError(t, os.Remove(filepath.Join(h.processRoot, "tmp")))
			require.NoError(t, os.Symlink("../../..", filepath.Join(h.processRoot, "tmp")))
		}, NoFile},
		"a FIFO":      {func(t *testing.T, h *jitHost) { require.NoError(t, unix.Mkfifo(h.mapPath(), 0o644)) }, Invalid},
		"a directory": {func(t *testing.T, h *jitHost) { require.NoError(t, os.Mkdir(h.mapPath(), 0o755)) }, Invalid},
		"another user's": {func(t *testing.T, h *jitHost) {
			h.writeMap(t, line)
			if err := os.Chown(h.mapPath(), 4242, -1); err != nil {
				hosttest.SkipUnprivileged(t, "%v", err)
			}
		}, Invalid},
		"an earlier process's": {func(t *testing.T, h *jitHost) {
			h.writeMap(t, line)
			old := time.Now().Add(-time.Hour)
			require.NoError(t, os.Chtimes(h.mapPath(), old, old))
		}, NoFile},
		"in the host's pid": {func(t *testing.T, h *jitHost) {
			h.write(t, fmt.Sprintf("tmp/perf-%d.map", h.pid), []byte(line))
		}, NoFile},
		"without a status file": {func(t *testing.T, h *jitHost) {
			h.writeMap(t, line)
			require.NoError(t, os.Remove(filepath.Join(h.root, "proc", strconv.Itoa(h.pid), "status")))
		}, Unreadable},
		"only garbage": {func(t *testing.T, h *jitHost) { h.writeMap(t, strings.Repeat("\x00", 1<<20+5)+line) }, NoSymbol},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newJITHost(t, Config{})
			test.make(t, h)
			require.Empty(t, h.at(0x1000))
			require.Equal(t, uint64(1), h.s.Counters().Locations[test.want], "%v", h.s.Counters().Locations)
		})
	}
	t.Run("the process's user's", func(t *testing.T) {
		h := newJITHost(t, Config{})
		h.writeMap(t, line)
		h.identify(t, h.pid, 4242)
		if err := os.Chown(h.mapPath(), 4242, -1); err != nil {
			hosttest.SkipUnprivileged(t, "%v", err)
		}
		require.Equal(t, "name", h.at(0x1000))
	})
}

func TestMapsAreBounded(t *testing.T) {
	for name, cfg := range map[string]Config{
		"open files": {MaxObjects: 8},
		"bytes":      {CacheBytes: 64 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			h := newJITHost(t, cfg)
			const processes = 20
			for i := range processes {
				h.pid = 5000 + i
				h.processRoot = filepath.Join(h.root, "proc", strconv.Itoa(h.pid), "root")
				require.NoError(t, os.MkdirAll(filepath.Join(h.processRoot, "tmp"), 0o755))
				h.identify(t, h.pid, os.Geteuid())
				h.starts(t, h.pid, time.Minute)
				var lines strings.Builder
				for j := range 100 {
					fmt.Fprintf(&lines, "%x 10 f%d.%d\n", 0x1000+j*16, i, j)
				}
				h.writeMap(t, lines.String())
				require.Equal(t, fmt.Sprintf("f%d.7", i), h.at(0x1070))
				c := h.s.Counters()
				require.LessOrEqual(t, c.PerfMaps, h.s.maps.maxDescriptors)
				require.LessOrEqual(t, c.Bytes, h.s.maps.maxBytes)
			}
			c := h.s.Counters()
			require.Equal(t, uint64(processes), c.Evictions+uint64(c.PerfMaps))
		})
	}
}

// The code of one line may run at many addresses. All these
// addresses must share one name.
func TestNamesOfOneLineAreHeldOnce(t *testing.T) {
	h := newJITHost(t, Config{})
	h.writeMap(t, "10000000 3fffffff "+strings.Repeat("a", 1000)+"\n")
	const addresses = 10_000
	locations := make([]*samples.Location, addresses)
	for i := range locations {
		locations[i] = &samples.Location{Address: uint64(0x10000000 + i*997), Leaf: true}
		h.s.Resolve(h.pid, locations[i])
		require.Same(t, &locations[0].Lines[0], &locations[i].Lines[0])
	}
	require.Less(t, h.s.Counters().Bytes, int64(4<<10))
	require.Equal(t, uint64(addresses), h.s.Counters().Locations[Resolved])
}

// become replaces the process by another process with a perf map of the given lines.
func (h *jitHost) become(t *testing.T, pid int, lines string) {
	t.Helper()
	h.pid = pid
	h.processRoot = filepath.Join(h.root, "proc", strconv.Itoa(pid), "root")
	require.NoError(t, os.MkdirAll(filepath.Join(h.processRoot, "tmp"), 0o755))
	h.identify(t, pid, os.Geteuid())
	h.starts(t, pid, time.Minute)
	h.writeMap(t, lines)
}

// Names are kept in addition to the perf maps, and count toward the same limit.
func TestNamesOfMapsAreBounded(t *testing.T) {
	h := newJITHost(t, Config{CacheBytes: 256 << 10})
	var lines strings.Builder
	const count = 100
	for i := range count {
		fmt.Fprintf(&lines, "%x 10 f%d%s\n", 0x1000+i*16, i, strings.Repeat("x", 900))
	}
	for i := range 20 {
		h.become(t, 5000+i, lines.String())
		for j := range count {
			l := &samples.Location{Address: uint64(0x1000 + j*16), Leaf: true}
			h.s.Resolve(h.pid, l)
			require.NotEmpty(t, l.Lines)
			require.LessOrEqual(t, h.s.Counters().Bytes, h.s.maps.maxBytes)
		}
	}
	held := int64(0)
	for _, g := range h.s.maps.Values() {
		bytes, _ := g.uses()
		held += bytes
	}
	require.Equal(t, held, h.s.maps.bytes)
	require.Positive(t, h.s.Counters().Evictions)
}

// The counted bytes must be close to the bytes on the heap.
func TestMemoryOfMapsIsCloseToTheHeap(t *testing.T) {
	for _, length := range []int{10, 900} {
		t.Run(fmt.Sprint("names of ", length), func(t *testing.T) {
			h := newJITHost(t, Config{CacheBytes: 64 << 20})
			var lines strings.Builder
			const count = 2000
			for i := range count {
				fmt.Fprintf(&lines, "%x 10 f%d%s\n", 0x1000+i*16, i, strings.Repeat("x", length))
			}
			before := hosttest.Heap()
			for i := range 5 {
				h.become(t, 5000+i, lines.String())
				for j := range count {
					l := &samples.Location{Address: uint64(0x1000 + j*16), Leaf: true}
					h.s.Resolve(h.pid, l)
					require.NotEmpty(t, l.Lines)
				}
			}
			counted, held := h.s.Counters().Bytes, hosttest.Heap()-before
			t.Logf("counted %d bytes, held %d", counted, held)
			require.Greater(t, float64(counted), 0.8*float64(held))
			require.Less(t, float64(counted), 2.5*float64(held))
			runtime.KeepAlive(h)
		})
	}
}

// Idle perf maps are dropped first. Of the perf maps in use, the largest is dropped
// first. The perf map of a hot unit is dropped last.
func TestMapsOfHotUnitsGiveWayLast(t *testing.T) {
	h := newJITHost(t, Config{CacheBytes: 64 << 10})
	process := func(pid, lines int) *samples.Location {
		h.pid = pid
		h.processRoot = filepath.Join(h.root, "proc", strconv.Itoa(pid), "root")
		require.NoError(t, os.MkdirAll(filepath.Join(h.processRoot, "tmp"), 0o755))
		h.identify(t, pid, os.Geteuid())
		h.starts(t, pid, time.Minute)
		var content strings.Builder
		for i := range lines {
			fmt.Fprintf(&content, "%x 10 name%d\n", 0x2000+16*i, i)
		}
		h.writeMap(t, content.String())
		return &samples.Location{Address: 0x2001, Leaf: true}
	}
	known := func(pid int) bool { _, ok := h.s.maps.Peek(pid); return ok }
	idle, hot, small := process(1, 20), process(2, 200), process(3, 20)
	large := process(4, 100)
	h.s.Resolve(1, idle)
	h.s.Begin(map[int]string{2: "hot"})
	h.s.Begin(map[int]string{2: "hot"})
	for pid, l := range map[int]*samples.Location{2: hot, 3: small} {
		h.s.Resolve(pid, l)
		require.NotEmpty(t, l.Lines)
	}
	h.s.Resolve(4, large)
	for pid := 5; known(1); pid++ {
		h.s.Resolve(pid, process(pid, 20))
	}
	require.True(t, known(2) && known(3) && known(4), "the idle one gave way first")
	for pid := 100; known(4); pid++ {
		h.s.Resolve(pid, process(pid, 20))
	}
	require.True(t, known(2) && known(3), "then the largest")
	for pid := 200; known(3); pid++ {
		h.s.Resolve(pid, process(pid, 20))
		require.True(t, known(2), "the hot one last")
	}
}

func TestProcessesWithoutAMapAreBounded(t *testing.T) {
	h := newJITHost(t, Config{})
	for pid := range maxGenerated + 50 {
		h.s.Resolve(10_000+pid, &samples.Location{Address: 1})
	}
	require.Equal(t, maxGenerated, h.s.maps.Len())
}

func TestUnusedMapsAreClosed(t *testing.T) {
	h := newJITHost(t, Config{})
	h.writeMap(t, "1000 100 a\n")
	require.Equal(t, "a", h.at(0x1000))
	h.clock.advance(idleTimeout)
	h.s.mu.Lock()
	h.s.maps.expire(h.clock.Now())
	h.s.mu.Unlock()
	c := h.s.Counters()
	require.Zero(t, c.PerfMaps)
	require.Zero(t, c.Bytes)
	require.Equal(t, "a", h.at(0x1000), "opened again")
}

func TestKnownGeneratedCodeAllocatesNothing(t *testing.T) {
	h := newJITHost(t, Config{})
	h.writeMap(t, "1000 100 JS:*f /a.js:3:1\n")
	l := &samples.Location{Address: 0x1010}
	h.s.Resolve(h.pid, l)
	require.Len(t, l.Lines, 1)
	require.Zero(t, testing.AllocsPerRun(100, func() { h.s.Resolve(h.pid, l) }))
}

func TestRuntimeInMaps(t *testing.T) {
	const maps = "7f00-7f01 r-xp 00000000 fe:00 1 /usr/lib/libc.so.6\n7f02-7f03 rwxp 00000000 00:00 0 \n"
	require.Empty(t, runtimeIn([]byte(maps)))
	require.Equal(t, samples.FrameJVM, runtimeIn([]byte(maps+"7f04-7f05 r-xp 0 fe:00 2 /opt/my jdk/lib/server/libjvm.so\n")))
}

// BenchmarkGenerated resolves a location of generated code
// again, as happens in each batch.
func BenchmarkGenerated(b *testing.B) {
	h := newJITHost(b, Config{})
	var lines strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&lines, "%x 100 JS:*f%d /srv/application/lib/file%d.js:%d:1\n", 0x1000+i*0x100, i, i%100, i%1000)
	}
	h.writeMap(b, lines.String())
	locations := make([]*samples.Location, 1000)
	for i := range locations {
		locations[i] = &samples.Location{Address: uint64(0x1010 + i*0x1100)}
		h.s.Resolve(h.pid, locations[i])
		require.NotEmpty(b, locations[i].Lines)
	}
	b.Logf("%d bytes", h.s.Counters().Bytes)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		h.s.Resolve(h.pid, locations[i%len(locations)])
		i++
	}
}

// BenchmarkEndedProcess resolves code without a file in processes that have ended. This
// is the worst case on a host with many short-lived processes.
func BenchmarkEndedProcess(b *testing.B) {
	s := newSymbolizer(b, Config{})
	b.ReportAllocs()
	pid := 1 << 23 // above all pids
	for b.Loop() {
		pid++
		s.Resolve(pid, &samples.Location{Address: 0x1000})
	}
}
