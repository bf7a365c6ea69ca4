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

// patience is the maximum time that a test waits for programs
// and samplers to start or to end.
const patience = 5 * time.Minute

// tick is the unit of CPU times in /proc.
const tick = procfs.Tick

func TestMain(m *testing.M) {
	hurry()
	goleak.VerifyTestMain(m)
}

// hurry raises the priority of this process and its children, so that samples are read in
// time even on a busy machine. Without permission for this, more samples may be lost, but
// lost samples are counted.
func hurry() {
	threads, _ := filepath.Glob("/proc/self/task/*")
	for _, thread := range threads {
		if tid, err := strconv.Atoi(filepath.Base(thread)); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, -20)
		}
	}
}

// build builds a program in testdata. flags are compiler flags for a C program and
// environment variables for a Go program.
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

type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	cgroup *hosttest.Cgroup
	// before is the CPU time that the process had used before its work began.
	before time.Duration
}

// launch starts a program in its own cgroup. The program is
// killed at the end of the test.
//
// The cgroup has a high CPU weight, so that the test ends in time even
// if other programs use the CPUs.
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
	// The shell moves itself into the cgroup and then becomes the program. When the program
	// starts, it waits until it can read a line.
	require.Eventually(t, func() bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid()))
		state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid()))
		return err == nil && exe == path && bytes.Contains(state, []byte(") S "))
	}, patience, time.Millisecond)
	return p
}

func (p *program) pid() int { return p.cmd.Process.Pid }

// work makes the program use the given number of CPU seconds. It returns the time
// during which the program worked.
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

// warmUp makes the program work until the samplers know the name of a
// function and the names of the kernel. Files are read in the background, so
// the first samples have no names.
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

// worked returns the CPU time of the last work, as the kernel reports it.
func (p *program) worked() time.Duration { return p.cpuTime() - p.before }

// stolen returns the total time that a hypervisor has stolen from the CPUs.
func stolen(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	require.NoError(t, err)
	var ticks [8]int64
	_, err = fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7])
	require.NoError(t, err)
	return time.Duration(ticks[7]) * tick
}

// cpuTime returns the CPU clock of the process in nanoseconds. The clock
// includes threads that have ended.
func (p *program) cpuTime() time.Duration {
	p.t.Helper()
	const sched = 2 // MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
	var ts unix.Timespec
	require.NoError(p.t, unix.ClockGettime(int32(^p.pid()<<3|sched), &ts))
	return time.Duration(ts.Nano())
}

// sampler is a receiver with its output, logs and metrics.
type sampler struct {
	t         *testing.T
	sink      *consumertest.ProfilesSink
	logs      *observer.ObservedLogs
	telemetry *componenttest.Telemetry
	component component.Component
}

// sample starts a receiver and waits until the receiver samples.
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
	cfg.MaxOverhead = 0 // the frequency must not change
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

// stop ends sampling. All samples are in the sink afterwards.
func (s *sampler) stop() {
	require.NoError(s.t, s.component.Shutdown(context.Background()))
	if s.t.Failed() {
		for _, l := range s.logs.All() {
			s.t.Logf("%s %s %v", l.Level, l.Message, l.ContextMap())
		}
	}
}

// knows reports whether samples have the names of a function and of the kernel.
func (s *sampler) knows(p *program, function string) bool {
	seen, _ := fidelity.OfOTLP(s.sink.AllProfiles(), p.pid(), fidelity.Window{})
	counts := fidelity.Cumulative(seen)
	return counts[function] > 0 && counts["do_syscall_64"] > 0
}

// of returns the samples of a program within a window, and their period.
func (s *sampler) of(p *program, within fidelity.Window) (fidelity.Profile, time.Duration) {
	return fidelity.OfOTLP(s.sink.AllProfiles(), p.pid(), within)
}

// lost returns the number of records that the kernel has lost since the
// start, for all programs. The kernel loses records if the reader is late,
// for example on a busy machine.
func (s *sampler) lost() (n int) {
	m, err := s.telemetry.GetMetric("otelcol_cpu_profiler.samples.lost")
	require.NoError(s.t, err)
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		n += int(p.Value)
	}
	return n
}

// perf is a running perf process.
type perf struct {
	t       *testing.T
	cmd     *exec.Cmd
	said    bytes.Buffer
	control *os.File
	answers *bufio.Reader
}

// startPerf starts a subcommand of perf and waits until its events are enabled.
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

// tell sends a command to perf and waits for the acknowledgement.
func (r *perf) tell(command string) {
	r.t.Helper()
	_, err := r.control.WriteString(command + "\n")
	require.NoError(r.t, err)
	answer, err := r.answers.ReadString('\n')
	require.NoError(r.t, err, "perf: %s", &r.said)
	require.Contains(r.t, answer, "ack")
}

// end stops perf. perf then writes its recording.
func (r *perf) end() {
	r.t.Helper()
	r.tell("disable")
	require.NoError(r.t, r.cmd.Process.Signal(unix.SIGINT))
	_ = r.cmd.Wait() // an error is expected, because the signal ends perf
}

type recording struct {
	*perf
	data string
}

// record starts perf record with the same event that our sampler uses.
func record(t *testing.T, p *program, args ...string) *recording {
	t.Helper()
	data := filepath.Join(t.TempDir(), "perf.data")
	return &recording{startPerf(t, "record", append([]string{"-p", fmt.Sprint(p.pid()), "-e", "cpu-clock", "-o", data}, args...)...), data}
}

// profile ends the recording and returns its samples.
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

// clock is a running perf stat. It measures the time for which the events of a program or of
// a cgroup were switched on.
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
