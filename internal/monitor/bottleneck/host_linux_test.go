// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package bottleneck

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

func openHost(t testing.TB) *cgroup.Tree {
	t.Helper()
	tree, err := cgroup.Open("/")
	if err != nil {
		hosttest.SkipUnprivileged(t, "no cgroups here: %v", err)
	}
	return tree
}

const (
	loadVariable = "BOTTLENECK_TEST_LOAD"
	workVariable = "BOTTLENECK_TEST_WORK"
)

// TestLoad is not a test. Other tests start it as a separate process that creates load.
// It runs a load for each line of its input, and prints a line when the load has ended.
func TestLoad(t *testing.T) {
	if os.Getenv(loadVariable) == "" {
		t.Skip("runs only as the load of other tests")
	}
	runtime.GOMAXPROCS(2)                                // allows two spinning threads
	time.AfterFunc(5*time.Minute, func() { os.Exit(1) }) // exits even if the parent was killed
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		order := strings.Fields(lines.Text())
		var d time.Duration
		passes := 0
		if len(order) > 1 {
			d, _ = time.ParseDuration(order[1])
		}
		switch order[0] {
		case "spin":
			spinFor(d)
		case "threads": // two threads spin
			other := make(chan struct{})
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				defer close(other)
				spinFor(d)
			}()
			spinFor(d)
			<-other
		case "half": // busy for half of the time
			for end := time.Now().Add(d); time.Now().Before(end); {
				spinFor(5 * time.Millisecond)
				time.Sleep(5 * time.Millisecond)
			}
		case "pingpong": // passes per millisecond (0 means no limit), work per pass
			perMillisecond, _ := strconv.Atoi(order[2])
			work, _ := time.ParseDuration(order[3])
			passes = pingPong(d, perMillisecond, work)
		case "children": // short-lived processes, one after the other
			for end := time.Now().Add(d); time.Now().Before(end); {
				_ = exec.Command("/bin/true").Run()
			}
		}
		fmt.Println("done", passes)
	}
	os.Exit(0)
}

func spinFor(d time.Duration) {
	if d == 0 {
		return
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
}

// pingPong passes a byte back and forth between this process and a child. Both processes
// run on the same CPU, so that each pass is a context switch.
func pingPong(d time.Duration, perMillisecond int, work time.Duration) (passes int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	_ = unix.SchedGetaffinity(0, &before)
	one.Set(firstOf(before))
	_ = unix.SchedSetaffinity(0, &one)
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	var to, from [2]int
	if unix.Pipe2(to[:], unix.O_CLOEXEC) != nil || unix.Pipe2(from[:], unix.O_CLOEXEC) != nil {
		return 0
	}
	echo := exec.Command("/proc/self/exe", "-test.run=^TestEcho$")
	echo.Env = append(os.Environ(), loadVariable+"=echo", workVariable+"="+work.String())
	in, out := os.NewFile(uintptr(to[0]), "in"), os.NewFile(uintptr(from[1]), "out")
	echo.ExtraFiles = []*os.File{in, out}
	if echo.Start() != nil {
		return 0
	}
	in.Close()
	out.Close()
	var b [1]byte
	begin := time.Now()
	for ; ; passes += 2 {
		spinFor(work)
		raw(unix.SYS_WRITE, to[1], &b)
		raw(unix.SYS_READ, from[0], &b)
		if passes%64 != 0 {
			continue
		}
		since := time.Since(begin)
		if since > d {
			break
		}
		if perMillisecond == 0 {
			continue
		}
		if ahead := time.Duration(passes)*time.Millisecond/time.Duration(perMillisecond) - since; ahead > 0 {
			time.Sleep(ahead)
		}
	}
	unix.Close(to[1])
	unix.Close(from[0])
	_ = echo.Wait()
	return passes
}

func firstOf(set unix.CPUSet) int {
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			return cpu
		}
	}
	return 0
}

// raw makes a system call without the runtime's bookkeeping.
func raw(call uintptr, fd int, b *[1]byte) uintptr {
	n, _, _ := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(b)), 1)
	return n
}

// TestEcho is not a test. It is the child process of pingPong.
func TestEcho(t *testing.T) {
	if os.Getenv(loadVariable) != "echo" {
		t.Skip("runs only as a part of the load of other tests")
	}
	runtime.LockOSThread()
	work, _ := time.ParseDuration(os.Getenv(workVariable))
	var b [1]byte
	for raw(unix.SYS_READ, 3, &b) == 1 {
		spinFor(work)
		raw(unix.SYS_WRITE, 4, &b)
	}
	os.Exit(0)
}

// load is a process in its own cgroup.
type load struct {
	t      testing.TB
	cgroup *hosttest.Cgroup
	cmd    *exec.Cmd
	unit   cgroup.Group
	stdin  io.Writer
	stdout *bufio.Reader
}

func newLoad(t testing.TB, tree *cgroup.Tree) *load {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	c := hosttest.NewCgroup(t, "hotprofile-bottleneck")
	c.RaiseWeight(t) // more CPU time makes the relative error smaller
	cmd := c.Command(self, "-test.run=^TestLoad$")
	cmd.Env = append(os.Environ(), loadVariable+"=obey")
	l := &load{t: t, cgroup: c, cmd: cmd}
	l.stdin, err = cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	l.stdout = bufio.NewReader(stdout)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	l.begin("none")
	l.await()
	p, err := tree.PathsOf(cmd.Process.Pid)
	require.NoError(t, err)
	l.unit = tree.GroupOf(p)
	require.Equal(t, c.Path, l.unit.Cgroup)
	return l
}

func (l *load) begin(order string) {
	l.t.Helper()
	_, err := fmt.Fprintln(l.stdin, order)
	require.NoError(l.t, err)
}

// await waits until the load has ended. For a ping-pong load, it returns the number of
// passes.
func (l *load) await() (passes int) {
	l.t.Helper()
	answer, err := l.stdout.ReadString('\n')
	require.NoError(l.t, err)
	_, err = fmt.Sscanf(answer, "done %d", &passes)
	require.NoError(l.t, err, answer)
	return passes
}

// cpuTime returns the CPU time that the kernel counted for the cgroup, in nanoseconds.
func (l *load) cpuTime(tree *cgroup.Tree) int64 {
	l.t.Helper()
	if dir := tree.Mount(cgroup.CPUAcct); dir != "" {
		b, err := os.ReadFile(filepath.Join(dir, l.cgroup.Path, "cpuacct.usage"))
		require.NoError(l.t, err)
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		require.NoError(l.t, err)
		return n
	}
	b, err := os.ReadFile(filepath.Join(tree.Mount(cgroup.V2Tree), l.cgroup.Path, "cpu.stat"))
	require.NoError(l.t, err)
	var n int64
	_, err = fmt.Sscanf(string(b), "usage_usec %d", &n)
	require.NoError(l.t, err)
	return n * 1000
}

func tick() int64 {
	var ts unix.Timespec
	if unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &ts) != nil {
		return int64(10 * time.Millisecond)
	}
	return ts.Nano()
}

// stolen returns the time that all CPUs lost to other guests of the same machine. The
// kernel may or may not count this time as CPU time of a thread.
func stolen(t testing.TB) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/stat")
	require.NoError(t, err)
	line, _, _ := bytes.Cut(b, []byte("\n"))
	n, err := strconv.ParseInt(strings.Fields(string(line))[8], 10, 64)
	require.NoError(t, err)
	return n * int64(procfs.Tick)
}

func now() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

func requireSwitches(t testing.TB) {
	t.Helper()
	if err := perfevent.Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
}

// through waits until all records up to now are counted.
func through(t testing.TB, b *Follower) {
	t.Helper()
	moment := now()
	require.Eventually(t, func() bool {
		at := b.Stats()
		return at.Through > moment && at.UnknownCPUs == 0
	}, 30*time.Second, 5*time.Millisecond)
}

// figuresOf returns the time for each number of running threads, in nanoseconds.
func figuresOf(n *Reader) []int64 {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	return append([]int64(nil), n.f.at...)
}

// seenLoad is the measurement of a load.
type seenLoad struct {
	at               []int64 // time by number of running threads
	busy, known, cpu int64
	took             int64
	gaps             int64
	used             int64 // CPU time counted by the kernel
	stats            Stats
	faults           []string
}

// watchLoad runs a load in a unit that is followed. If Σ k·t(k) differs too much from the CPU
// time that the kernel counted, the result contains a fault.
func watchLoad(t testing.TB, b *Follower, n *Reader, l *load, order string, used func() int64) seenLoad {
	t.Helper()
	n.Read(time.Now(), 1)
	require.NotNil(t, n.f)
	defer n.Close()
	through(t, b)
	before, usedBefore, stolenBefore, began := figuresOf(n), used(), stolen(t), now()
	statsBefore := b.Stats()
	l.begin(order)
	l.await()
	took := now() - began
	through(t, b)
	var s seenLoad
	s.at, s.used, s.took = figuresOf(n), used()-usedBefore, took
	for k := range s.at {
		s.at[k] -= before[k]
	}
	s.busy, s.known, s.cpu = sums(s.at)
	s.stats = b.Stats()
	s.gaps = s.stats.Through - statsBefore.Through - (s.stats.Known - statsBefore.Known)
	// The kernel's error is one tick per CPU. Moreover, the kernel counts the duration
	// of a switch for the next thread, but the records count it for the previous
	// thread. If threads take turns, the difference is about 0.5 µs per switch. The
	// difference is larger if a CPU searches other CPUs for work. Stolen time has a
	// resolution of one clock tick.
	switches := s.stats.Switches - statsBefore.Switches
	slack := tick()*int64(len(s.at)-1) + stolen(t) - stolenBefore + int64(procfs.Tick) + int64(switches)*int64(time.Microsecond)
	t.Logf("%s: t(k) %v, busy %v of %v known, took %v; CPU time %v, by the kernel %v (difference %v, slack %v); %d switches, %d lost, gaps of %v, %+v",
		order, s.at, time.Duration(s.busy), time.Duration(s.known), time.Duration(took), time.Duration(s.cpu), time.Duration(s.used),
		time.Duration(s.cpu-s.used), time.Duration(slack), switches, s.stats.Lost, time.Duration(s.gaps), s.stats)
	if apart := s.cpu - s.used; apart > slack || -apart > slack {
		s.faults = append(s.faults, fmt.Sprintf("%v and not %v of CPU time", time.Duration(s.cpu), time.Duration(s.used)))
	}
	if s.stats.Lost != statsBefore.Lost {
		s.faults = append(s.faults, "records were lost")
	}
	// Some kernel threads write no record when they leave a CPU. The follower detects
	// such cases, and the sums above remain correct. Such cases must stay rare.
	require.LessOrEqual(t, 100*s.stats.Surprises, s.stats.Switches)
	return s
}

// attempts is the maximum number of measurements of a load until a result has no
// faults. A busy host causes faults only in some measurements, but a wrong follower
// causes faults in all of them.
const attempts = 3

// addsUp measures a load repeatedly, until a measurement has no faults. After the last
// attempt, faults fail the test.
func addsUp(t testing.TB, b *Follower, n *Reader, l *load, order string, used func() int64) (s seenLoad) {
	t.Helper()
	for range attempts {
		if s = watchLoad(t, b, n, l, order, used); len(s.faults) == 0 {
			return s
		}
	}
	require.Empty(t, s.faults)
	return s
}

func newHostFollower(t testing.TB, tree *cgroup.Tree) *Follower {
	t.Helper()
	requireSwitches(t)
	b := New(tree, procfs.At("/"), Options{Least: 10, MaxSwitches: 10_000_000})
	t.Cleanup(b.Close)
	return b
}

func TestKernelHostBottleneck(t *testing.T) {
	cpus, err := perfevent.OnlineCPUs()
	require.NoError(t, err)
	near := func(a, b, error int64) bool { return a-b <= error && b-a <= error }
	for name, c := range map[string]struct {
		order string
		// ok reports whether the result is as expected on an idle host. If not, the host
		// may be busy, and the load is measured again.
		ok func(seenLoad) bool
	}{
		"a single thread that spins": {"spin 500ms", func(s seenLoad) bool {
			return near(s.busy, s.cpu, s.cpu/20) && s.busy > s.took/20
		}},
		"two threads that spin": {"threads 500ms", func(s seenLoad) bool {
			return len(cpus) == 1 || s.at[2] > s.cpu/50 && s.busy < s.cpu
		}},
		"a thread that is busy for half of the time": {"half 500ms", func(s seenLoad) bool {
			return near(s.busy, s.cpu, s.cpu/20) && s.busy > 0 && s.busy < s.took*7/10
		}},
		"two processes that take turns": {"pingpong 500ms 10 20us", func(s seenLoad) bool {
			return near(s.busy, s.cpu, s.cpu/20) && s.stats.Switches > 1000
		}},
		"processes that live for a moment": {"children 500ms", func(s seenLoad) bool {
			return s.busy > 0 && s.gaps < s.took/2
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tree := openHost(t)
			b := newHostFollower(t, tree)
			l := newLoad(t, tree)
			for end := time.Now().Add(time.Minute); ; {
				n := b.Reader(l.unit.ID, procfs.Process{})
				if c.ok(addsUp(t, b, n, l, c.order, func() int64 { return l.cpuTime(tree) })) {
					return
				}
				require.True(t, time.Now().Before(end), "the result is never as expected")
			}
		})
	}
}

func TestKernelHostBottleneckOfAProcess(t *testing.T) {
	tree := openHost(t)
	b := newHostFollower(t, tree)
	l := newLoad(t, tree)
	p, err := procfs.At("/").Process(l.cmd.Process.Pid)
	require.NoError(t, err)
	n := b.Reader("", p)
	seen := addsUp(t, b, n, l, "threads 1s", func() int64 {
		const cpuClock = 2 // CPUCLOCK_SCHED
		var ts unix.Timespec
		require.NoError(t, unix.ClockGettime(int32(^p.PID<<3|cpuClock), &ts))
		return ts.Nano()
	})
	require.NotZero(t, seen.busy)

	p.Start--
	other := b.Reader("", p)
	other.Read(time.Now(), 1)
	defer other.Close()
	through(t, b)
	before := figuresOf(other)
	l.begin("spin 100ms")
	l.await()
	through(t, b)
	busy, _, _ := sums(figuresOf(other))
	was, _, _ := sums(before)
	require.Equal(t, was, busy, "a process with another start is another process")
}

// BenchmarkHostFollowing measures the cost of following. With and without following, two
// processes pass a byte back and forth on one CPU, at a given pace or as fast as possible.
// The benchmark reports this process's CPU time and the number of passes. Run it with
// -benchtime 1x.
func BenchmarkHostFollowing(b *testing.B) {
	for _, order := range []string{"pingpong 3s 0 0", "pingpong 3s 200 0", "pingpong 3s 20 0"} {
		for _, followed := range []bool{false, true} {
			name := strings.ReplaceAll(order, " ", "_")
			if followed {
				name += "/followed"
			} else {
				name += "/alone"
			}
			b.Run(name, func(b *testing.B) {
				tree := openHost(b)
				bs := newHostFollower(b, tree)
				l := newLoad(b, tree)
				n := bs.Reader(l.unit.ID, procfs.Process{})
				if followed {
					n.Read(time.Now(), 1)
					defer n.Close()
					through(b, bs)
				}
				for b.Loop() {
					used, began, stats := usedByUs(b), now(), bs.Stats()
					l.begin(order)
					passes := l.await()
					took := float64(now() - began)
					b.ReportMetric(100*float64(usedByUs(b)-used)/took, "%core")
					b.ReportMetric(float64(passes)/took*1e9, "passes/s")
					b.ReportMetric(float64(bs.Stats().Switches-stats.Switches)/took*1e9, "switches/s")
					b.ReportMetric(float64(bs.Stats().Lost-stats.Lost), "lost")
				}
			})
		}
	}
}

func usedByUs(t testing.TB) int64 {
	t.Helper()
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}
