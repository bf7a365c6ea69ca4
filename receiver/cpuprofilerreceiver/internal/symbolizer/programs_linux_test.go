// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// build runs a compiler and returns the path of the executable.
func build(t testing.TB, env []string, name string, args ...string) string {
	t.Helper()
	name = hosttest.Tool(t, name)
	return hosttest.Compiled(t, "program", fmt.Sprintf("%q %s %q", env, name, args), func(out string) {
		cmd := exec.Command(name)
		for _, a := range args {
			cmd.Args = append(cmd.Args, strings.ReplaceAll(a, "OUT", out))
		}
		cmd.Env = append(os.Environ(), env...)
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, b)
		}
	})
}

// buildGo builds a Go program. HOTPROFILE_TEST_GO can select another Go release, because
// releases can have different table layouts.
func buildGo(t testing.TB, program string, flags ...string) string {
	t.Helper()
	compiler := cmp.Or(os.Getenv("HOTPROFILE_TEST_GO"), "go")
	args := append(append([]string{"build", "-o", "OUT"}, flags...), program)
	return build(t, []string{"GO111MODULE=off"}, compiler, args...)
}

// process is a program that runs until the test ends.
type process struct {
	pid    int
	stdout *bufio.Reader
	stop   func()
}

func start(t testing.TB, path string) *process {
	t.Helper()
	return startCommand(t, exec.Command(path))
}

func startCommand(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	stopped := false
	p := &process{pid: cmd.Process.Pid, stdout: bufio.NewReader(stdout)}
	p.stop = func() {
		if !stopped {
			stopped = true
			stdin.Close()
			_, _ = io.Copy(io.Discard, p.stdout)
			_ = cmd.Wait()
		}
	}
	t.Cleanup(p.stop)
	return p
}

func (p *process) line(t testing.TB) string {
	t.Helper()
	line, err := p.stdout.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSuffix(line, "\n")
}

func mappings(t testing.TB, pid int) []*samples.Mapping {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	root, err := procfs.At("").Root(pid)
	require.NoError(t, err)
	var out []*samples.Mapping
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if !strings.Contains(f[1], "x") {
			continue
		}
		m := &samples.Mapping{PID: pid, Root: root}
		_, err := fmt.Sscanf(line, "%x-%x %s %x %x:%x %d", &m.Start, &m.Limit, new(string), &m.FileOffset, &m.DeviceMajor, &m.DeviceMinor, &m.Inode)
		require.NoError(t, err)
		if len(f) > 5 {
			m.Path = strings.Join(f[5:], " ")
		}
		out = append(out, m)
	}
	return out
}

func mappingAt(maps []*samples.Mapping, addr uint64) *samples.Mapping {
	for _, m := range maps {
		if addr >= m.Start && addr < m.Limit {
			return m
		}
	}
	return nil
}

func mappingOf(t testing.TB, maps []*samples.Mapping, part string) *samples.Mapping {
	t.Helper()
	for _, m := range maps {
		if strings.Contains(m.Path, part) {
			return m
		}
	}
	t.Fatalf("no executable mapping of %q", part)
	return nil
}

func newSymbolizer(t testing.TB, cfg Config) *Symbolizer {
	t.Helper()
	s := New(cfg)
	t.Cleanup(s.Close)
	return s
}

// eventually waits until a condition is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// runtimeFrame is a line of output of test/testdata/frames.
type runtimeFrame struct {
	pc   uint64
	line samples.Line
}

func frames(t testing.TB, p *process) (stack, text []runtimeFrame) {
	t.Helper()
	require.Equal(t, "stack", p.line(t))
	into := &stack
	for {
		line := p.line(t)
		switch line {
		case "text":
			into = &text
			continue
		case "end":
			return stack, text
		}
		f := strings.Split(line, "\t")
		pc, err := strconv.ParseUint(f[0], 16, 64)
		require.NoError(t, err)
		at, err := strconv.ParseInt(f[3], 10, 64)
		require.NoError(t, err)
		first, err := strconv.ParseInt(f[4], 10, 64)
		require.NoError(t, err)
		*into = append(*into, runtimeFrame{pc, samples.Line{Function: f[1], File: f[2], Line: at, StartLine: max(first, 0)}})
	}
}

var goBuilds = map[string][]string{
	"plain":                             nil,
	"stripped":                          {"-ldflags=-s -w"},
	"position independent":              {"-buildmode=pie"},
	"position independent and stripped": {"-buildmode=pie", "-ldflags=-s -w"},
	"linked by the C linker, position independent and stripped": {"-buildmode=pie", "-ldflags=-s -w -linkmode=external"},
}

func TestBulkGoFramesAgreeWithTheRuntime(t *testing.T) {
	for name, flags := range goBuilds {
		t.Run(name, func(t *testing.T) {
			p := start(t, buildGo(t, "../../../../test/testdata/frames/main.go", flags...))
			stack, text := frames(t, p)
			compareFrames(t, p, stack, text)
		})
	}
}

// TestBulkGoFramesOfOtherReleases tests every Go release whose
// toolchain is in the module cache.
func TestBulkGoFramesOfOtherReleases(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs with each toolchain there is")
	}
	modules, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Skipf("no go command: %v", err)
	}
	compilers, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(modules)), "golang.org/toolchain@*."+runtime.GOOS+"-"+runtime.GOARCH, "bin/go"))
	require.NoError(t, err)
	if len(compilers) == 0 {
		t.Skip("the module cache has no other toolchain; GOTOOLCHAIN=go1.22.12 go version would fetch one")
	}
	for _, compiler := range compilers {
		t.Run(filepath.Base(filepath.Dir(filepath.Dir(compiler))), func(t *testing.T) {
			t.Setenv("HOTPROFILE_TEST_GO", compiler)
			p := start(t, buildGo(t, "../../../../test/testdata/frames/main.go", "-buildmode=pie", "-ldflags=-s -w"))
			stack, text := frames(t, p)
			compareFrames(t, p, stack, text)
		})
	}
}

func TestBulkGoFramesWithoutSectionHeaders(t *testing.T) {
	for _, mode := range []string{"exe", "pie"} {
		t.Run(mode, func(t *testing.T) {
			path := buildGo(t, "../../../../test/testdata/frames/main.go", "-buildmode="+mode, "-ldflags=-s -w")
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			_, err = f.WriteAt(make([]byte, 8), 40) // sets e_shoff to 0
			require.NoError(t, err)
			_, err = f.WriteAt(make([]byte, 4), 60) // sets e_shnum and e_shstrndx to 0
			require.NoError(t, err)
			require.NoError(t, f.Close())
			p := start(t, path)
			stack, text := frames(t, p)
			compareFrames(t, p, stack, text)
		})
	}
}

func compareFrames(t *testing.T, p *process, stack, text []runtimeFrame) {
	t.Helper()
	maps := mappings(t, p.pid)
	s := newSymbolizer(t, Config{})
	resolve := func(pc uint64) *samples.Location {
		l := &samples.Location{Mapping: mappingAt(maps, pc), Address: pc}
		s.Begin(nil) // without a new batch, there would be too many new names
		s.Resolve(0, l)
		return l
	}

	inlined := 0
	// The runtime does not print the linker's name of a generic function.
	asPrinted := func(l samples.Line) samples.Line { l.SystemName = ""; return l }
	for i, f := range stack {
		l := resolve(f.pc)
		require.Equal(t, samples.FrameGo, l.Type)
		for j, line := range l.Lines {
			require.Equal(t, stack[i+j].line, asPrinted(line), "line %d of %d at %#x", j, len(l.Lines), f.pc)
		}
		inlined += len(l.Lines) - 1
	}
	require.GreaterOrEqual(t, inlined, 4, "the stack has calls inlined into each other")

	wrong := 0
	for _, f := range text {
		l := resolve(f.pc)
		if len(l.Lines) == 0 || asPrinted(l.Lines[0]) != f.line {
			if wrong++; wrong < 10 {
				t.Errorf("%#x: the runtime says %+v, the symbolizer %+v", f.pc, f.line, l.Lines)
			}
		}
	}
	require.Greater(t, len(text), 10_000)
	require.Zero(t, wrong, "of %d", len(text))

	require.NotEmpty(t, maps[0].GoBuildID)
	c := s.Counters()
	require.Equal(t, uint64(len(stack)+len(text)), c.Locations[Resolved])
	require.Equal(t, 1, c.Objects)
	require.LessOrEqual(t, c.Bytes, int64(DefaultCacheBytes))
}
