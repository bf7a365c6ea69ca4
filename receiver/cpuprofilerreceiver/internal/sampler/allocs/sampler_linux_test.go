// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"bufio"
	"context"
	"debug/buildinfo"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

const patience = time.Minute

// releases are the Go releases whose programs are sampled. The empty
// string means the installed Go.
var releases = []string{"go1.22.12", "go1.23.12", "go1.24.9", "go1.25.7", ""}

// buildAllocator builds test/testdata/allocator with a release of Go. If release is empty,
// it uses the installed Go. The program has its own module, because older releases refuse
// the module of this repository.
func buildAllocator(t testing.TB, release string, flags ...string) string {
	t.Helper()
	return hosttest.Compiled(t, "allocator", fmt.Sprint(release, flags), func(out string) {
		module := t.TempDir()
		require.NoError(t, os.CopyFS(module, os.DirFS("../../../../../test/testdata/allocator")))
		require.NoError(t, os.WriteFile(filepath.Join(module, "go.mod"), []byte("module allocator\n\ngo 1.22\n"), 0o600))
		cmd := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), ".")...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "GOWORK=off")
		if release != "" {
			cmd.Env = append(cmd.Env, "GOTOOLCHAIN="+release)
		}
		if b, err := cmd.CombinedOutput(); err != nil {
			if release != "" && strings.Contains(string(b), "download") {
				t.Skipf("%s is not here and cannot be had: %s", release, b)
			}
			t.Fatalf("%v: %v\n%s", cmd.Args, err, b)
		}
		if release != "" {
			built, err := buildinfo.ReadFile(out)
			require.NoError(t, err)
			require.Equal(t, release, built.GoVersion)
		}
	})
}

// allocator is a running program built from test/testdata/allocator. It
// is stopped when the test ends.
type allocator struct {
	t   testing.TB
	in  *os.File
	out *bufio.Reader
	procfs.Process
	stop func()
}

// start starts the program with the given sampling rate. If rate is negative, the program
// keeps the runtime's default rate.
func start(t testing.TB, path string, rate int) *allocator {
	t.Helper()
	cmd := exec.Command(path)
	if rate >= 0 {
		cmd.Env = append(os.Environ(), fmt.Sprintf("RATE=%d", rate))
	}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdin = r
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	r.Close()
	a := &allocator{t: t, in: w, out: bufio.NewReader(out), Process: procfs.Process{PID: cmd.Process.Pid}}
	a.stop = sync.OnceFunc(func() {
		w.Close()
		_ = cmd.Wait()
	})
	t.Cleanup(a.stop)
	line, err := a.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	a.Process, err = procfs.At("").Process(a.PID)
	require.NoError(t, err)
	return a
}

// allocate makes the program allocate memory. It returns the counts of the program's
// runtime.
func (a *allocator) allocate(kind string, bytes, threads int) (counted counts) {
	a.t.Helper()
	_, err := fmt.Fprintln(a.in, kind, bytes, threads)
	require.NoError(a.t, err)
	line, err := a.out.ReadString('\n')
	require.NoError(a.t, err)
	_, err = fmt.Sscan(line, &counted.bytes, &counted.objects, &counted.seconds)
	require.NoError(a.t, err, line)
	counted.seconds /= 1e9
	return counted
}

// allocateInPieces reads all samples of a piece before the next piece is allocated,
// because samples would otherwise be lost on a busy machine.
func (a *allocator) allocateInPieces(s *Sampler, kind string, bytes int) (all counts) {
	a.t.Helper()
	const pieces = 30
	for range pieces {
		counted := a.allocate(kind, bytes/pieces, 1)
		all.bytes, all.objects = all.bytes+counted.bytes, all.objects+counted.objects
		s.Flush()
	}
	return all
}

type counts struct{ bytes, objects, seconds float64 }

// sink keeps all samples. If room is positive, it accepts at
// most room events of each type.
type sink struct {
	mu             sync.Mutex
	room           int
	objects, space []event
}

type event struct {
	samples.Key
	time, value int64
}

func (s *sink) AddBoth(objects, space samples.Key, time, count, bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room > 0 && len(s.objects) >= s.room {
		return false
	}
	s.objects = append(s.objects, event{objects, time, count})
	s.space = append(s.space, event{space, time, bytes})
	return true
}

func (s *sink) KernelLost(*samples.Type, uint64) {}
func (s *sink) ReadUpTo(int64)                   {}

func (s *sink) take() (objects, space []event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	objects, space = s.objects, s.space
	s.objects, s.space = nil, nil
	return objects, space
}

func sum(events []event) (total float64) {
	for _, e := range events {
		total += float64(e.value)
	}
	return total
}

// testSampler samples the processes that were passed to Set.
type testSampler struct {
	*Sampler
	wanted  atomic.Pointer[[]procfs.Process]
	changed chan struct{}
}

func (s *testSampler) Set(wanted []procfs.Process) {
	s.wanted.Store(&wanted)
	select {
	case s.changed <- struct{}{}:
	default: // the pending notification is enough
	}
}

func newTestSampler(t testing.TB, change func(*Settings)) (*testSampler, *sink, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	to := &sink{}
	s := &testSampler{changed: make(chan struct{}, 1)}
	s.wanted.Store(new([]procfs.Process))
	cfg := Settings{
		Config: perftargets.Config{
			Changed:           s.changed,
			DiscoveryInterval: time.Hour,
			Table:             processes.NewTable(processes.Config{}),
			MaxEvents:         4096,
			Logger:            zap.New(core),
			Now:               func() int64 { return time.Now().UnixNano() - perfevent.ClockOffset() },
		},
		Find:     func(context.Context) ([]procfs.Process, error) { return *s.wanted.Load(), nil },
		Sink:     to,
		Interval: 5 * time.Second,
		Random:   rand.New(rand.NewPCG(1, 2)),
	}
	if change != nil {
		change(&cfg)
	}
	s.Sampler = New(cfg)
	return s, to, logs
}

func skipWithoutProbes(t testing.TB) {
	t.Helper()
	u, err := perfevent.Open(perfevent.Options{HostWide: true, Probes: true})
	if err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
		return
	}
	require.NoError(t, u.Close())
}

// sampling starts a sampler for one process and waits until the process is attached.
func sampling(t testing.TB, a *allocator, change func(*Settings)) (*testSampler, *sink, *observer.ObservedLogs) {
	t.Helper()
	s, to, logs := newTestSampler(t, change)
	require.NoError(t, s.Start(context.Background()))
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	s.Set([]procfs.Process{a.Process})
	require.Eventually(t, func() bool { return s.Stats().Processes == 1 }, patience, time.Millisecond, "%v", logs.All())
	return s, to, logs
}

// estimated is a sampler's estimate of a program's allocations. The standard deviations
// are estimated from the samples as well. Each sample was drawn independently with its
// own probability p, so the sum of (1-p)(v/p)² is an estimate of the variance of the sum
// of v/p.
type estimated struct{ bytes, objects, bytesSD, objectsSD, n float64 }

func estimate(objects, space []event, sizeOf func(i int) float64) (e estimated) {
	for i := range objects {
		p := 1 / weight(uint64(sizeOf(i)), objects[i].Period)
		e.bytes += float64(space[i].value)
		e.objects += float64(objects[i].value)
		e.bytesSD += (1 - p) * math.Pow(sizeOf(i)/p, 2)
		e.objectsSD += (1-p)/(p*p) + 0.25 // 0.25 is for random rounding
	}
	e.bytesSD, e.objectsSD, e.n = math.Sqrt(e.bytesSD), math.Sqrt(e.objectsSD), float64(len(objects))
	return e
}

// TestKernelEstimatesAgreeWithTheRuntimesCounts compares the estimates with MemStats, for
// each Go release. The rates are chosen so that there are enough samples for four
// standard deviations to be less than 5 %.
func TestKernelEstimatesAgreeWithTheRuntimesCounts(t *testing.T) {
	skipWithoutProbes(t)
	for _, release := range releases {
		t.Run("release="+release, func(t *testing.T) {
			path := buildAllocator(t, release)
			for _, c := range []struct {
				kind        string
				rate, bytes int
			}{
				{"small", 4 << 10, 100 << 20},
				{"large", 16 << 10, 2 << 30},
				{"mixed", 4 << 10, 600 << 20},
			} {
				t.Run(c.kind, func(t *testing.T) {
					a := start(t, path, c.rate)
					s, to, _ := sampling(t, a, nil)
					var want counts
					var got estimated
					for range 4 {
						want, got = compare(t, a, s.Sampler, to, c.kind, c.bytes)
						enough := 4*got.objectsSD < 0.05*want.objects && 4*got.bytesSD < 0.05*want.bytes
						near := math.Abs(got.objects-want.objects) <= 4*got.objectsSD && math.Abs(got.bytes-want.bytes) <= 4*got.bytesSD
						if enough && near {
							break
						}
						// The comparison is repeated, because even a correct estimate can be
						// far off by chance. For example, the runtime sometimes allocates a
						// small object. If this object is sampled among large objects, it
						// represents thousands of objects. A faulty estimate would be far off
						// each time.
					}
					for what, v := range map[string][3]float64{
						"bytes":   {got.bytes, want.bytes, got.bytesSD},
						"objects": {got.objects, want.objects, got.objectsSD},
					} {
						require.Less(t, 4*v[2], 0.05*v[1], "%s: too few samples for a fair test", what)
						require.InDelta(t, v[1], v[0], 4*v[2], what)
					}
				})
			}
		})
	}
}

// compare makes a program allocate in pieces, so that the sampler keeps up on a busy
// machine. It returns the counts of the program's runtime and the sampler's estimates.
func compare(t *testing.T, a *allocator, s *Sampler, to *sink, kind string, bytes int) (want counts, got estimated) {
	t.Helper()
	to.take()
	want = a.allocateInPieces(s, kind, bytes)
	objects, space := to.take()
	require.Zero(t, s.Stats().Lost)
	got = estimate(objects, space, func(i int) float64 {
		return float64(space[i].value) / float64(objects[i].value)
	})
	t.Logf("%.0f samples: bytes %+.2f %% (sd %.2f %%), objects %+.2f %% (sd %.2f %%)", got.n,
		100*(got.bytes/want.bytes-1), 100*got.bytesSD/want.bytes,
		100*(got.objects/want.objects-1), 100*got.objectsSD/want.objects)
	return want, got
}
