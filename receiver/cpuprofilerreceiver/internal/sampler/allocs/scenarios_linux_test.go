// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

const page = 4096

// within checks an estimate of allocated pages. The tolerance
// depends on the number of samples.
func within(t *testing.T, want counts, objects, space []event) {
	t.Helper()
	require.NotEmpty(t, objects)
	got := estimate(objects, space, func(int) float64 { return page })
	require.InDelta(t, want.bytes, got.bytes, 5*got.bytesSD+0.02*want.bytes)
}

func TestStrippedAndPositionIndependentProgramsAreSampled(t *testing.T) {
	skipWithoutProbes(t)
	for name, c := range map[string]struct {
		flags   []string
		assumed bool
	}{
		"stripped":                          {[]string{"-ldflags=-s -w"}, true},
		"position-independent":              {[]string{"-buildmode=pie"}, false},
		"position-independent and stripped": {[]string{"-buildmode=pie", "-ldflags=-s -w"}, true},
		"without optimizations":             {[]string{"-gcflags=all=-N -l"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := start(t, buildAllocator(t, "", c.flags...), -1)
			s, to, _ := sampling(t, a, nil)
			want := a.allocateInPieces(s.Sampler, "pages", 1<<30)
			objects, space := to.take()
			within(t, want, objects, space)
			for _, e := range objects {
				require.Equal(t, int64(defaultRate), e.Period)
				require.Equal(t, c.assumed, e.Type == samples.AllocObjectsAssumed, e.Type.Scaled)
			}
			for _, e := range space {
				require.Equal(t, c.assumed, e.Type == samples.AllocSpaceAssumed, e.Type.Scaled)
			}
		})
	}
}

func TestLeafIsTheFunctionThatAllocates(t *testing.T) {
	leafIsTheFunctionThatAllocates(t, "")
}

// TestBulkLeafIsTheFunctionThatAllocatesInOtherReleases compiles the standard library of each
// release.
func TestBulkLeafIsTheFunctionThatAllocatesInOtherReleases(t *testing.T) {
	for _, release := range releases {
		if release != "" {
			t.Run("release="+release, func(t *testing.T) { leafIsTheFunctionThatAllocates(t, release) })
		}
	}
}

func leafIsTheFunctionThatAllocates(t *testing.T, release string) {
	t.Helper()
	skipWithoutProbes(t)
	a := start(t, buildAllocator(t, release), 16<<10)
	symbols := symbolizer.New(symbolizer.Config{})
	defer symbols.Close()
	s, to, _ := sampling(t, a, func(c *Settings) {
		c.Table = processes.NewTable(processes.Config{Track: symbols.Track})
		c.ThreadName = true
		c.ThreadID = true
	})
	a.allocate("pages", 4<<20, 1)
	s.Flush()
	objects, _ := to.take()
	pages := 0
	for _, e := range objects {
		resolve(t, symbols, a.PID, e.Stack)
		processes.MarkTruncated(e.Stack)
		names := functions(e.Stack)
		require.False(t, e.Stack.Truncated, "%v", names)
		if names[0] == sampledFunction {
			// This is an allocation of the runtime itself.
			require.NotContains(t, strings.Join(names, " "), "main.")
			continue
		}
		require.False(t, strings.HasPrefix(names[0], "runtime."), "%v", names)
		require.Equal(t, "allocator", e.Thread.Name)
		require.NotZero(t, e.Thread.ID)
		if names[0] == "main.pages" {
			pages++
			require.Equal(t, []string{"main.pages", "main.allocate", "main.serve"}, names[:3])
		}
	}
	require.Greater(t, pages, len(objects)*9/10)
}

// resolve resolves the addresses of a stack. On a busy machine,
// this can take several batches.
func resolve(t *testing.T, symbols *symbolizer.Symbolizer, pid int, s *samples.Stack) {
	for _, l := range s.Locations {
		require.Eventually(t, func() bool {
			symbols.Begin(nil)
			symbols.Resolve(pid, l)
			return l.Counted != uint8(symbolizer.Pending)+1
		}, time.Minute, time.Millisecond)
	}
}

func functions(s *samples.Stack) (names []string) {
	for _, l := range s.Locations {
		for _, line := range l.Lines {
			names = append(names, line.Function)
		}
	}
	return names
}

func TestProcessesOfOneProgramShareAProbe(t *testing.T) {
	skipWithoutProbes(t)
	path := buildAllocator(t, "")
	s, to, logs := newTestSampler(t, nil)
	require.NoError(t, s.Start(context.Background()))
	defer func() { require.NoError(t, s.Stop(context.Background())) }()
	var wanted []procfs.Process
	var all []*allocator
	for range 5 {
		a := start(t, path, -1)
		all = append(all, a)
		wanted = append(wanted, a.Process)
	}
	other := start(t, path, -1) // runs the same program but is not sampled
	before := s.reader.cfg.Now()
	s.Set(wanted)
	require.Eventually(t, func() bool { return s.Stats().Processes == 5 }, patience, time.Millisecond, "%v", logs.All())
	require.Equal(t, 1, s.Stats().Programs)
	u := s.uprobes.Load()
	require.Len(t, u.Attachments(), 1, "one probe")

	wantOf := map[int]counts{}
	for i, a := range all {
		wantOf[a.PID] = a.allocateInPieces(s.Sampler, "pages", (i+1)<<28)
	}
	other.allocate("pages", 1<<28, 1)
	s.Flush()
	objects, space := to.take()
	for pid, want := range wantOf {
		of := func(events []event) (out []event) {
			for _, e := range events {
				if e.Resource.PID == pid {
					out = append(out, e)
				}
			}
			return out
		}
		within(t, want, of(objects), of(space))
	}
	for _, e := range objects {
		require.Greater(t, e.Capture.From, before, "the time before is not claimed")
		require.GreaterOrEqual(t, e.time, e.Capture.From)
		require.EqualValues(t, math.MaxInt64, e.Capture.Until())
	}
	require.EqualValues(t, len(objects), s.Stats().Read, "those of the other process are not")
}

func descriptors(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		names = append(names, to)
	}
	return names
}

func TestProcessesThatComeAndGoLeaveNothing(t *testing.T) {
	skipWithoutProbes(t)
	path := buildAllocator(t, "")
	before := descriptors(t)
	s, to, _ := newTestSampler(t, func(c *Settings) { c.Limit = 1200 })
	require.NoError(t, s.Start(context.Background()))
	for i := range 30 {
		a := start(t, path, -1)
		s.Set([]procfs.Process{a.Process})
		if i%3 == 0 { // otherwise the process may end while it is being attached, or before
			require.Eventually(t, func() bool { return s.Stats().Processes == 1 }, patience, time.Millisecond)
			a.allocate("pages", 64<<20, 1)
		}
		a.stop()
		s.Flush()
	}
	require.Eventually(t, func() bool {
		s.Set(nil)
		return s.Stats().Processes == 0 && s.uprobes.Load() == nil
	}, patience, time.Millisecond)
	require.Zero(t, s.Stats().Programs)
	for _, p := range s.attacher.known.Values() {
		require.Nil(t, p.uprobe)
	}
	require.Eventually(t, func() bool { return len(descriptors(t)) <= len(before) }, patience, time.Millisecond)
	require.NoError(t, s.Stop(context.Background()))
	st := s.Stats()
	objects, _ := to.take()
	require.Equal(t, st.Read, uint64(len(objects))+st.RateLimited+st.Unreadable+st.BufferFull)
}

func TestKernelLimiterKeepsTheTotalsOfAProcess(t *testing.T) {
	skipWithoutProbes(t)
	a := start(t, buildAllocator(t, ""), -1)
	s, to, _ := sampling(t, a, func(c *Settings) { c.Limit = 2400 }) // this allows 200 samples in 5 s
	want := a.allocate("pages", 4<<30, 2)
	s.Flush()
	objects, space := to.take()
	require.Len(t, objects, 200)
	st := s.Stats()
	require.Equal(t, st.Read-200, st.RateLimited)
	// Nearly all allocations are pages, and all pages have the same size. Therefore, the
	// estimate from the kept samples is as exact as an estimate from all samples.
	sd := want.bytes / math.Sqrt(float64(st.Read))
	require.InDelta(t, want.bytes, sum(space), 5*sd+0.02*want.bytes)
	for i := 1; i < len(objects); i++ {
		require.LessOrEqual(t, objects[i-1].time, objects[i].time, "in order of time")
	}

	s.Flush()
	objects, _ = to.take()
	require.Empty(t, objects, "each is emitted once")
}

func TestReplacedProgramIsReadAgain(t *testing.T) {
	skipWithoutProbes(t)
	second := buildAllocator(t, "")
	first := filepath.Join(t.TempDir(), "first")
	b, err := os.ReadFile(second)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(first, b, 0o755))
	t.Setenv("EXEC", second)
	a := start(t, first, 64<<10)
	s, to, _ := sampling(t, a, nil)
	was := s.members.Load()
	_, err = fmt.Fprintln(a.in, "exec")
	require.NoError(t, err)
	line, err := a.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	require.Eventually(t, func() bool {
		m := (*s.members.Load())[a.PID]
		return m != nil && m != (*was)[a.PID] // this happens even though the test did not call Set
	}, patience, time.Millisecond)
	s.Flush()
	to.take()
	want := a.allocateInPieces(s.Sampler, "pages", 256<<20)
	objects, space := to.take()
	within(t, want, objects, space)
	for _, e := range objects {
		require.EqualValues(t, 64<<10, e.Period)
	}
	require.Equal(t, 1, s.Stats().Programs)
}

func messages(logs *observer.ObservedLogs, message string) int {
	return logs.FilterMessage(message).Len()
}

func TestProgramWithoutSamplesIsLoggedOnce(t *testing.T) {
	skipWithoutProbes(t)
	for name, c := range map[string]struct {
		flags []string
		rate  int
		quiet time.Duration
		why   string
	}{
		"a rate of 0":                       {nil, 0, time.Hour, "runtime.MemProfileRate is 0"},
		"no memory profiler":                {[]string{"-tags=plain"}, -1, time.Hour, "does not link the memory profiler"},
		"a rate of 0, which is not shown":   {[]string{"-ldflags=-s -w"}, 0, time.Nanosecond, "set runtime.MemProfileRate to 0"},
		"no profiler, and no symbol either": {[]string{"-tags=plain", "-ldflags=-s -w"}, -1, time.Nanosecond, "does not link the memory profiler"},
	} {
		t.Run(name, func(t *testing.T) {
			a := start(t, buildAllocator(t, "", c.flags...), c.rate)
			s, to, logs := sampling(t, a, func(cfg *Settings) { cfg.Quiet = c.quiet })
			a.allocate("pages", 1<<28, 1)
			for range 3 {
				s.Set([]procfs.Process{a.Process})
				s.Flush()
			}
			require.Eventually(t, func() bool { return messages(logs, msgQuiet) == 1 }, patience, time.Millisecond)
			require.Contains(t, logs.FilterMessage(msgQuiet).All()[0].ContextMap()["why"], c.why)
			s.Set(nil)
			require.Eventually(t, func() bool { return s.Stats().Processes == 0 }, patience, time.Millisecond)
			s.Set([]procfs.Process{a.Process})
			require.Eventually(t, func() bool { return s.Stats().Processes == 1 }, patience, time.Millisecond)
			require.NoError(t, s.Stop(context.Background()))
			require.Equal(t, 1, messages(logs, msgQuiet), "not again when it is sampled again")
			objects, _ := to.take()
			// When the rate changes, the runtime calls the probed function once.
			require.LessOrEqual(t, len(objects), runtime.GOMAXPROCS(0))
		})
	}
}

func TestReleaseThatIsNotKnownIsRefusedOnceByName(t *testing.T) {
	skipWithoutProbes(t)
	path := buildAllocator(t, "")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	f, err := os.Open(path)
	require.NoError(t, err)
	p, err := goprogram.Read(f, int64(len(b)), query)
	f.Close()
	require.NoError(t, err)
	other := "go1.97.3                       "[:len(p.Version)]
	at := bytes.Index(b, append([]byte("\xff Go buildinf:\x08\x02"), make([]byte, 16)...))
	require.Positive(t, at)
	require.Equal(t, p.Version, string(b[at+33:][:len(p.Version)]))
	copy(b[at+33:], other)
	require.NoError(t, os.WriteFile(path, b, 0o755))

	a := start(t, path, -1)
	c := exec.Command("/bin/cat") // cat is not a Go program
	in, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	defer func() { in.Close(); _ = c.Wait() }()
	cat := procfs.Process{PID: c.Process.Pid}
	cat, err = procfs.At("").Process(cat.PID)
	require.NoError(t, err)

	s, _, logs := newTestSampler(t, nil)
	require.NoError(t, s.Start(context.Background()))
	defer func() { require.NoError(t, s.Stop(context.Background())) }()
	refused := func() *observer.ObservedLogs {
		return logs.FilterMessage("allocations of a program are not sampled").FilterLevelExact(zap.InfoLevel)
	}
	for range 3 {
		s.Set([]procfs.Process{a.Process, cat})
		require.Eventually(t, func() bool { return len(s.changed) == 0 }, patience, time.Millisecond)
	}
	require.Eventually(t, func() bool { return refused().Len() == 1 }, patience, time.Millisecond)
	require.Contains(t, refused().All()[0].ContextMap()["error"], strings.TrimSpace(other))
	require.Zero(t, s.Stats().Processes)
	require.Nil(t, s.uprobes.Load(), "nothing is attached")
}

func TestSamplesWithoutRoomAreLoggedOncePerEpisode(t *testing.T) {
	skipWithoutProbes(t)
	a := start(t, buildAllocator(t, ""), 64<<10)
	s, to, logs := sampling(t, a, func(c *Settings) {
		c.Limit = 600 // this allows 50 samples in 5 s
		c.Sink.(*sink).room = 20
	})
	const fits = "allocation buffer has room again"
	for range 2 { // both losses belong to the same episode
		to.take()
		a.allocate("pages", 64<<20, 1)
		s.Flush()
	}
	require.Equal(t, 1, messages(logs, sampler.MsgAllocationsFull))
	require.Zero(t, messages(logs, fits))
	require.EqualValues(t, 2*30, s.Stats().BufferFull)
	to.take()
	a.allocate("pages", 512<<10, 1)
	s.Flush()
	require.Equal(t, 1, messages(logs, fits))
	require.EqualValues(t, 60, logs.FilterMessage(fits).All()[0].ContextMap()["discarded"])
	to.take()
	a.allocate("pages", 64<<20, 1)
	s.Flush()
	require.Equal(t, 2, messages(logs, sampler.MsgAllocationsFull))
}

func TestMissingRightIsLoggedOnceWithItsName(t *testing.T) {
	if os.Geteuid() != 0 {
		hosttest.SkipUnprivileged(t, "needs root to become somebody else")
	}
	path := buildAllocator(t, "")
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(path)), 0o755))
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
	binary := filepath.Join(filepath.Dir(path), "test")
	own, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(binary, own, 0o755))
	cmd := exec.Command(binary, "-test.run=^TestUnprivileged$", "-test.v")
	cmd.Dir = filepath.Dir(path)
	cmd.Env = append(os.Environ(), "ALLOCATOR="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestUnprivileged")
}

// TestUnprivileged is started by TestMissingRightIsLoggedOnceWithItsName as another user.
func TestUnprivileged(t *testing.T) {
	path := os.Getenv("ALLOCATOR")
	if path == "" {
		t.Skip("is run by TestMissingRightIsLoggedOnceWithItsName")
	}
	a := start(t, path, -1)
	s, to, logs := newTestSampler(t, nil)
	require.NoError(t, s.Start(context.Background()))
	const message = "allocations of some processes cannot be sampled; everything else continues"
	for range 3 {
		s.Set([]procfs.Process{a.Process})
		require.Eventually(t, func() bool { return len(s.changed) == 0 }, patience, time.Millisecond)
		s.Flush()
	}
	require.Eventually(t, func() bool { return messages(logs, message) == 1 }, patience, time.Millisecond)
	require.Contains(t, fmt.Sprint(logs.FilterMessage(message).All()[0].ContextMap()["why"]), "CAP_")
	a.allocate("pages", 1<<20, 1)
	require.NoError(t, s.Stop(context.Background()))
	require.Equal(t, 1, messages(logs, message))
	objects, _ := to.take()
	require.Empty(t, objects)
	require.Zero(t, s.Stats().Processes)
}

func TestSamplerStopsInAnyState(t *testing.T) {
	s, _, _ := newTestSampler(t, nil)
	s.Flush()
	require.NoError(t, s.Stop(context.Background()))
	s, _, _ = newTestSampler(t, nil)
	s.Set(nil)
	require.NoError(t, s.Start(context.Background()))
	s.Flush()
	require.NoError(t, s.Stop(context.Background()))
	require.NoError(t, s.Stop(context.Background()))
	s.Flush()
	s.Set([]procfs.Process{{PID: 1}})
}

// TestProgramThatDoesNotAnswerCostsItself starts two programs. The file system of one
// program stops responding before the program is read. The other program must still be
// sampled.
func TestProgramThatDoesNotAnswerCostsItself(t *testing.T) {
	skipWithoutProbes(t)
	path := buildAllocator(t, "")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	local := start(t, path, -1)
	mount := hosttest.NewMount(t, map[string][]byte{"allocator": content})
	// This process serves the file system, so it would wait for itself if it executed a
	// program from the mount. Therefore, a shell executes the program.
	remote := exec.Command("sh", "-c", `read line && exec "$0"`, filepath.Join(mount.Dir, "allocator"))
	in, err := remote.StdinPipe()
	require.NoError(t, err)
	out, err := remote.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, remote.Start())
	t.Cleanup(func() {
		mount.Go()
		_ = in.Close()
		_ = remote.Wait()
	})
	_, err = fmt.Fprintln(in)
	require.NoError(t, err)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	hangs, err := procfs.At("").Process(remote.Process.Pid)
	require.NoError(t, err)

	runner := stuckread.New(zap.NewNop(), nil, nil)
	s, to, _ := newTestSampler(t, func(c *Settings) { c.Runner, c.DiscoveryInterval = runner, time.Second })
	mount.Stop()
	require.NoError(t, s.Start(context.Background()))
	s.Set([]procfs.Process{hangs, local.Process})
	require.Eventually(t, func() bool { return s.Stats().Processes == 1 }, patience, 10*time.Millisecond)
	require.Equal(t, 1, runner.Stats().Stuck)
	want := local.allocate("pages", 1<<30, 1)
	s.Flush()
	objects, space := to.take()
	within(t, want, objects, space)
	require.NoError(t, s.Stop(context.Background()))
}
