// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver"
	"github.com/hotprofile/hotprofile/test/fidelity"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// patience is the time in which programs and samplers must start and end.
const patience = 5 * time.Minute

// tick is the unit of CPU times in /proc.
const tick = procfs.Tick

func TestMain(m *testing.M) {
	hurry()
	goleak.VerifyTestMain(m)
}

// hurry gives this process and its children a higher priority than others, because samples
// have to be read in time on a busy machine too. Without the right to a higher priority
// more samples may be lost. Lost samples are counted.
func hurry() {
	threads, _ := filepath.Glob("/proc/self/task/*")
	for _, thread := range threads {
		if tid, err := strconv.Atoi(filepath.Base(thread)); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, -20)
		}
	}
}

// build builds a program in testdata: C with flags, or Go.
func build(t *testing.T, name string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(name))
	var cmd *exec.Cmd
	if strings.HasSuffix(name, ".c") {
		cmd = exec.Command("cc", append(flags, "-pthread", "-o", out, filepath.Join("testdata", name))...)
	} else {
		cmd = exec.Command("go", "build", "-o", out, "./"+filepath.Join("testdata", name))
		cmd.Env = append(os.Environ(), flags...)
	}
	hosttest.Tool(t, "cc")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

// program is a process that works and ends on command.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	cgroup *hosttest.Cgroup
	// before is its CPU time before it worked.
	before time.Duration
}

// launch starts a program in a cgroup of its own. It is killed at the test's end.
//
// The program gets the CPUs that it wants whatever else runs here, so that the
// test ends in time.
func launch(t *testing.T, path string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cgroup: hosttest.NewCgroup(t, "hotprofile-fidelity")}
	p.cgroup.RaiseWeight(t)
	p.cmd = p.cgroup.Command(path, args...)
	var err error
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	// The shell that moves itself into the cgroup becomes the program, which
	// then waits for a line.
	require.Eventually(t, func() bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid()))
		state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid()))
		return err == nil && exe == path && bytes.Contains(state, []byte(") S "))
	}, patience, time.Millisecond)
	return p
}

func (p *program) pid() int { return p.cmd.Process.Pid }

// work has the program use that many CPU seconds, and returns when that was.
func (p *program) work(seconds float64) fidelity.Window {
	p.t.Helper()
	p.before = p.cpuTime()
	_, err := fmt.Fprintln(p.in, seconds)
	require.NoError(p.t, err)
	said, err := p.out.ReadString('\n')
	require.NoError(p.t, err, "the program is to do its work")
	var from, to int64
	_, err = fmt.Sscan(said, &from, &to)
	require.NoError(p.t, err)
	return fidelity.Window{From: time.Unix(0, from), To: time.Unix(0, to)}
}

// warmUp has the program work until samplers know a function of it and the names
// of the kernel: files are read beside sampling, and samples do not wait for it.
func (p *program) warmUp(function string, samplers ...*sampler) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for _, s := range samplers {
		for !s.knows(p, function) {
			require.True(p.t, time.Now().Before(deadline), "no names after %v", patience)
			p.work(0.2)
		}
	}
}

// worked is the CPU time that work took, by the kernel's account.
func (p *program) worked() time.Duration { return p.cpuTime() - p.before }

// stolen is for how long a hypervisor has had the CPUs run something else.
func stolen(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	require.NoError(t, err)
	var ticks [8]int64
	_, err = fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7])
	require.NoError(t, err)
	return time.Duration(ticks[7]) * tick
}

// cpuTime is the CPU clock of the process, with its ended threads, which the
// kernel keeps in nanoseconds.
func (p *program) cpuTime() time.Duration {
	p.t.Helper()
	const sched = 2 // MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
	var ts unix.Timespec
	require.NoError(p.t, unix.ClockGettime(int32(^p.pid()<<3|sched), &ts))
	return time.Duration(ts.Nano())
}

// sampler is a receiver and what came out of it.
type sampler struct {
	t         *testing.T
	sink      *consumertest.ProfilesSink
	logs      *observer.ObservedLogs
	telemetry *componenttest.Telemetry
	component component.Component
}

// sample starts a receiver and waits until it samples.
func sample(t *testing.T, change ...func(*cpuprofilerreceiver.Config)) *sampler {
	t.Helper()
	if err := perfevent.Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	s := &sampler{t: t, sink: new(consumertest.ProfilesSink), telemetry: componenttest.NewTelemetry()}
	factory := cpuprofilerreceiver.NewFactory().(xreceiver.Factory)
	cfg := factory.CreateDefaultConfig().(*cpuprofilerreceiver.Config)
	cfg.ExportInterval = 200 * time.Millisecond
	cfg.BufferSize = 64 * bytesize.MiB
	cfg.MaxOverhead = 0 // the frequency is to stay
	for _, c := range change {
		c(cfg)
	}
	require.NoError(t, cfg.Validate())
	core, logs := observer.New(zap.InfoLevel)
	s.logs = logs
	set := receivertest.NewNopSettings(factory.Type())
	set.TelemetrySettings = s.telemetry.NewTelemetrySettings()
	set.Logger = zap.New(core)
	var err error
	s.component, err = factory.CreateProfiles(context.Background(), set, cfg, s.sink)
	require.NoError(t, err)
	require.NoError(t, s.component.Start(context.Background(), componenttest.NewNopHost()))
	t.Cleanup(s.stop)
	require.Eventually(t, func() bool { return s.logs.FilterMessage("sampling started").Len() == 1 }, patience, time.Millisecond)
	return s
}

func on(p *program) func(*cpuprofilerreceiver.Config) {
	return func(c *cpuprofilerreceiver.Config) {
		c.Targets = []cpuprofilerreceiver.TargetConfig{{PID: p.pid()}}
	}
}

func inCgroupOf(p *program) func(*cpuprofilerreceiver.Config) {
	return func(c *cpuprofilerreceiver.Config) {
		c.Targets = []cpuprofilerreceiver.TargetConfig{{Cgroup: p.cgroup.Path}}
	}
}

func at(hz int) func(*cpuprofilerreceiver.Config) {
	return func(c *cpuprofilerreceiver.Config) { c.Frequency = hz }
}

func by(u cpuprofilerreceiver.Unwind) func(*cpuprofilerreceiver.Config) {
	return func(c *cpuprofilerreceiver.Config) { c.Unwind = u }
}

// stop ends sampling: everything that was sampled is in the sink then.
func (s *sampler) stop() {
	require.NoError(s.t, s.component.Shutdown(context.Background()))
	if s.t.Failed() {
		for _, l := range s.logs.All() {
			s.t.Logf("%s %s %v", l.Level, l.Message, l.ContextMap())
		}
	}
}

// knows reports whether the names of a function and of the kernel have come.
func (s *sampler) knows(p *program, function string) bool {
	seen, _ := fidelity.OfOTLP(s.sink.AllProfiles(), p.pid(), fidelity.Window{})
	counts := fidelity.Cumulative(seen)
	return counts[function] > 0 && counts["do_syscall_64"] > 0
}

// of returns the samples of a program within a window.
func (s *sampler) of(p *program, within fidelity.Window) (fidelity.Profile, time.Duration) {
	return fidelity.OfOTLP(s.sink.AllProfiles(), p.pid(), within)
}

// lost returns the number of records of all programs that the kernel has lost since
// the start: on a busy machine the reader comes too late.
func (s *sampler) lost() (n int) {
	m, err := s.telemetry.GetMetric("otelcol_cpu_profiler.samples.lost")
	require.NoError(s.t, err)
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		n += int(p.Value)
	}
	return n
}

// perf is a perf that runs beside a program.
type perf struct {
	t       *testing.T
	cmd     *exec.Cmd
	said    bytes.Buffer
	control *os.File
	answers *bufio.Reader
}

// startPerf starts a subcommand of perf and waits until it has begun.
func startPerf(t *testing.T, subcommand string, args ...string) *perf {
	t.Helper()
	hosttest.Tool(t, "perf")
	r := &perf{t: t}
	toPerf, control, err := os.Pipe()
	require.NoError(t, err)
	answers, fromPerf, err := os.Pipe()
	require.NoError(t, err)
	r.control, r.answers = control, bufio.NewReader(answers)
	args = append([]string{subcommand, "-D", "-1", "--control", "fd:3,4"}, args...)
	r.cmd = exec.Command("perf", args...)
	r.cmd.ExtraFiles = []*os.File{toPerf, fromPerf}
	r.cmd.Stdout, r.cmd.Stderr = &r.said, &r.said
	require.NoError(t, r.cmd.Start())
	toPerf.Close()
	fromPerf.Close()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		control.Close()
		answers.Close()
	})
	r.tell("enable")
	return r
}

// tell sends perf a command and waits for its answer.
func (r *perf) tell(command string) {
	r.t.Helper()
	_, err := r.control.WriteString(command + "\n")
	require.NoError(r.t, err)
	answer, err := r.answers.ReadString('\n')
	require.NoError(r.t, err, "perf: %s", &r.said)
	require.Contains(r.t, answer, "ack")
}

// end stops perf, which then writes its recording.
func (r *perf) end() {
	r.t.Helper()
	r.tell("disable")
	require.NoError(r.t, r.cmd.Process.Signal(unix.SIGINT))
	_ = r.cmd.Wait() // ends by the signal
}

// recording is a perf record.
type recording struct {
	*perf
	data string
}

// record starts perf record with the event that our sampler uses.
func record(t *testing.T, p *program, args ...string) *recording {
	t.Helper()
	data := filepath.Join(t.TempDir(), "perf.data")
	return &recording{startPerf(t, "record", append([]string{"-p", fmt.Sprint(p.pid()), "-e", "cpu-clock", "-o", data}, args...)...), data}
}

// profile ends the recording and reads it.
func (r *recording) profile() fidelity.Profile {
	r.t.Helper()
	r.end()
	cmd := exec.Command("perf", "script", "-i", r.data, "--no-inline", "-F", "tid,ip,sym")
	out, err := cmd.StdoutPipe()
	require.NoError(r.t, err)
	require.NoError(r.t, cmd.Start())
	p, err := fidelity.OfScript(out)
	require.NoError(r.t, err)
	require.NoError(r.t, cmd.Wait())
	require.NotEmpty(r.t, p.Samples, "perf record: %s", &r.said)
	return p
}

// clock is a perf stat that counts for how long perf's events of a program, or of
// a cgroup, were on.
type clock struct {
	*perf
	file string
}

func clockOf(t *testing.T, p *program) *clock {
	t.Helper()
	return startClock(t, "-p", fmt.Sprint(p.pid()), "-e", "cpu-clock")
}

func clockOfCgroup(t *testing.T, p *program) *clock {
	t.Helper()
	return startClock(t, "-a", "-e", "cpu-clock", "-G", strings.TrimPrefix(p.cgroup.Path, "/"))
}

func startClock(t *testing.T, args ...string) *clock {
	t.Helper()
	file := filepath.Join(t.TempDir(), "perf.stat")
	return &clock{startPerf(t, "stat", append(args, "-x", ",", "-o", file)...), file}
}

func (c *clock) time() time.Duration {
	c.t.Helper()
	c.end()
	text, err := os.ReadFile(c.file)
	require.NoError(c.t, err)
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(line, ",")
		if len(fields) > 2 && strings.Contains(line, "cpu-clock") {
			ms, err := strconv.ParseFloat(fields[0], 64)
			require.NoError(c.t, err)
			return time.Duration(ms * float64(time.Millisecond))
		}
	}
	c.t.Fatalf("perf stat says nothing of cpu-clock: %s", text)
	return 0
}
