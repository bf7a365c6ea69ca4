// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package goprogram

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var goQuery = Query{
	Functions: []string{"runtime.profilealloc"}, Variable: "runtime.MemProfileRate", Size: 8,
	Runs: func(name []byte) bool { return bytes.HasPrefix(name, []byte("runtime.")) },
}

// buildGo builds a Go program. The executable is removed when the test ends.
func buildGo(t testing.TB, program string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	args := append(append([]string{"build", "-o", out}, flags...), program)
	cmd := exec.Command(cmp.Or(os.Getenv("HOTPROFILE_TEST_GO"), "go"), args...)
	cmd.Env = append(os.Environ(), "GO111MODULE=off")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

func readGoProgram(t testing.TB, path string) (*Program, error) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	return Read(f, st.Size(), goQuery)
}

func TestReadFindsTheSameHoweverAProgramIsLinked(t *testing.T) {
	var plain *Program
	for _, flags := range [][]string{nil, {"-ldflags=-s -w"}, {"-buildmode=pie"}, {"-buildmode=pie", "-ldflags=-s -w"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			p, err := readGoProgram(t, buildGo(t, "../../../../test/testdata/frames/main.go", flags...))
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(p.Version, "go1."), p.Version)
			require.NotZero(t, p.Entry)
			require.NotNil(t, p.Functions[0])
			require.Equal(t, len(p.Functions[0].Code), p.Functions[0].Length)
			stripped := strings.Contains(strings.Join(flags, " "), "-s -w")
			require.Equal(t, stripped, p.Variable == 0, "only the symbol table has the variable")
			require.NotEmpty(t, p.Runs)
			inside := false
			for i, r := range p.Runs {
				require.Less(t, r.Start, r.End)
				require.True(t, i == 0 || p.Runs[i-1].End < r.Start, "by address, and adjacent ones joined")
				inside = inside || p.Functions[0].Address >= r.Start && p.Functions[0].Address < r.End
			}
			require.True(t, inside)
			if plain == nil {
				plain = p
			} else {
				require.Equal(t, plain.Version, p.Version)
				// Only the first instruction is compared. Later instructions may contain
				// relative addresses, which differ between the builds.
				require.Equal(t, plain.Functions[0].Code[:4], p.Functions[0].Code[:4])
			}
		})
	}
}

func TestReadRejectsOtherPrograms(t *testing.T) {
	_, err := readGoProgram(t, "/bin/cat")
	require.ErrorIs(t, err, ErrNotGo)
	_, err = readGoProgram(t, "program_linux_test.go")
	require.Error(t, err)
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x7fELF"))
	whole, err := os.ReadFile(buildGo(f, "../../../../test/testdata/frames/main.go", "-ldflags=-s -w"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole[:64<<10])
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Read(bytes.NewReader(b), int64(len(b)), goQuery)
		if err == nil && (len(p.Version) > maxGoVersion || len(p.Runs) > maxRuns) {
			t.Fatalf("%q, %d runs", p.Version, len(p.Runs))
		}
	})
}
