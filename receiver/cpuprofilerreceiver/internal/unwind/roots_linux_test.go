// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
)

// TestRootsOfStrippedProgramsAreKnown unwinds a program without symbols by frame
// pointers. The stacks must end in the program's entry or in the function that starts its
// thread. No other frame may be a root.
func TestRootsOfStrippedProgramsAreKnown(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the program has assembly of amd64")
	}
	program := compile(t, "gcc", "-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-stack-protector",
		"-nostdlib", "-static", "-s", "testdata/freestanding.c")
	pid := run(t, program)
	stacks := sample(t, pid, 400, 1024)
	m := memoryOf(t, pid)
	roots := newTestCache(t, func(*Config) {})
	ready(t, roots, m)
	whole, threads := 0, map[int]int{}
	for _, s := range stacks {
		for i, pc := range s.User {
			root := roots.Root(&samples.Location{Mapping: m.Mapping(pc), Address: pc, Leaf: i == 0})
			last := i == len(s.User)-1
			if root && last && i > 0 {
				whole++
				threads[s.tid]++
			}
			require.False(t, root && !last, "frame %d of %d: %s", i, len(s.User), describe(m, s.User, Whole))
		}
	}
	t.Logf("%d of %d stacks, of %d threads", whole, len(stacks), len(threads))
	require.GreaterOrEqual(t, 100*whole, 95*len(stacks))
	require.Len(t, threads, 2)
}

// TestRootsOfTheCLibraryAreKnown reads the C library of this machine without
// its symbols. The function that starts threads must be a root, and only a
// few other functions may be roots.
func TestRootsOfTheCLibraryAreKnown(t *testing.T) {
	pid := run(t, "sleep", "60")
	var mappings *memory
	require.Eventually(t, func() bool { // the program sleeps after all libraries are loaded
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		mappings = memoryOf(t, pid)
		return err == nil && bytes.Contains(text, []byte(") S "))
	}, 30*time.Second, time.Millisecond)
	for _, mapping := range *mappings {
		if !strings.HasPrefix(filepath.Base(mapping.Path), "libc.so") {
			continue
		}
		f, _, err := mappedfile.Open(nil, "/", mapping)
		require.NoError(t, err)
		defer f.Close()
		info, err := f.Stat()
		require.NoError(t, err)
		table, err := readTable(f, info.Size(), 1<<20, maxFrames)
		require.NoError(t, err)
		file, err := elf.NewFile(f)
		require.NoError(t, err)
		symbols, err := file.DynamicSymbols()
		require.NoError(t, err)
		roots := map[string]bool{}
		for _, s := range symbols {
			for at := s.Value; elf.ST_TYPE(s.Info) == elf.STT_FUNC && at < s.Value+s.Size; at++ {
				if table.at(at).flags&flagRoot != 0 {
					roots[s.Name] = true
				}
			}
		}
		t.Logf("%v; %d rows, %d bytes", roots, len(table.pcs), table.Bytes())
		require.True(t, roots["clone"], "%v", roots)
		require.Less(t, len(roots), 8, "%v", roots)
		return
	}
	t.Skip("no C library of that name")
}
