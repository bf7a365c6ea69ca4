// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const tail = " S 7 42 42 0 -1 4194560 1 0 0 0 11 12 0 0 20 0 3 0 987654 1 2\n"

// starting is tail with three more fields: the limit on resident memory, and the start
// and end addresses of the code. Both addresses are 0.
var starting = strings.TrimSuffix(tail, "\n") + " 3 0 0\n"

func TestParseStat(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		want    Stat
	}{
		"a process":                     {"42 (app)" + tail, Stat{Comm: []byte("app"), PPID: 7, User: 11, System: 12, Threads: 3, Start: 987654}},
		"parentheses and lines in name": {"42 (a) S 1 (b\n)" + tail, Stat{Comm: []byte("a) S 1 (b\n"), PPID: 7, User: 11, System: 12, Threads: 3, Start: 987654}},
		"an empty name":                 {"42 ()" + tail, Stat{Comm: []byte{}, PPID: 7, User: 11, System: 12, Threads: 3, Start: 987654}},
		"one that is exiting":           {"42 (app)" + strings.Replace(tail, "4194560", "4194564", 1), Stat{Comm: []byte("app"), PPID: 7, Ending: true, User: 11, System: 12, Threads: 3, Start: 987654}},
		"a program being started":       {"42 (app)" + starting, Stat{Comm: []byte("app"), PPID: 7, Starting: true, User: 11, System: 12, Threads: 3, Start: 987654}},
		"a program that was started":    {"42 (app)" + strings.Replace(starting, " 2 3 0 ", " 2 3 1 ", 1), Stat{Comm: []byte("app"), PPID: 7, User: 11, System: 12, Threads: 3, Start: 987654}},
		"one that has ended":            {"42 (app)" + strings.Replace(starting, "4194560", "4194564", 1), Stat{Comm: []byte("app"), PPID: 7, Ending: true, User: 11, System: 12, Threads: 3, Start: 987654}},
		"a kernel thread, in full":      {"42 (kworker/0:1)" + strings.Replace(starting, "4194560", "69238880", 1), Stat{Comm: []byte("kworker/0:1"), PPID: 7, Kernel: true, User: 11, System: 12, Threads: 3, Start: 987654}},
		"a kernel thread":               {"42 (kworker/0:1)" + strings.Replace(tail, "4194560", "69238880", 1), Stat{Comm: []byte("kworker/0:1"), PPID: 7, Kernel: true, User: 11, System: 12, Threads: 3, Start: 987654}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseStat([]byte(c.content))
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	for name, bad := range map[string]string{
		"nothing":             "",
		"no name":             "42 app" + tail,
		"no end of the name":  "42 (app" + tail,
		"cut off":             "42 (app)" + tail[:40],
		"a start of no digit": "42 (app)" + strings.Replace(tail, "987654", "x", 1),
		"a negative time":     "42 (app)" + strings.Replace(tail, " 11 12 ", " -1 12 ", 1),
		"parentheses swapped": ")(" + tail,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseStat([]byte(bad))
			require.ErrorIs(t, err, ErrMalformed)
		})
	}
}

func TestParseStatOfThisProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: it reads /proc/self/stat")
	}
	b, err := os.ReadFile("/proc/self/stat")
	require.NoError(t, err)
	s, err := ParseStat(b)
	require.NoError(t, err)
	require.Equal(t, os.Getppid(), s.PPID)
	require.Positive(t, s.Threads)
	require.NotZero(t, s.Start)
	require.False(t, s.Kernel || s.Ending || s.Starting)
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = ParseStat(b) }))
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (app)" + tail))
	f.Add([]byte("42 (a) S 1 (b\n)" + tail))
	f.Add([]byte(")("))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseStat(b)
		if err != nil && (s.Start != 0 || s.Comm != nil) {
			t.Fatal("an error and a result")
		}
	})
}
