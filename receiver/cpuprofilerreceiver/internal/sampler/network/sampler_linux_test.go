// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// sink sums the values of all samples.
type sink struct {
	mu   sync.Mutex
	sums map[sumOf]sum
	upTo int64
	full atomic.Bool
	// pid is the process whose samples are summed. If pid is 0, the
	// samples of all processes are summed.
	pid atomic.Int64
	// each is called with each sample, unless it is nil.
	each func(k samples.Key, value int64)
}

// sumOf identifies a sum by the type of the samples, the transport protocol, and
// the function that made the calls.
type sumOf struct{ name, transport, function string }

type sum struct{ events, value int64 }

func (s *sink) AddValue(k samples.Key, _, value int64) bool {
	if s.full.Load() {
		return false
	}
	if pid := s.pid.Load(); pid != 0 && pid != int64(k.Resource.PID) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.each != nil {
		s.each(k, value)
	}
	of := sumOf{k.Type.Name, k.Transport.String(), ""}
	for _, l := range k.Stack.Locations {
		// The sampled program runs the same executable as
		// this test, at the same addresses.
		f := runtime.FuncForPC(uintptr(l.Address) - 1)
		if f == nil {
			continue
		}
		if name := f.Name()[strings.LastIndex(f.Name(), ".")+1:]; strings.HasSuffix(name, "Parts") || strings.HasSuffix(name, "OnePart") || name == "receive" {
			of.function = name
		}
	}
	was := s.sums[of]
	s.sums[of] = sum{was.events + 1, was.value + value}
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

// of returns the sum of all samples of a type, and the same samples summed by
// function and by transport protocol.
func (s *sink) of(name string) (all sum, functions, transports map[string]sum) {
	s.mu.Lock()
	defer s.mu.Unlock()
	functions, transports = make(map[string]sum), make(map[string]sum)
	add := func(to, n sum) sum { return sum{to.events + n.events, to.value + n.value} }
	for of, n := range s.sums {
		if of.name == name {
			all, functions[of.function], transports[of.transport] = add(all, n), add(functions[of.function], n), add(transports[of.transport], n)
		}
	}
	return all, functions, transports
}

// targets is a perftargets.Finder that returns a Finding set by the test.
type targets struct {
	mu    sync.Mutex
	found perftargets.Finding
}

func (f *targets) Find(context.Context, bool) (perftargets.Finding, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.found, nil
}

func (f *targets) set(to perftargets.Finding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found = to
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

// rig is a sampler with its sink, its logs and its targets. The sampler
// is stopped when the test ends.
type rig struct {
	*Sampler
	t    testing.TB
	to   *sink
	logs *observer.ObservedLogs
	find *targets
	stop func()
}

func start(t testing.TB, change func(*Settings)) *rig {
	t.Helper()
	r := perfevent.Probe()
	for _, err := range []error{r.HostWide, r.Kernel} {
		if err != nil {
			hosttest.SkipUnprivileged(t, "%v", err)
		}
	}
	core, logs := observer.New(zap.DebugLevel)
	rig := &rig{t: t, to: &sink{sums: make(map[sumOf]sum)}, logs: logs, find: &targets{}}
	cfg := Settings{
		Config: perftargets.Config{
			Finder: rig.find, Table: processes.NewTable(processes.Config{}), MaxEvents: 4096,
			DiscoveryInterval: 20 * time.Millisecond, Logger: zap.New(core), Now: monotonic, Probe: perfevent.Probe,
			Stacks: unwind.NewStacks(unwind.StacksConfig{}),
		},
		Sink: rig.to, MaxEventsPerSecond: 1_000_000,
	}
	if change != nil {
		change(&cfg)
	}
	if cfg.Root == "" {
		cfg.Root = hosttest.Tracefs(t)
	}
	rig.Sampler = New(cfg)
	require.NoError(t, rig.Start(t.Context()))
	rig.stop = sync.OnceFunc(func() { require.NoError(t, rig.Stop(context.Background())) })
	t.Cleanup(rig.stop)
	return rig
}

// attach sets the target of the sampler and waits until the target is sampled.
func (r *rig) attach(to perftargets.Finding) {
	r.t.Helper()
	r.find.set(to)
	want := len(to.Wanted.Cgroups) + len(to.Wanted.Processes)
	if to.Wanted.Host {
		want = 1
	}
	r.eventually("targets", func() bool { return r.Targets() == want })
	r.everyCall()
}

// everyCall waits until every call of the attached targets is sampled. From then on, the
// number of samples is known in advance. everyCall reads twice, because only the
// statistics of the second read are certain to be newer than the attachment.
func (r *rig) everyCall() {
	r.t.Helper()
	r.read()
	r.read()
	r.eventually("every call", func() bool {
		r.Wake()
		return r.Stats().Every == 1
	})
}

// read waits until the sampler has read all events that happened before the call.
func (r *rig) read() {
	r.t.Helper()
	now := monotonic()
	r.eventually("reading", func() bool {
		r.Wake()
		r.to.mu.Lock()
		defer r.to.mu.Unlock()
		return r.to.upTo > now
	})
}

func (r *rig) eventually(what string, done func() bool) {
	r.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			for _, l := range r.logs.All() {
				r.t.Log(l.Message, l.ContextMap())
			}
			r.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// program is a process that executes orders. See obey.
type program struct {
	*exec.Cmd
	t   testing.TB
	in  *os.File
	out *bufio.Reader
}

func run(t testing.TB, command func(string, ...string) *exec.Cmd) *program {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	cmd := command(path)
	cmd.Env = append(os.Environ(), programVariable+"=1")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdin, cmd.Stderr = r, os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	r.Close()
	t.Cleanup(func() {
		w.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &program{cmd, t, w, bufio.NewReader(stdout)}
}

func (p *program) order(format string, args ...any) (n tally) {
	p.t.Helper()
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	require.NoError(p.t, err)
	answer, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	_, err = fmt.Sscan(answer, &n.Sent, &n.Received, &n.Sends, &n.Receives, &n.Connects, &n.Failed)
	require.NoError(p.t, err, answer)
	return n
}

// without skips the test if the kernel lacks the tracepoints for sent and received bytes.
func (r *rig) without() {
	r.t.Helper()
	r.eventually("tracepoints", func() bool { return r.sources.Load() != nil })
	for _, why := range r.sources.Load().missing {
		r.t.Skip(why)
	}
}

// TestEachByteIsCounted checks the counted bytes for each kind of socket. A program
// inside the cgroup and a program outside the cgroup transfer bytes. Only the bytes of
// the program inside may be counted.
func TestEachByteIsCounted(t *testing.T) {
	for network, transport := range map[string]string{
		"tcp4": "tcp", "tcp6": "tcp", "udp4": "udp", "udp6": "udp", "unix": "unix", "unixgram": "unix",
	} {
		t.Run(network, func(t *testing.T) {
			r := start(t, nil)
			r.without()
			cg := hosttest.NewContainer(t, strings.Repeat("ab", 32), 0)
			inside, outside := run(t, cg.Command), run(t, exec.Command)
			r.attach(group(t, cg.Path))
			const rounds = 20
			outside.order("move %s %d 10 1000 10000", network, rounds)
			n := inside.order("move %s %d 10 1000 10000", network, rounds)
			require.EqualValues(t, rounds*4*(10+1000+10000), n.Sent)
			r.read()
			st := r.Stats()
			require.Zero(t, st.Lost+st.BufferFull+st.RateLimited+st.Unreadable, "%+v", st)

			sent, functions, transports := r.to.of("net_sent")
			require.Equal(t, sum{n.Sends, n.Sent}, sent)
			require.Equal(t, map[string]sum{transport: sent}, transports)
			require.Equal(t, map[string]sum{
				"sendThreeParts": {n.Sends * 3 / 4, n.Sent * 3 / 4}, "sendOnePart": {n.Sends / 4, n.Sent / 4},
			}, functions)
			got, functions, transports := r.to.of("net_received")
			require.Equal(t, sum{n.Receives, n.Received}, got)
			require.Equal(t, map[string]sum{transport: got}, transports)
			require.Equal(t, map[string]sum{"receive": got}, functions)
		})
	}
}

func TestProcessesAreTargets(t *testing.T) {
	r := start(t, nil)
	r.without()
	inside, outside := run(t, exec.Command), run(t, exec.Command)
	r.attach(process(inside.Process.Pid))
	outside.order("move udp4 20 10 100")
	n := inside.order("move udp4 20 10 100")
	r.read()
	sent, _, _ := r.to.of("net_sent")
	require.Equal(t, sum{n.Sends, n.Sent}, sent)
}

// TestTargetsAreFilteredWhereTheyHaveNoEventsOfTheirOwn uses events on all CPUs. The
// whole host is always sampled with such events. Before Linux 6.12, processes are also
// sampled with such events.
func TestTargetsAreFilteredWhereTheyHaveNoEventsOfTheirOwn(t *testing.T) {
	for name, host := range map[string]bool{"the host": true, "processes": false} {
		t.Run(name, func(t *testing.T) {
			cpus, err := perfevent.OnlineCPUs()
			require.NoError(t, err)
			r := start(t, func(s *Settings) { s.MaxEvents = len(cpus) * (2 + everywhereEvents + targetEvents) })
			r.without()
			inside, outside := run(t, exec.Command), run(t, exec.Command)
			find := process(inside.Process.Pid)
			find.Only = func(pid int, _ string) bool { return pid == inside.Process.Pid }
			find.Wanted.Processes[0].Threads = 100
			if host {
				find = perftargets.Finding{Wanted: perftargets.Wanted{Host: true}}
				r.to.pid.Store(int64(inside.Process.Pid))
			}
			r.attach(find)
			outside.order("move udp4 20 10 100")
			n := inside.order("move udp4 500 10 100")
			r.read()
			sent, _, _ := r.to.of("net_sent")
			require.Equal(t, n.Sends, sent.events)
			// The first sample on a CPU also represents earlier calls, which were made while
			// only some calls were sampled.
			require.InEpsilon(t, n.Sent, sent.value, 0.05)
		})
	}
}

func TestErrorsAndPeeksAreNotCounted(t *testing.T) {
	r := start(t, nil)
	r.without()
	p := run(t, exec.Command)
	r.attach(process(p.Process.Pid))
	p.order("fail 50")
	n := p.order("peek 50")
	r.read()
	sent, _, _ := r.to.of("net_sent")
	received, _, _ := r.to.of("net_received")
	require.Equal(t, sum{n.Sends, n.Sent}, sent)
	require.Equal(t, sum{n.Receives, n.Received}, received)
}

// TestConnectsAreCountedWithThoseThatFail connects to addresses with and without a
// listener. A failure must be attributed to the function that connected.
func TestConnectsAreCountedWithThoseThatFail(t *testing.T) {
	r := start(t, nil)
	cg := hosttest.NewCgroup(t, "hotprofile-network")
	inside, outside := run(t, cg.Command), run(t, exec.Command)
	r.attach(group(t, cg.Path))
	outside.order("connect 20")
	n := inside.order("connect 20")
	r.read()
	require.EqualValues(t, 80, n.Connects)
	all, functions, _ := r.to.of("tcp_connects")
	require.Equal(t, sum{n.Connects, n.Connects}, all)
	require.Equal(t, map[string]sum{"connectThreeParts": {40, 40}, "connectOnePart": {40, 40}}, functions)
	all, functions, _ = r.to.of("tcp_connect_failures")
	require.Equal(t, sum{n.Failed, n.Failed}, all)
	require.Equal(t, map[string]sum{"connectOnePart": all}, functions)
}

// TestKernelBytesAreScaledAboveTheBound runs a program that makes many more calls than
// may be sampled. The calls have three sizes. The number of samples must stay within the
// bound, and the values of the samples must add up to the bytes of all calls.
func TestKernelBytesAreScaledAboveTheBound(t *testing.T) {
	// The calls after the last sample are missing from the values. The events of a process
	// count the calls of each thread separately, so more calls are missing than in a cgroup.
	// A longer run makes their share small.
	rounds := map[string]int{"a cgroup": 20000, "a process": 60000}
	for name, target := range map[string]func(t *testing.T, r *rig) *program{
		"a cgroup": func(t *testing.T, r *rig) *program {
			cg := hosttest.NewCgroup(t, "hotprofile-network")
			p := run(t, cg.Command)
			r.attach(group(t, cg.Path))
			return p
		},
		"a process": func(t *testing.T, r *rig) *program {
			p := run(t, exec.Command)
			r.attach(process(p.Process.Pid))
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			const most = 2000
			r := start(t, func(s *Settings) { s.MaxEventsPerSecond = most })
			r.without()
			p := target(t, r)
			first := p.order("move udp4 2000 50 1500 20000") // until the sampler limits the rate
			r.read()
			was, _, _ := r.to.of("net_sent")
			gotWas, _, _ := r.to.of("net_received")
			began := time.Now()
			n := p.order("move udp4 %d 50 1500 20000", rounds[name])
			took := time.Since(began).Seconds()
			r.read()
			r.find.set(perftargets.Finding{})
			r.eventually("detaching", func() bool { return r.Targets() == 0 })
			r.stop()

			sent, functions, _ := r.to.of("net_sent")
			got, _, _ := r.to.of("net_received")
			events := sent.events - was.events + got.events - gotWas.events
			st := r.Stats()
			t.Logf("%d samples of %d calls, %.0f a second; sent %.3f %% off, received %.3f %% off; %+v", events, n.Sends+n.Receives, float64(events)/took,
				100*(float64(sent.value-was.value)/float64(n.Sent)-1), 100*(float64(got.value-gotWas.value)/float64(n.Received)-1), st.Counts)
			require.InEpsilon(t, n.Sent, sent.value-was.value, 0.01)
			require.InEpsilon(t, n.Received, got.value-gotWas.value, 0.01)
			require.LessOrEqual(t, float64(events)/took, 1.1*most)
			require.Zero(t, st.BufferFull+st.Unreadable)
			share := float64(functions["sendThreeParts"].value) / float64(functions["sendThreeParts"].value+functions["sendOnePart"].value)
			bound := 5 * math.Sqrt(0.75*0.25/float64(sent.events))
			t.Logf("%.2f %% in sendThreeParts, 75 %% within %.2f points", 100*share, 100*bound)
			require.InDelta(t, 0.75, share, bound)
			// For threads, the kernel does not know which samples were lost.
			if name == "a cgroup" {
				calls := first.Sends + first.Receives + n.Sends + n.Receives
				require.EqualValues(t, calls, uint64(sent.events+got.events)+st.RateLimited+st.Lost)
			}
		})
	}
}

func TestFullBuffersPause(t *testing.T) {
	r := start(t, nil)
	r.without()
	p := run(t, exec.Command)
	r.attach(process(p.Process.Pid))
	r.to.full.Store(true)
	r.Wake()
	r.eventually("pause", func() bool { return r.logs.FilterMessage(sampler.MsgThreadsFull).Len() == 1 })
	p.order("move udp4 10 10")
	r.to.full.Store(false)
	r.Wake()
	r.eventually("end of the pause", func() bool {
		return r.logs.FilterMessage("network sampling resumed, a buffer is free again").Len() == 1
	})
	sent, _, _ := r.to.of("net_sent")
	require.Zero(t, sent)
	require.Positive(t, r.Stats().Paused)
	n := p.order("move udp4 10 10")
	r.read()
	sent, _, _ = r.to.of("net_sent")
	require.Equal(t, sum{n.Sends, n.Sent}, sent)
}

// TestOlderKernelsWithoutTracepoints imitates older kernels. The missing types of
// samples must be logged at start.
func TestOlderKernelsWithoutTracepoints(t *testing.T) {
	t.Run("no tracefs", func(t *testing.T) {
		r := start(t, func(s *Settings) { s.Root = t.TempDir() })
		r.eventually("refusal", func() bool {
			return r.logs.FilterMessage("network sampling is not possible; other samplers continue").Len() == 1
		})
		require.Contains(t, r.logs.All()[0].ContextMap()["error"], "tracefs is not mounted")
	})
	t.Run("an empty one", func(t *testing.T) {
		root := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/kernel/tracing/events"), 0o755))
		r := start(t, func(s *Settings) { s.Root = root })
		r.eventually("refusal", func() bool {
			return r.logs.FilterMessage("network sampling is not possible; other samplers continue").Len() == 1
		})
		require.Contains(t, r.logs.All()[0].ContextMap()["error"], "no tracepoint sock:sock_send_length (Linux 6.3 and newer do)")
	})
	t.Run("Linux 6.2", func(t *testing.T) {
		real := filepath.Join(hosttest.Tracefs(t), "sys/kernel/tracing/events/sock/inet_sock_set_state")
		root := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/kernel/tracing/events/sock"), 0o755))
		require.NoError(t, os.Symlink(real, filepath.Join(root, "sys/kernel/tracing/events/sock/inet_sock_set_state")))
		r := start(t, func(s *Settings) { s.Root = root })
		r.eventually("start", func() bool { return r.logs.FilterMessage("network sampling started").Len() == 1 })
		started := r.logs.FilterMessage("network sampling started").All()[0].ContextMap()
		require.Equal(t, []any{"tcp_connects", "tcp_connect_failures"}, started["types"])
		require.Len(t, started["types_not_available"], 2)
		p := run(t, exec.Command)
		r.attach(process(p.Process.Pid))
		n := p.order("connect 5")
		r.read()
		all, _, _ := r.to.of("tcp_connects")
		require.Equal(t, sum{n.Connects, n.Connects}, all)
	})
}
