// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// fixture is the procfs of Linux 6.18 in testdata. It contains one process
// with the pid 42.
var fixture = At("testdata")

func read(t testing.TB, name string, limit int) []byte {
	t.Helper()
	b, err := ReadFile(fixture.File(42, name), limit)
	require.NoError(t, err)
	return b
}

func TestFixture(t *testing.T) {
	stat, err := fixture.Stat(42)
	require.NoError(t, err)
	require.Equal(t, Stat{Comm: []byte("sleep"), PPID: 7, User: 11, System: 12, Threads: 2, Start: 207033}, stat)
	p, err := fixture.Process(42)
	require.NoError(t, err)
	require.Equal(t, Process{PID: 42, Start: 207033}, p)
	thread, err := fixture.ThreadStat(42, 43)
	require.NoError(t, err)
	require.Equal(t, Stat{Comm: []byte("worker"), PPID: 7, Ending: true, User: 5, System: 6, Threads: 2, Start: 207100}, thread)
	status, err := fixture.Status(42)
	require.NoError(t, err)
	require.Equal(t, Status{State: 'S', PID: 7, UIDs: [4]uint32{1000, 1001, 1002, 1003}, Capabilities: 1 << 19, Switches: 15}, status)

	pids, err := fixture.PIDs()
	require.NoError(t, err)
	require.Equal(t, []int{42}, pids)
	tids, err := fixture.Threads(42)
	require.NoError(t, err)
	slices.Sort(tids)
	require.Equal(t, []int{42, 43}, tids)
	onCPU, err := ParseSchedstat(read(t, "schedstat", 64))
	require.NoError(t, err)
	require.EqualValues(t, 1193829, onCPU)

	var paths []string
	for line := range bytes.Lines(read(t, "maps", MaxMaps)) {
		if m, ok := ParseExecutable(line); ok {
			paths = append(paths, string(m.Path))
		}
	}
	require.Equal(t, []string{
		"/usr/bin/sleep", "/usr/lib/x86_64-linux-gnu/libc.so.6", "[vdso]", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "[vsyscall]",
	}, paths)

	_, err = fixture.Executable(42)
	require.True(t, IsGone(err), err)
	for _, missing := range []func() error{
		func() error { _, err := fixture.Stat(41); return err },
		func() error { _, err := fixture.ThreadStat(42, 44); return err },
		func() error { _, err := fixture.Status(41); return err },
		func() error { _, err := fixture.Threads(41); return err },
		func() error { _, err := fixture.EntryPoint(41); return err },
		func() error { _, err := At("testdata/none").PIDs(); return err },
	} {
		require.True(t, IsGone(missing()))
	}
}

func TestPaths(t *testing.T) {
	require.Equal(t, "/proc", At("").Path())
	require.Equal(t, "/proc/stat", At("/").Path("stat"))
	require.Equal(t, "/host/proc/1/task", At("/host").File(1, "task"))
	require.Equal(t, "/proc/self/status", At("").File(Self, "status"))
}

func TestLinks(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "proc/42"), 0o755))
	require.NoError(t, os.Symlink("/opt/shop (deleted)", filepath.Join(root, "proc/42/exe")))
	path, err := At(root).Executable(42)
	require.NoError(t, err)
	require.Equal(t, "/opt/shop", path)
	require.Zero(t, At(root).OwnPID())
	require.NoError(t, os.Symlink("42", filepath.Join(root, "proc/self")))
	require.Equal(t, 42, At(root).OwnPID())
}

func TestGetenv(t *testing.T) {
	environ := read(t, "environ", MaxEnviron)
	for name, want := range map[string]struct {
		value string
		ok    bool
	}{
		"PATH":              {"/usr/bin", true},
		"OTEL_SERVICE_NAME": {"shop", true}, // the first of two values
		"EMPTY":             {"", true},
		"OTEL":              {"", false},
		"ATH":               {"", false},
		"EMPTY=":            {"", false},
	} {
		value, ok := Getenv(environ, name)
		require.Equal(t, want.ok, ok, name)
		require.Equal(t, want.value, string(value), name)
	}
	value, ok := Getenv([]byte("A=1"), "A")
	require.True(t, ok, "no zero byte at the end")
	require.Equal(t, "1", string(value))
}

func TestParseSchedstat(t *testing.T) {
	for _, bad := range []string{"", "1", "x 1 2", "-1 1 2", "99999999999999999999 1 2"} {
		_, err := ParseSchedstat([]byte(bad))
		require.ErrorIs(t, err, ErrMalformed, bad)
	}
}

// TestParsersDoNotAllocate covers the parsers of files that are read frequently.
func TestParsersDoNotAllocate(t *testing.T) {
	stat, status, maps := read(t, "stat", MaxStat), read(t, "status", MaxStatus), read(t, "maps", MaxMaps)
	schedstat, environ := read(t, "schedstat", 64), read(t, "environ", MaxEnviron)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = ParseStat(stat)
		_, _ = ParseStatus(status)
		for line := range bytes.Lines(maps) {
			_, _ = ParseExecutable(line)
		}
		_, _ = ParseSchedstat(schedstat)
		_, _ = Getenv(environ, "NONE")
	}))
}

func FuzzParseSchedstat(f *testing.F) {
	f.Add([]byte("1193829 61408 2\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if onCPU, err := ParseSchedstat(b); onCPU < 0 || err != nil && onCPU != 0 {
			t.Errorf("%v, %v", onCPU, err)
		}
	})
}

func FuzzGetenv(f *testing.F) {
	f.Add([]byte("A=1\x00OTEL_SERVICE_NAME=a\x00"), "OTEL_SERVICE_NAME")
	f.Add([]byte("=\x00\x00"), "")
	f.Fuzz(func(t *testing.T, environ []byte, name string) {
		if value, ok := Getenv(environ, name); bytes.IndexByte(value, 0) >= 0 || !ok && value != nil {
			t.Errorf("%q, %v", value, ok)
		}
	})
}
