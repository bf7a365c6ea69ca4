// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

const patience = 30 * time.Second

// attempts is the number of times that a test is tried if records
// are lost. On a busy machine, a ring can become full before it is
// read, because of the host's switches or the copies of stacks.
const attempts = 5

type sink struct {
	mu      sync.Mutex
	all     []wait
	upTo    int64
	full    atomic.Bool
	closing atomic.Int64
}

type wait struct {
	samples.Key
	end, value int64
}

func (s *sink) AddValue(k samples.Key, time, value int64) bool {
	if s.full.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, wait{k, time, value})
	return true
}

func (s *sink) ReadUpTo(t int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upTo = t
}
func (s *sink) KernelLost(*samples.Type, uint64) {}
func (s *sink) Paused() bool                     { return s.full.Load() }
func (s *sink) Batch() uint64                    { return 1 }
func (s *sink) Closing() int64                   { return s.closing.Load() }

// of returns the sum and the number of a thread's waits of one
// type. It includes only waits that ended between from and to.
func (s *sink) of(typ string, tid int, from, to int64) (sum time.Duration, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.all {
		if w.Type.Name == typ && int(w.Thread.ID) == tid && w.end >= from && w.end < to {
			sum += time.Duration(w.value)
			n++
		}
	}
	return sum, n
}

// targets is a perftargets.Finder that returns a Finding and an error set by the test.
type targets struct {
	mu sync.Mutex
	perftargets.Finding
	err error
}

func (f *targets) Find(context.Context, bool) (perftargets.Finding, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Finding, f.err
}

func (f *targets) set(to perftargets.Finding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Finding = to
}

func process(pid int) perftargets.Finding {
	return perftargets.Finding{
		Wanted: perftargets.Wanted{Processes: []processes.Match{{Process: procfs.Process{PID: pid, Start: 1}, Threads: 1}}},
	}
}

func group(t testing.TB, path string) perftargets.Finding {
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	u, ok := tree.GroupAt(path)
	require.True(t, ok)
	dir, err := tree.PerfDir(u)
	require.NoError(t, err)
	return perftargets.Finding{Wanted: perftargets.Wanted{Cgroups: []perftargets.WantedCgroup{{Path: path, Directory: dir}}}}
}

// monotonic returns the time of CLOCK_MONOTONIC in nanoseconds.
func monotonic() int64 { return time.Now().UnixNano() - perfevent.ClockOffset() }

func skipWithoutRights(t testing.TB) {
	t.Helper()
	r := perfevent.Probe()
	for _, err := range []error{r.Own, r.HostWide, r.Kernel} {
		if err != nil {
			hosttest.SkipUnprivileged(t, "%v", err)
		}
	}
}

// start starts a sampler. The sampler is stopped when the test ends.
func start(t testing.TB, f perftargets.Finder, change func(*Settings)) (*Sampler, *sink, *observer.ObservedLogs) {
	t.Helper()
	skipWithoutRights(t)
	core, logs := observer.New(zap.DebugLevel)
	to := new(sink)
	cfg := Settings{
		Config: perftargets.Config{
			Finder: f, Table: processes.NewTable(processes.Config{}), MaxEvents: 4096,
			DiscoveryInterval: 20 * time.Millisecond, ThreadID: true, ThreadName: true,
			Logger: zap.New(core), Now: monotonic, Probe: perfevent.Probe,
			Stacks: unwind.NewStacks(unwind.StacksConfig{}),
		},
		Sink: to, MinDuration: time.Millisecond, MaxEventsPerSecond: 10000, Still: newStill("/"),
	}
	if change != nil {
		change(&cfg)
	}
	s := New(cfg)
	require.NoError(t, s.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return s, to, logs
}

// waiter builds the program testdata/waiter.c and returns the path of the executable.
func waiter(t testing.TB, flags ...string) string {
	t.Helper()
	gcc := hosttest.Tool(t, "gcc")
	path := filepath.Join(t.TempDir(), "waiter")
	flags = append(flags, "-O2", "-pthread", "-o", path, "testdata/waiter.c")
	out, err := exec.Command(gcc, flags...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// program is a process that waits for a line on standard
// input. Then it does its work and prints its measurements.
type program struct {
	*exec.Cmd
	stdin *os.File
	out   *bufio.Reader
}

func testBinary(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

func run(t testing.TB, cmd *exec.Cmd) *program {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdin, cmd.Stderr = r, os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	r.Close()
	p := &program{cmd, w, bufio.NewReader(stdout)}
	t.Cleanup(func() {
		w.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return p
}

func (p *program) begin(t testing.TB) {
	t.Helper()
	_, err := fmt.Fprintln(p.stdin, "go")
	require.NoError(t, err)
}

// number reads a number that the program printed.
func (p *program) number(t testing.TB) int64 {
	t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(t, err)
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	require.NoError(t, err)
	return n
}

// favoured returns a cgroup with a high CPU weight. Its
// programs run at full speed even if the machine is busy.
func favoured(t testing.TB) *hosttest.Cgroup {
	t.Helper()
	g := hosttest.NewCgroup(t, "hotprofile-offcpu")
	g.RaiseWeight(t)
	return g
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 5*time.Millisecond, what)
}

// TestKernelTimeOffTheCPUIsTheProgramsOwn compares the sampled times with times that
// the programs measure themselves. It covers each way to block and each way to attach.
func TestKernelTimeOffTheCPUIsTheProgramsOwn(t *testing.T) {
	skipWithoutRights(t)
	binary := waiter(t, "-fno-omit-frame-pointer")
	for _, how := range []string{"sleep", "migrate", "mutex", "pipe", "socket", "in Go"} {
		for _, scope := range []string{"process", "cgroup", "host"} {
			t.Run(how+" in a "+scope, func(t *testing.T) {
				var lost uint64
				for range attempts {
					if lost = offTheCPU(t, binary, how, scope); lost == 0 {
						return
					}
				}
				require.Zero(t, lost)
			})
		}
	}
}

// offTheCPU compares the sampled times with the program's own times, for one way to block
// and one way to attach. If records were lost, offTheCPU returns the number of lost
// records instead of comparing the times.
func offTheCPU(t *testing.T, binary, how, scope string) (lost uint64) {
	t.Helper()
	const times, each = 60, 10 * time.Millisecond
	command := []string{binary, how, strconv.Itoa(times), strconv.Itoa(int(each / time.Millisecond))}
	if how == "in Go" {
		command[0] = testBinary(t)
	}
	cmd := exec.Command(command[0], command[1:]...)
	finder := new(targets)
	g := favoured(t)
	switch scope {
	case "cgroup":
		cmd = g.Command(command[0], command[1:]...)
		finder.set(group(t, g.Path))
	case "host":
		finder.Wanted.Host = true
	}
	cmd.Env = append(os.Environ(), helperVariable+"=read")
	p := run(t, cmd)
	if scope != "cgroup" {
		g.Add(t, p.Process.Pid)
	}
	if scope == "process" {
		finder.set(process(p.Process.Pid))
	}
	s, to, _ := start(t, finder, func(c *Settings) { c.MinDuration, c.MaxEventsPerSecond = 0, 1e6 })
	waitFor(t, "attached", func() bool { return s.Targets() == 1 })
	p.begin(t)
	for range 5 { // windows end while the program waits
		time.Sleep(50 * time.Millisecond)
		to.closing.Store(monotonic())
		s.Wake()
	}
	tid := p.Process.Pid
	if how == "in Go" {
		tid = int(p.number(t))
	}
	began, ended := p.number(t), p.number(t)
	want := time.Duration(p.number(t))
	require.NoError(t, p.Wait())
	require.NoError(t, s.Stop(t.Context()))
	blocked, n := to.of("off_cpu", tid, began, ended)
	queued, _ := to.of("runqueue", tid, began, ended)
	t.Logf("%v by the program's clocks; %v blocked in %d waits and %v preempted, %+.2f%%; %+v", want, blocked, n, queued,
		100*(float64(blocked+queued)/float64(want)-1), s.Stats())
	if lost := s.Stats().Lost + s.Stats().Unreadable; lost > 0 {
		return lost
	}
	require.InEpsilon(t, want, blocked+queued, 0.02)
	require.GreaterOrEqual(t, n, times)
	require.Greater(t, float64(blocked), 0.98*float64(times*each))
	return 0
}

// TestKernelScaledValuesSumToTheProgramsOwnTime samples only every Nth switch.
func TestKernelScaledValuesSumToTheProgramsOwnTime(t *testing.T) {
	skipWithoutRights(t)
	binary := waiter(t, "-fno-omit-frame-pointer")
	for _, scope := range []string{"process", "cgroup"} {
		t.Run(scope, func(t *testing.T) {
			cmd := exec.Command(binary, "both", "400", "1")
			finder := new(targets)
			g := favoured(t)
			if scope == "cgroup" {
				cmd = g.Command(binary, "both", "400", "1")
				finder.set(group(t, g.Path))
			}
			p := run(t, cmd)
			if scope == "process" {
				g.Add(t, p.Process.Pid)
				finder.set(process(p.Process.Pid))
			}
			s, to, _ := start(t, finder, func(c *Settings) { c.MinDuration, c.MaxEventsPerSecond = 0, 100 })
			waitFor(t, "attached", func() bool { return s.Targets() == 1 })
			p.begin(t)
			began, ended := p.number(t), p.number(t)
			want := time.Duration(p.number(t))
			every := s.Stats().Every
			require.NoError(t, p.Wait())
			require.NoError(t, s.Stop(t.Context()))
			blocked, n := to.of("off_cpu", p.Process.Pid, began, ended)
			queued, _ := to.of("runqueue", p.Process.Pid, began, ended)
			st := s.Stats()
			t.Logf("%v by the program's clocks; %v blocked in %d waits, %v preempted, %v of all without a stack, %+.2f%%; one of %d; %d without a stack", want, blocked, n, queued,
				st.Unshared, 100*(float64(blocked+queued)/float64(want)-1), every, st.RateLimited)
			require.InEpsilon(t, want, blocked+queued, 0.02)
			require.Greater(t, st.RateLimited, uint64(300), "one of several was sampled for most of it")
			seconds := float64(ended-began) / 1e9
			require.Less(t, float64(n), 3*100*seconds, "some more until it was noticed")
		})
	}
}

// TestWaitsEndWithTheirThreads covers short-lived programs that sleep and then exit.
func TestWaitsEndWithTheirThreads(t *testing.T) {
	skipWithoutRights(t)
	var lost uint64
	for range attempts {
		if lost = waitsEnd(t); lost == 0 {
			return
		}
	}
	require.Zero(t, lost)
}

// waitsEnd checks the waits of the short-lived programs. If records were lost, waitsEnd
// returns the number of lost records instead of checking the waits.
func waitsEnd(t *testing.T) (lost uint64) {
	t.Helper()
	g := favoured(t)
	finder := new(targets)
	finder.set(group(t, g.Path))
	p := run(t, g.Command("dash", "-c", "read _; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 0.02; done; echo 0; sleep 0.3; read _"))
	s, to, _ := start(t, finder, nil)
	waitFor(t, "attached", func() bool { return s.Targets() == 1 })
	p.begin(t)
	p.number(t)
	// The sampler forgets a thread two windows after it has read the thread's end.
	for closed := 0; closed < 5 || s.Stats().Threads > 3; closed++ {
		require.Less(t, closed, 100, "%d threads are left", s.Stats().Threads)
		to.close(t, s)
	}
	require.NoError(t, s.Stop(t.Context()))
	if st := s.Stats(); st.Lost+st.Unreadable > 0 {
		return st.Lost + st.Unreadable
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	slept := map[int]time.Duration{}
	for _, w := range to.all {
		if w.Thread.Name == "sleep" && w.Type.Name == "off_cpu" && w.Resource.PID != p.Process.Pid {
			slept[w.Resource.PID] += time.Duration(w.value)
		}
	}
	require.GreaterOrEqual(t, len(slept), 20)
	ended := 0
	for _, d := range slept {
		if d > 15*time.Millisecond && d < 200*time.Millisecond {
			ended++
		}
	}
	require.GreaterOrEqual(t, ended, 20)
	return 0
}

// TestSamplersOfTheSameProgramAllHaveItsStacks attaches two samplers to the same program.
// If another sampler's event samples a switch first, the kernel gives the sample the ID of
// the other event.
func TestSamplersOfTheSameProgramAllHaveItsStacks(t *testing.T) {
	skipWithoutRights(t)
	g := favoured(t)
	finder := new(targets)
	finder.set(group(t, g.Path))
	p := run(t, g.Command("dash", "-c", "while :; do sleep 0.005; done"))
	stacks := func(s *Sampler, to *sink) (n int) {
		to.close(t, s) // also emits samples that wait to be scaled
		to.mu.Lock()
		defer to.mu.Unlock()
		for _, w := range to.all {
			if w.Resource.PID == p.Process.Pid && w.Type.Name == "off_cpu" && len(w.Stack.Locations) > 1 {
				n++
			}
		}
		return n
	}
	one, to, _ := start(t, finder, nil)
	other, toOther, _ := start(t, finder, nil)
	waitFor(t, "attached", func() bool { return one.Targets() == 1 && other.Targets() == 1 })
	for end := time.Now().Add(patience); stacks(one, to) < 20 || stacks(other, toOther) < 20; {
		require.True(t, time.Now().Before(end), "no stacks in one of the two")
	}
}

func TestWaitOverAPauseIsNotEmitted(t *testing.T) {
	p := run(t, exec.Command("dash", "-c", "read _; sleep 0.02; echo 0; read _"))
	finder := new(targets)
	finder.set(process(p.Process.Pid))
	s, to, logs := start(t, finder, nil)
	waitFor(t, "attached", func() bool { return s.Targets() == 1 })
	p.begin(t)
	p.number(t)
	waitFor(t, "in the second read", func() bool {
		_, running, ok := newStill("/")(p.Process.Pid, p.Process.Pid)
		return ok && !running
	})
	to.close(t, s) // the start of the second read has been read by now
	to.full.Store(true)
	s.Wake()
	waitFor(t, "paused", func() bool { return logs.FilterMessage(sampler.MsgThreadsFull).Len() == 1 })
	require.Positive(t, s.Stats().Forgotten)
	to.full.Store(false)
	s.Wake()
	waitFor(t, "resumed", func() bool { return logs.FilterMessage("off-CPU sampling resumed").Len() == 1 })
	require.Positive(t, s.Stats().PausedFull)
	to.mu.Lock()
	before := len(to.all)
	to.mu.Unlock()
	to.close(t, s)
	to.mu.Lock()
	require.Len(t, to.all, before, "the second read has lasted since before the pause")
	to.mu.Unlock()
	underWay := s.Stats().UnderWay
	p.begin(t)
	waitFor(t, "counted", func() bool { s.Wake(); return s.Stats().UnderWay > underWay })
}

func TestSwitchesThatAreTooManyToReadPauseSampling(t *testing.T) {
	p := run(t, exec.Command(waiter(t, "-fno-omit-frame-pointer"), "sleep", "100000", "1"))
	finder := new(targets)
	finder.set(process(p.Process.Pid))
	s, _, logs := start(t, finder, func(c *Settings) { c.MaxEventsPerSecond = 1 })
	waitFor(t, "attached", func() bool { return s.Targets() == 1 })
	p.begin(t)
	waitFor(t, "paused", func() bool { return s.Stats().PausedRate > 0 })
	waitFor(t, "said", func() bool { return logs.FilterMessageSnippet("more context switches than can be read").Len() == 1 })
	waitFor(t, "resumed", func() bool { return logs.FilterMessage("off-CPU sampling resumed").Len() > 0 })
}

func TestNothingIsAttachedWhileNothingIsWanted(t *testing.T) {
	p := run(t, exec.Command("dash", "-c", "read _; sleep 0.05; sleep 0.05; echo 0; read _"))
	finder := new(targets)
	changed := make(chan struct{}, 1)
	before := perfDescriptors(t)
	s, to, logs := start(t, finder, func(c *Settings) { c.Changed, c.DiscoveryInterval = changed, time.Hour })
	tell := func(f perftargets.Finding) {
		finder.set(f)
		changed <- struct{}{}
	}
	waitFor(t, "started", func() bool { return logs.FilterMessage("off-CPU sampling started").Len() == 1 })
	waitFor(t, "idle", func() bool { return to.position() == buffer.Idle })
	require.Equal(t, before, perfDescriptors(t))
	wanted := monotonic()
	tell(process(p.Process.Pid))
	waitFor(t, "attached", func() bool { return s.Targets() == 1 })
	attached := monotonic()
	require.Greater(t, perfDescriptors(t), before)
	p.begin(t)
	p.number(t)
	tell(perftargets.Finding{})
	waitFor(t, "detached", func() bool { return s.Targets() == 0 && to.position() == buffer.Idle })
	require.Equal(t, before, perfDescriptors(t))
	require.Zero(t, s.Stats().Threads)
	to.mu.Lock()
	require.NotEmpty(t, to.all)
	for _, w := range to.all {
		require.GreaterOrEqual(t, w.Capture.From, wanted)
		require.LessOrEqual(t, w.Capture.From, attached)
		require.Less(t, w.end, w.Capture.Until())
		require.LessOrEqual(t, w.Capture.Until(), monotonic())
	}
	to.mu.Unlock()
}

// close ends a window and waits until the sampler has noticed the end.
func (s *sink) close(t testing.TB, of *Sampler) {
	t.Helper()
	now := monotonic()
	s.closing.Store(now)
	of.Wake()
	waitFor(t, "the end of the window", func() bool { return of.reader.closed.Load() == now })
}

func (s *sink) position() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.upTo
}

func perfDescriptors(t testing.TB) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range all {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.Contains(to, "perf_event") {
			n++
		}
	}
	return n
}

func TestMissingRightIsLoggedOnceAndRetried(t *testing.T) {
	refused := &perfevent.RightsError{What: "sampling time in the kernel", Needed: []string{"CAP_PERFMON"}, Err: os.ErrPermission}
	var permitted atomic.Bool
	finder := new(targets)
	finder.set(process(os.Getpid()))
	s, _, logs := start(t, finder, func(c *Settings) {
		c.DiscoveryInterval = 5 * time.Millisecond
		c.Probe = func() perfevent.Rights {
			if permitted.Load() {
				return perfevent.Probe()
			}
			return perfevent.Rights{Kernel: refused}
		}
	})
	said := func() *observer.ObservedLogs {
		return logs.FilterMessage("off-CPU sampling is not possible; other samplers continue")
	}
	waitFor(t, "refused", func() bool { return said().Len() == 1 })
	require.Contains(t, said().All()[0].ContextMap()["error"], "CAP_PERFMON")
	require.Contains(t, said().All()[0].ContextMap()["error"], "context switches happen in the kernel")
	time.Sleep(20 * time.Millisecond) // the time of several discoveries
	require.Equal(t, 1, said().Len())
	require.Zero(t, s.Targets())
	permitted.Store(true)
	waitFor(t, "attached", func() bool { return s.Targets() == 1 })
}

func TestStopWithoutStart(t *testing.T) {
	s := New(Settings{})
	require.NoError(t, s.Stop(context.Background()))
	require.NoError(t, s.Stop(context.Background()))
}
