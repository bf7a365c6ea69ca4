// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/oncpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// running is a program that uses CPU time until the test ends.
type running struct {
	// pid is the pid of the program. It can differ from the pid of the started command.
	pid int
}

// run starts a command and waits for the first line of its output. The command uses CPU
// time until its standard input is closed.
func run(t *testing.T, attr *syscall.SysProcAttr, name string, args ...string) running {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = attr
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if err := cmd.Start(); err != nil {
		if attr != nil {
			hosttest.SkipUnprivileged(t, "cannot start in namespaces of its own: %v", err)
		}
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait()
		_ = os.Remove(fmt.Sprintf("/tmp/perf-%d.map", cmd.Process.Pid))
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return running{pid: cmd.Process.Pid}
}

// finder is a perftargets.Finder that always returns one process.
type finder int

func (f finder) Find(context.Context, bool) (perftargets.Finding, error) {
	return perftargets.Finding{
		Wanted: perftargets.Wanted{Processes: []processes.Match{{Process: procfs.Process{PID: int(f), Start: 1}, Threads: 1}}},
	}, nil
}

// batches is a sink that adds all samples to one batch.
type batches struct {
	mu    sync.Mutex
	batch *samples.Batch
}

func (b *batches) AddValue(k samples.Key, time, _ int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.batch.Add(k, time)
}
func (*batches) ReadUpTo(int64)                   {}
func (*batches) KernelLost(*samples.Type, uint64) {}

func (*batches) Paused() bool  { return false }
func (*batches) Batch() uint64 { return 1 }

func (b *batches) events() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.batch.Count()
}

// frameCount contains the number of samples that have a function on their
// stack, by frame type and function.
type frameCount map[samples.FrameType]map[string]int

func (c frameCount) of(kind samples.FrameType, function string) int { return c[kind][function] }

// sampleAndName samples a process until there are enough samples. It returns
// the number of samples with each function, the file and line of each function,
// and the total number of samples.
func sampleAndName(t *testing.T, pid int, before func()) (counts frameCount, lines map[string]samples.Line, total int) {
	t.Helper()
	if err := perfevent.Probe().Own; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	symbols := symbolizer.New(symbolizer.Config{Logger: zaptest.NewLogger(t)})
	defer symbols.Close()
	sink := &batches{batch: samples.NewBatch(64 << 20)}
	sampler := oncpu.New(oncpu.Settings{
		Config: perftargets.Config{
			Finder: finder(pid), Table: processes.NewTable(processes.Config{Track: symbols.Track}),
			MaxEvents: 4096, DiscoveryInterval: 50 * time.Millisecond, Logger: zaptest.NewLogger(t),
			Now:   func() int64 { return time.Now().UnixNano() - perfevent.ClockOffset() },
			Probe: perfevent.Probe, Stacks: unwind.NewStacks(unwind.StacksConfig{}),
		},
		Sink: sink, Frequency: 499, Status: func(error) {}, Notes: func(perfevent.Rights) []string { return nil },
	})
	require.NoError(t, sampler.Start(t.Context()))
	const enough = 400
	for deadline := time.Now().Add(time.Minute); sink.events() < enough; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d samples in a minute", sink.events())
		}
	}
	require.NoError(t, sampler.Stop(t.Context()))
	if before != nil {
		before()
	}
	counts, lines = frameCount{}, map[string]samples.Line{}
	for k, n := range sink.batch.Keys() {
		var seen []string
		for _, l := range k.Stack.Locations {
			resolve(t, symbols, k.Resource.PID, l)
			for _, line := range l.Lines {
				if slices.Contains(seen, line.Function) {
					continue
				}
				seen = append(seen, line.Function)
				if counts[l.Type] == nil {
					counts[l.Type] = map[string]int{}
				}
				counts[l.Type][line.Function] += n
				lines[line.Function] = line
			}
		}
		total += n
	}
	c := symbols.Counters()
	require.Equal(t, 1, c.PerfMaps)
	t.Logf("%d samples, %d bytes, by outcome %v", total, c.Bytes, c.Locations)
	return counts, lines, total
}

// resolve resolves a location. On a busy machine, reading the files takes several batches.
func resolve(t *testing.T, symbols *symbolizer.Symbolizer, pid int, l *samples.Location) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		symbols.Begin(nil)
		symbols.Resolve(pid, l)
		if l.Counted != uint8(symbolizer.Pending)+1 {
			return
		}
		require.True(t, time.Now().Before(end), "%#x is pending", l.Address)
	}
}

// sampleCompiled calls sampleAndName until the program's hot functions are compiled, but at
// most three times. It is needed because the runtime interprets a new program at first.
func sampleCompiled(t *testing.T, pid int, before func(), compiled func(c frameCount, total int) bool) (counts frameCount, lines map[string]samples.Line, total int) {
	t.Helper()
	for range 3 {
		if counts, lines, total = sampleAndName(t, pid, before); compiled(counts, total) {
			break
		}
	}
	return counts, lines, total
}

// nodeCompiled reports whether the functions of busy.js are compiled.
func nodeCompiled(c frameCount, total int) bool {
	return c.of(samples.FrameV8, "fib") > total/4 && c.of(samples.FrameV8, "total")+c.of(samples.FrameV8, "work") > total/4
}

func program(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata/runtimes", name))
	require.NoError(t, err)
	return path
}

// namespaces returns attributes that give a program its own pid
// namespace and mount namespace.
func namespaces(t *testing.T) *syscall.SysProcAttr {
	t.Helper()
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
}

func TestNodeFunctions(t *testing.T) {
	node := find(t, "HOTPROFILE_TEST_NODE", "node")
	p := run(t, nil, node, "--perf-basic-prof", program(t, "busy.js"))
	counts, lines, total := sampleCompiled(t, p.pid, nil, nodeCompiled)
	found := counts.of(samples.FrameV8, "fib")
	require.Greater(t, found, total/4, "of %d: %v", total, counts)
	require.Greater(t, counts.of(samples.FrameV8, "total")+counts.of(samples.FrameV8, "work"), total/4, "of %d: %v", total, counts)
	require.Equal(t, program(t, "busy.js"), lines["fib"].File)
	require.EqualValues(t, 5, lines["fib"].StartLine)
}

func TestNodeInAPidNamespace(t *testing.T) {
	node := find(t, "HOTPROFILE_TEST_NODE", "node")
	// The first process in the namespace is a shell, which mounts its own /tmp.
	p := run(t, namespaces(t), "sh", "-c",
		`exec 3<"$1" && mount --make-rprivate / && mount -t tmpfs tmpfs /tmp && mount -t proc proc /proc && cat <&3 >/tmp/busy.js && exec "$0" --perf-basic-prof /tmp/busy.js 0<&0`,
		node, program(t, "busy.js"))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	require.NoError(t, err)
	require.Regexp(t, `NSpid:\t`+strconv.Itoa(p.pid)+`\t1\n`, string(status))
	counts, _, total := sampleCompiled(t, p.pid, nil, nodeCompiled)
	require.Greater(t, counts.of(samples.FrameV8, "fib"), total/4, "of %d: %v", total, counts)
	_, err = os.Stat("/tmp/perf-1.map")
	require.ErrorIs(t, err, os.ErrNotExist, "it is the other /tmp's")
}

func TestPythonFunctions(t *testing.T) {
	python := find(t, "HOTPROFILE_TEST_PYTHON", "python3.14", "python3.13", "python3.12", "python3")
	if out, err := exec.Command(python, "-X", "perf", "-c", "import sys; print(sys.is_stack_trampoline_active())").CombinedOutput(); err != nil || string(out) != "True\n" {
		t.Skipf("%s has no -X perf: %v %s", python, err, out)
	}
	p := run(t, nil, python, "-X", "perf", program(t, "busy.py"))

	// The code of each function must have a name, even if stacks are incomplete.
	perfMap, err := os.ReadFile(fmt.Sprintf("/tmp/perf-%d.map", p.pid))
	require.NoError(t, err)
	symbols := symbolizer.New(symbolizer.Config{})
	defer symbols.Close()
	named := map[string]bool{}
	for line := range strings.Lines(string(perfMap)) {
		var start, size uint64
		var name string
		if _, err := fmt.Sscanf(line, "%x %x %s", &start, &size, &name); err != nil || !strings.Contains(name, "busy.py") {
			continue
		}
		l := &samples.Location{Address: start + 5}
		resolve(t, symbols, p.pid, l)
		require.Len(t, l.Lines, 1)
		require.Equal(t, samples.FramePython, l.Type)
		require.Equal(t, name, l.Lines[0].SystemName)
		require.Equal(t, program(t, "busy.py"), l.Lines[0].File)
		named[l.Lines[0].Function] = true
	}
	for _, function := range []string{"fib", "Basket.total", "Basket.total.<locals>.<genexpr>", "<module>"} {
		require.True(t, named[function], "%s of %v", function, named)
	}

	counts, _, total := sampleAndName(t, p.pid, nil)
	found := 0
	for _, n := range counts[samples.FramePython] {
		found += n
	}
	require.Positive(t, found, "of %d: %v", total, counts)
	flags, err := exec.Command(python, "-c", "import sysconfig; print(sysconfig.get_config_var('PY_CFLAGS'))").Output()
	require.NoError(t, err)
	if strings.Contains(string(flags), "-fno-omit-frame-pointer") {
		require.Greater(t, counts.of(samples.FramePython, "<module>"), total/2, "of %d: %v", total, counts)
	} else {
		t.Logf("%s is built without frame pointers: Python functions in %v of %d stacks", python, counts[samples.FramePython], total)
	}
}

func TestJavaMethods(t *testing.T) {
	java, jcmd := find(t, "HOTPROFILE_TEST_JAVA", "java"), find(t, "HOTPROFILE_TEST_JCMD", "jcmd")
	p := run(t, nil, java, "-XX:+PreserveFramePointer", program(t, "Busy.java"))
	methods := func(c frameCount) int {
		return c.of(samples.FrameJVM, "Busy.fib") + c.of(samples.FrameJVM, "Busy.total") + c.of(samples.FrameJVM, "Busy.main")
	}
	counts, lines, total := sampleCompiled(t, p.pid, func() {
		out, err := exec.Command(jcmd, strconv.Itoa(p.pid), "Compiler.perfmap").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "successfully") {
			t.Skipf("jcmd writes no perf map before Java 17: %v %s", err, out)
		}
	}, func(c frameCount, total int) bool { return methods(c) > total/2 })
	found := methods(counts)
	require.Greater(t, found, total/2, "of %d: %v", total, counts)
	require.Equal(t, "int Busy.fib(int)", lines["Busy.fib"].SystemName)
}

// find returns the path in the environment variable. If the variable is empty, it returns
// the path of the first of the names that is installed.
func find(t *testing.T, variable string, names ...string) string {
	t.Helper()
	if path := os.Getenv(variable); path != "" {
		return path
	}
	return hosttest.Tool(t, names...)
}
