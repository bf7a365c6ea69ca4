// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
)

func TestWhatShowsThatThereIsNoFile(t *testing.T) {
	for err, none := range map[error]bool{
		unix.ENOENT: true, unix.ENOTDIR: true, unix.ELOOP: true,
		unix.EACCES: false, unix.EMFILE: false, unix.EIO: false, unix.ESTALE: false,
		fmt.Errorf("%w: %w", mappedfile.ErrNoRoot, unix.ENOENT): false,
	} {
		require.Equal(t, none, mappedfile.IsNone(fmt.Errorf("opening: %w", err)), err)
	}
	require.False(t, mappedfile.IsNone(nil))
}

// sharing returns a host with two processes that have the same root and map the same
// program. The root contains the program's debug file. The first process is about to end.
// Its mapped file can still be opened, but its root directory cannot.
func sharing(t *testing.T) (h host, p strippedProgram, ended, lives *samples.Mapping) {
	p = stripped(t, "-Wl,--build-id=sha1")
	h, lives = processWith(t, p.stripped, "/opt/app/program")
	id := buildIDOf(t, p.whole)
	h.install(t, p.debug, "/usr/lib/debug/.build-id/"+id[:2]+"/"+id[2:]+".debug")
	m := *lives
	m.PID = 4712
	dir := filepath.Join(h.root, "proc/4712/map_files")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.Symlink(filepath.Join(h.processRoot, m.Path), filepath.Join(dir, fmt.Sprintf("%x-%x", m.Start, m.Limit))))
	return h, p, &m, lives
}

// TestDebugFileIsLookedForAgainAfterItsProcessEnded covers a process that ends while its
// file is being read. The function names of the file must still become available to all
// other processes.
func TestDebugFileIsLookedForAgainAfterItsProcessEnded(t *testing.T) {
	for name, again := range map[string]func(*Symbolizer, *samples.Mapping){
		"through the next process that maps the file": func(s *Symbolizer, m *samples.Mapping) { s.Track(m) },
		"through a process with samples": func(s *Symbolizer, m *samples.Mapping) {
			s.Resolve(m.PID, leaf(m, m.Start+0x1000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, p, ended, lives := sharing(t)
			clock := &testClock{now: time.Unix(1e9, 0)}
			s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}, Now: clock.Now})
			require.Empty(t, hiddenFunction(t, s, p, ended))
			require.EqualValues(t, 1, s.Counters().DebugFiles[DebugFileUnknown])
			again(s, lives)
			clock.advance(checkInterval)
			again(s, lives)
			eventually(t, "the debug file", func() bool { return s.Counters().DebugFiles[DebugFileFound] == 1 })
			require.Equal(t, []samples.Line{{Function: "hidden"}}, hiddenFunction(t, s, p, lives))
			require.Equal(t, []samples.Line{{Function: "hidden"}}, hiddenFunction(t, s, p, ended))
		})
	}
}

func TestDebugFileThatIsAbsentIsLookedForOnce(t *testing.T) {
	p := stripped(t, "-Wl,--build-id=sha1")
	h, m := processWith(t, p.stripped, "/opt/app/program")
	clock := &testClock{now: time.Unix(1e9, 0)}
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}, Now: clock.Now})
	for range 5 {
		require.Empty(t, hiddenFunction(t, s, p, m))
		clock.advance(maxLookInterval)
		s.tracked(m)
	}
	require.Equal(t, [numDebugFiles]uint64{DebugFileAbsent: 1}, s.Counters().DebugFiles)
}

// TestLooksThatFailAreRare covers searches for a debug file that keep failing while the
// process is alive. The searches must be repeated at growing intervals, and the failure must
// be logged only once.
func TestLooksThatFailAreRare(t *testing.T) {
	f := &file{ready: make(chan struct{})}
	close(f.ready)
	core, logs := observer.New(zap.WarnLevel)
	clock := &testClock{now: time.Unix(1e9, 0)}
	s := newSymbolizer(t, Config{Now: clock.Now, Logger: zap.New(core)})
	m := &samples.Mapping{Path: "/lib/libc.so.6"}
	looks := 0
	for range 600 {
		if looks == 0 || f.look(clock.Now()) {
			looks++
			s.looked(f, m, false, unix.EMFILE)
		}
		clock.advance(time.Second)
	}
	require.LessOrEqual(t, looks, 16)
	require.GreaterOrEqual(t, looks, 10)
	require.Equal(t, 1, logs.Len())
	require.Equal(t, "/lib/libc.so.6", logs.All()[0].ContextMap()["file"])
	s.looked(f, m, true, nil)
	clock.advance(time.Hour)
	require.False(t, f.look(clock.Now()))
}

// TestNamesOfASharedLibraryOutliveChurn uses a library that has a debug file.
// One process with the library keeps running. Many other processes map the
// library and end while the library is being read. The cache is so small that it
// evicts the library again and again.
func TestNamesOfASharedLibraryOutliveChurn(t *testing.T) {
	dir := t.TempDir()
	library := filepath.Join(dir, "libshared.so")
	source := filepath.Join(dir, "shared.c")
	require.NoError(t, os.WriteFile(source, []byte("__attribute__((noinline)) static int hidden(int a) { return a * 3; }\nint exported(int a) { return hidden(a) + 1; }\n"), 0o644))
	tool(t, "gcc", "-O0", "-g0", "-shared", "-fPIC", "-o", library+".whole", source)
	tool(t, "objcopy", "--only-keep-debug", library+".whole", library+".debug")
	tool(t, "objcopy", "--strip-all", "--add-gnu-debuglink="+library+".debug", library+".whole", library)
	other := filepath.Join(dir, "libother.so")
	tool(t, "gcc", "-O0", "-g0", "-shared", "-fPIC", "-DOTHER", "-Wl,--build-id=sha1", "-o", other, source)
	program := filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(program+".c", []byte("#include <stdio.h>\nint exported(int);\nint main(void) { printf(\"%d\\n\", exported(1)); fflush(stdout); return getchar() == 0; }\n"), 0o644))
	tool(t, "gcc", "-o", program, program+".c", library, "-Wl,-rpath,"+dir)

	lives := start(t, program)
	lives.line(t)
	m := mappingOf(t, mappings(t, lives.pid), "libshared.so")
	at := addressOf(t, library+".whole", m, "hidden") + 1
	// The cache is so small that loading one program evicts the files of all other programs.
	s := newSymbolizer(t, Config{MaxObjects: 4})
	for i := range 150 {
		cmd := exec.Command(program)
		_, err := cmd.StdinPipe() // the program ends when its standard input is closed
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = out.Read(make([]byte, 1))
		require.NoError(t, err)
		for _, m := range mappings(t, cmd.Process.Pid) {
			if strings.HasPrefix(m.Path, "/") {
				s.Track(m)
			}
		}
		time.Sleep(time.Duration(i%30) * 50 * time.Microsecond)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	t.Log(s.Counters().DebugFiles, s.Counters().Evictions)
	require.Positive(t, s.Counters().Evictions)
	eventually(t, "the name of a function that only the debug file has", func() bool {
		l := leaf(m, at)
		s.Begin(nil)
		s.Resolve(lives.pid, l)
		return len(l.Lines) == 1 && l.Lines[0].Function == "hidden"
	})
}
