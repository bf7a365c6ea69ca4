// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languagesextension

import (
	"encoding/binary"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/remotememory"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// processOf returns a running process in the form that Attach needs.
func processOf(t *testing.T, pid int) interpreter.Process {
	t.Helper()
	maps, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	require.NoError(t, err)
	p := interpreter.Process{PID: pid, Memory: remotememory.NewProcessVirtualMemory(libpf.PID(pid))}
	for line := range strings.Lines(string(maps)) {
		if m, ok := procfs.ParseExecutable([]byte(line)); ok && strings.HasPrefix(string(m.Path), "/") {
			p.Mappings = append(p.Mappings, interpreter.Mapping{Start: m.Start, Limit: m.Limit, FileOffset: m.Offset, Path: string(m.Path)})
		}
	}
	p.Open = func(i int) (interpreter.File, error) { return os.Open(p.Mappings[i].Path) }
	return p
}

// start starts a program and waits until the program has printed something.
func start(t *testing.T, name string, args ...string) int {
	t.Helper()
	cmd := exec.Command(name, args...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	_, err = out.Read(make([]byte, 1))
	require.NoError(t, err)
	return cmd.Process.Pid
}

// TestPythonsOfThisMachine attaches to each installed version of Python.
func TestPythonsOfThisMachine(t *testing.T) {
	pythons, err := filepath.Glob("/usr/bin/python3.[0-9]*[0-9]")
	require.NoError(t, err)
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	more, err := filepath.Glob(filepath.Join(home, ".pyenv/versions/3.*/bin/python3.[0-9]*[0-9]"))
	require.NoError(t, err)
	for _, python := range append(pythons, more...) {
		version := strings.TrimPrefix(filepath.Base(python), "python3.")
		minor, err := strconv.Atoi(version)
		if err != nil {
			continue
		}
		t.Run(python, func(t *testing.T) {
			pid := start(t, python, "-c", "import time\nprint(1, flush=True)\ntime.sleep(1000)")
			l, err := driver{}.Attach(processOf(t, pid))
			if minor < oldestPython || minor > newestPython {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.NotNil(t, l.Python)
			require.Equal(t, minor, l.Python.Minor)
			require.NotEmpty(t, l.Python.Loop)
			require.True(t, driver{}.Knows(python))
		})
	}
}

// TestNodeOfThisMachine attaches to a running Node.js program and looks up names.
func TestNodeOfThisMachine(t *testing.T) {
	path, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no Node.js: " + err.Error())
	}
	pid := start(t, path, "-e", "console.log(1); for (;;);")
	l, err := driver{}.Attach(processOf(t, pid))
	require.NoError(t, err)
	require.NotNil(t, l.V8)
	require.True(t, driver{}.Knows(path))
	require.Greater(t, l.V8.Builtins.Limit-l.V8.Builtins.Start, uint64(leastBuiltins))
	for _, at := range []interpreter.Code{{Interpreted: true}, {Interpreted: true, Address: 1 << 46}, {Address: 1<<46 + 1}, {Address: math.MaxUint64}} {
		_, held, err := l.V8.Names(at)
		require.Error(t, err)
		require.LessOrEqual(t, held, int64(maxNodeRead)+1<<20)
	}
	l.V8.Forget()
}

// TestPHPOfThisMachine attaches to a running PHP program and reads the current frame.
func TestPHPOfThisMachine(t *testing.T) {
	path, err := exec.LookPath("php")
	if err != nil {
		t.Skip("no PHP: " + err.Error())
	}
	p := processOf(t, start(t, path, "-r", "echo 1; sleep(1000);"))
	l, err := driver{}.Attach(p)
	require.NoError(t, err)
	require.NotNil(t, l.PHP)
	require.NotEmpty(t, l.PHP.Loop)
	m := remotememory.RemoteMemory{ReaderAt: p.Memory}
	// Each named frame must be sleep. There may be no named frame, because PHP may not have
	// called sleep yet.
	for frame := m.Ptr(libpf.Address(l.PHP.Current)); frame != 0; frame = m.Ptr(frame + libpf.Address(l.PHP.FrameBack)) {
		name := m.Ptr(m.Ptr(frame+libpf.Address(l.PHP.FrameFunction)) + libpf.Address(l.PHP.FunctionName))
		if name != 0 {
			require.Equal(t, "sleep", m.String(name+libpf.Address(l.PHP.Text)))
		}
	}
}

// words is a simulated memory that contains zeros except for the given words.
type words map[int64]int64

func (w words) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	for i := range len(b) / 8 {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(w[at+int64(8*i)]))
	}
	return len(b), nil
}

// TestInlinedCallsInOrder checks that cycles of inlined calls are detected. The library
// would follow such a cycle forever.
func TestInlinedCallsInOrder(t *testing.T) {
	const code, array, positions, id = 0x10000, 0x20000, 0x30000, 1 << 31
	for name, test := range map[string]struct {
		into [3]int64
		size int64
		ok   bool
	}{
		"none":                 {ok: true},
		"into the function":    {size: 3, ok: true},
		"into earlier calls":   {into: [3]int64{0, 1, 2}, size: 3, ok: true},
		"into itself":          {into: [3]int64{0, 2, 0}, size: 3},
		"into a later call":    {into: [3]int64{2, 1, 0}, size: 3},
		"more than is read":    {size: 1 << 26},
		"a size below nothing": {into: [3]int64{1}, size: -1, ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := words{code + 8: array + 1, array + 16 + 8*7: positions + 1, positions + 8: test.size * 16 << 32}
			for i, into := range test.into {
				m[positions+16+16*int64(i)] = into * id
			}
			l := &loaded[support.V8ProcInfo]{process: interpreter.Process{Memory: m}}
			n := &node{loaded: l, pages: make(map[int64]*[pageSize]byte), left: maxNodeRead, deoptimization: 8, array: 16, positions: 16 + 8*7}
			require.Equal(t, test.ok, n.inlinedInOrder(code+1))
		})
	}
}

func TestOtherProgramsHaveNoInterpreter(t *testing.T) {
	l, err := driver{}.Attach(processOf(t, os.Getpid()))
	require.NoError(t, err)
	require.Equal(t, interpreter.Layout{}, l)
}

// TestForgedFiles checks that files with the name of an interpreter
// but other contents are rejected.
func TestForgedFiles(t *testing.T) {
	for _, program := range []string{"python3.12", "node", "php8.4"} {
		testForgedFiles(t, filepath.Join(t.TempDir(), program))
	}
}

func testForgedFiles(t *testing.T, file string) {
	text, err := os.ReadFile("/bin/sleep")
	require.NoError(t, err)
	for name, content := range map[string][]byte{"empty": nil, "no ELF": []byte("#!/bin/sh\n"), "another program": text, "cut": text[:len(text)/2]} {
		require.NoError(t, os.WriteFile(file, content, 0o755))
		_, err := driver{}.Attach(interpreter.Process{
			PID: os.Getpid(), Memory: remotememory.NewProcessVirtualMemory(libpf.PID(os.Getpid())),
			Mappings: []interpreter.Mapping{{Start: 0x400000, Limit: 0x500000, Path: file}},
			Open:     func(int) (interpreter.File, error) { return os.Open(file) },
		})
		require.Error(t, err, name)
	}
}

// TestJavaOfThisMachine attaches to a JVM and checks the layout. It also checks that an
// address without a method has no name.
func TestJavaOfThisMachine(t *testing.T) {
	if _, err := exec.LookPath("javac"); err != nil {
		t.Skipf("a JDK is needed: %v", err)
	}
	file := filepath.Join(t.TempDir(), "Sleeps.java")
	require.NoError(t, os.WriteFile(file, []byte(`class Sleeps { public static void main(String[] a) throws Exception { System.out.println(1); Thread.sleep(1000000); } }`), 0o644))
	l, err := driver{}.Attach(processOf(t, start(t, "java", file)))
	require.NoError(t, err)
	require.NotNil(t, l.HotSpot)
	require.GreaterOrEqual(t, l.HotSpot.Version, oldestHotSpot)
	require.NotEmpty(t, l.HotSpot.Heaps)
	for _, heap := range l.HotSpot.Heaps {
		require.Less(t, heap.Start, heap.Limit)
	}
	functions, err := l.HotSpot.Names(interpreter.Code{Interpreted: true, Address: 8})
	require.Error(t, err)
	require.Empty(t, functions)
}

// TestMappingsWithoutAFile checks that a mapping is rejected if its file no longer exists
// or if the mapping is outside the file.
func TestMappingsWithoutAFile(t *testing.T) {
	for _, path := range []string{"/nowhere/python3.12", "/nowhere/libjvm.so"} {
		p := interpreter.Process{PID: os.Getpid(), Mappings: []interpreter.Mapping{{Start: 0x400000, Limit: 0x500000, FileOffset: 1 << 40, Path: path}}}
		p.Open = func(int) (interpreter.File, error) { return os.Open(path) }
		_, err := driver{}.Attach(p)
		require.ErrorIs(t, err, os.ErrNotExist)
		p.Open = func(int) (interpreter.File, error) { return os.Open("/bin/sleep") }
		_, err = driver{}.Attach(p)
		require.ErrorIs(t, err, errNoProgs)
	}
}

// memory is the memory of a process from address 0 on.
type memory []byte

func (m memory) ReadAt(b []byte, at int64) (int, error) {
	if at < 0 || at >= int64(len(m)) {
		return 0, io.EOF
	}
	n := copy(b, m[at:])
	if n < len(b) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// TestInstructionsHaveTheNextDescription checks the description of an instruction of
// compiled Java code. It must be the first description at or after the instruction.
func TestInstructionsHaveTheNextDescription(t *testing.T) {
	const blob, table, header = 0x100, 0x200, 0x40
	put := binary.LittleEndian.PutUint32
	for name, d := range map[string]descriptions{
		"in the blob":    {first: header, limit: header + 4, size: 16},
		"immutable data": {first: header, limit: header + 4, size: 16, data: header + 8},
	} {
		t.Run(name, func(t *testing.T) {
			m := make(memory, 0x400)
			base := uint32(blob)
			if d.data != 0 {
				base = 0x180
				binary.LittleEndian.PutUint64(m[blob+d.data:], uint64(base))
			}
			put(m[blob+header:], table-base)
			put(m[blob+header+4:], table-base+16*4)
			for i, position := range []int32{-1, 40, 20, math.MaxInt32} {
				put(m[table+16*i:], uint32(position))
			}
			d.memory = m
			for position, want := range map[uint32]uint32{0: 20, 20: 20, 21: 40, 40: 40, 41: 41} {
				require.Equal(t, want, d.next(interpreter.Code{Address: blob, Position: position}), position)
			}
			require.EqualValues(t, 7, d.next(interpreter.Code{Address: 1 << 40, Position: 7}), "unreadable")
			put(m[blob+header+4:], 1<<31)
			require.EqualValues(t, 7, d.next(interpreter.Code{Address: blob, Position: 7}), "a huge table")
			d.size = 0
			require.EqualValues(t, 7, d.next(interpreter.Code{Address: blob, Position: 7}), "no size")
		})
	}
}
