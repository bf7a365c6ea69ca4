// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/oncpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

const patience = 60 * time.Second

// tally counts the samples of a cgroup.
type tally struct {
	samples int
	time    time.Duration
	// named counts the samples by the path of the executable. An unknown path is empty.
	named map[string]int
	pids  map[int]bool
}

// sink counts samples by cgroup and by process.
type sink struct {
	begin time.Time

	mu      sync.Mutex
	cgroups map[string]*tally
	pids    map[int]time.Duration
	// taken contains the samples of the followed process since the call of follow, with
	// the path of the process's executable at each sample. follows is the pid of the
	// process.
	follows int
	taken   []taken
}

type taken struct {
	at     int64
	period time.Duration
	path   string
}

func (s *sink) AddValue(k samples.Key, at, _ int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var in, path string
	for _, a := range k.Resource.Attributes {
		switch a.Key {
		case "process.linux.cgroup":
			in, _ = a.Value.(string)
		case "process.executable.path":
			path, _ = a.Value.(string)
		}
	}
	t := s.cgroups[in]
	if t == nil {
		t = &tally{named: map[string]int{}, pids: map[int]bool{}}
		s.cgroups[in] = t
	}
	t.samples++
	t.time += time.Duration(k.Period)
	t.named[path]++
	t.pids[k.Resource.PID] = true
	s.pids[k.Resource.PID] += time.Duration(k.Period)
	if k.Resource.PID == s.follows {
		s.taken = append(s.taken, taken{at, time.Duration(k.Period), path})
	}
	return true
}

// follow starts to keep the samples of one process.
func (s *sink) follow(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.follows, s.taken = pid, nil
}

// between returns the CPU time that the followed process used from begin to
// end, according to its samples.
func (s *sink) between(begin, end int64) (sum time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.taken {
		if x.at > begin && x.at <= end {
			sum += x.period
		}
	}
	return sum
}

// last returns the path of the executable at the followed process's last sample.
func (s *sink) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.taken) == 0 {
		return ""
	}
	return s.taken[len(s.taken)-1].path
}

func (*sink) ReadUpTo(int64)                   {}
func (*sink) Paused() bool                     { return false }
func (*sink) KernelLost(*samples.Type, uint64) {}

// Batch returns the number of the current batch. A new batch begins every half second. An
// ended process is remembered for two batches.
func (s *sink) Batch() uint64 { return 1 + uint64(time.Since(s.begin)/(time.Second/2)) }

// of returns a copy of a cgroup's tally.
func (s *sink) of(path string) tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := tally{named: map[string]int{}, pids: map[int]bool{}}
	if t := s.cgroups[path]; t != nil {
		out.samples, out.time = t.samples, t.time
		for k, v := range t.named {
			out.named[k] = v
		}
		for k := range t.pids {
			out.pids[k] = true
		}
	}
	return out
}

func (s *sink) ofPID(pid int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pids[pid]
}

// forget drops the memory of the test itself, so that this
// memory does not count as a leak.
func (s *sink) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.cgroups)
	clear(s.pids)
}

// setup describes a sampler that is built in the same way as in the receiver.
type setup struct {
	targets   []processes.Target
	discovery time.Duration
	frequency int
	maxEvents int
	// to receives the samples. If to is nil, start uses a sink that counts them.
	to perftargets.Sink
}

// clock returns the time of CLOCK_MONOTONIC in nanoseconds.
func clock() int64 { return time.Now().UnixNano() - perfevent.ClockOffset() }

// start starts a sampler. The returned function returns the description of
// the sampled targets from the log.
func (s setup) start(t *testing.T) (*oncpu.Sampler, *sink, func() string) {
	t.Helper()
	if r := perfevent.Probe(); r.HostWide != nil || r.Kernel != nil {
		hosttest.SkipUnprivileged(t, "%v", r)
	}
	if s.discovery == 0 {
		s.discovery = 50 * time.Millisecond
	}
	if s.frequency == 0 {
		s.frequency = 997
	}
	if s.maxEvents == 0 {
		s.maxEvents = 4096
	}
	tree, err := cgroup.Open("/")
	if err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	wanted, err := processes.NewMatcher(s.targets, os.Getpid())
	require.NoError(t, err)
	cfg := processes.Config{Tree: tree, Wanted: wanted}
	finder, err := perftargets.NewTargetFinder(cfg, s.targets)
	require.NoError(t, err)
	to := &sink{begin: time.Now(), cgroups: map[string]*tally{}, pids: map[int]time.Duration{}}
	if s.to == nil {
		s.to = to
	}
	core, logs := observer.New(zap.InfoLevel)
	sampler := oncpu.New(oncpu.Settings{
		Config: perftargets.Config{
			Finder: finder, Table: processes.NewTable(cfg), MaxEvents: s.maxEvents, DiscoveryInterval: s.discovery,
			ThreadName: true, Logger: zap.New(core), Now: clock, Probe: perfevent.Probe,
			Stacks: unwind.NewStacks(unwind.StacksConfig{}),
		},
		Sink: s.to, Frequency: s.frequency, Status: func(error) {}, Notes: func(perfevent.Rights) []string { return nil },
	})
	require.NoError(t, sampler.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, sampler.Stop(context.Background())) })
	return sampler, to, func() string {
		all := logs.FilterMessage("sampling started").All()
		if len(all) == 0 {
			return ""
		}
		how, _ := all[len(all)-1].ContextMap()["what"].(string)
		return how
	}
}

// held counts the resources that the process could leak.
type held struct {
	files, rings int
	heap         int
}

func holds(t *testing.T) held {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return held{files: len(fds), rings: strings.Count(string(maps), "[perf_event]"), heap: hosttest.Heap()}
}

// run starts a command and returns a scanner for the lines of its output.
func run(t *testing.T, cmd *exec.Cmd) (lines *bufio.Scanner, pid int) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return bufio.NewScanner(out), cmd.Process.Pid
}

// spare returns a cgroup that gets the given number of cores even on a busy machine.
func spare(t *testing.T, name string, cores float64) *hosttest.Cgroup {
	t.Helper()
	c := hosttest.NewCgroup(t, "hotprofile-"+name)
	c.RaiseWeight(t)
	c.SetQuota(t, cores)
	return c
}

func alive(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	n := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			n++
		}
	}
	return n
}

// cpuUsed returns the CPU time of a cgroup as the kernel has counted it.
func cpuUsed(t *testing.T, path string) time.Duration {
	t.Helper()
	if text, err := os.ReadFile("/sys/fs/cgroup/cpuacct" + path + "/cpuacct.usage"); err == nil {
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		require.NoError(t, err)
		return time.Duration(n)
	}
	text, err := os.ReadFile("/sys/fs/cgroup" + path + "/cpu.stat")
	if err != nil {
		hosttest.SkipUnprivileged(t, "no cgroup's CPU time: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if us, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(us), 10, 64)
			require.NoError(t, err)
			return time.Duration(n) * time.Microsecond
		}
	}
	t.Fatal("cpu.stat without usage_usec")
	return 0
}

// cpuTime returns the CPU time of all threads of a process, according
// to the CPU clock of the process.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	var ts unix.Timespec
	const allThreadsScheduled = 2 // CPUCLOCK_SCHED
	require.NoError(t, unix.ClockGettime(int32(^pid<<3|allThreadsScheduled), &ts))
	return time.Duration(ts.Nano())
}

// selfCPU returns the CPU time of the test process.
func selfCPU(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
