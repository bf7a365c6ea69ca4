// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// compile runs a compiler and returns the path of the executable.
func compile(t testing.TB, name string, args ...string) string {
	t.Helper()
	name = hosttest.Tool(t, name)
	return hosttest.Compiled(t, "program", fmt.Sprintf("%s %q", name, args), func(out string) {
		cmd := exec.Command(name)
		if filepath.Base(name) == "go" {
			cmd.Args = append(cmd.Args, "build")
		}
		cmd.Args = slices.Concat(cmd.Args, []string{"-o", out}, args)
		cmd.Env = append(os.Environ(), "GO111MODULE=off")
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, b)
		}
	})
}

// run starts a program and returns its pid. The program is killed when the test ends.
func run(t testing.TB, name string, args ...string) int {
	t.Helper()
	cmd := exec.Command(name, args...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// memory contains the mappings of a process, sorted by address.
type memory []*samples.Mapping

func (m *memory) Mapping(address uint64) *samples.Mapping {
	i, found := slices.BinarySearchFunc(*m, address, func(m *samples.Mapping, a uint64) int { return cmp.Compare(m.Start, a) })
	if !found {
		i--
	}
	if i < 0 || address >= (*m)[i].Limit {
		return nil
	}
	return (*m)[i]
}

func memoryOf(t testing.TB, pid int) *memory {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	defer f.Close()
	root, err := procfs.At("").Root(pid)
	require.NoError(t, err)
	var out memory
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1][2] != 'x' {
			continue
		}
		m := &samples.Mapping{PID: pid, Path: fields[5], Root: root}
		_, err := fmt.Sscanf(fields[0]+" "+fields[2]+" "+fields[3], "%x-%x %x %x:%x",
			&m.Start, &m.Limit, &m.FileOffset, &m.DeviceMajor, &m.DeviceMinor)
		require.NoError(t, err)
		m.Inode, err = strconv.ParseUint(fields[4], 10, 64)
		require.NoError(t, err)
		out = append(out, m)
	}
	return &out
}

// newTestCache returns a cache that opens files of this host.
func newTestCache(t testing.TB, change ...func(*Config)) *Cache {
	t.Helper()
	cfg := Config{
		Open: func(c *stuckread.Call, m *samples.Mapping) (*os.File, mappedfile.ID, error) {
			return mappedfile.Open(c, "/", m)
		},
		VDSO: mappedfile.VDSO,
	}
	for _, f := range change {
		f(&cfg)
	}
	c := NewCache(cfg)
	t.Cleanup(c.Close)
	return c
}

// ready waits until the cache has read all mapped files.
func ready(t testing.TB, c *Cache, m *memory) {
	t.Helper()
	require.Eventually(t, func() bool {
		all := true
		for _, mapping := range *m {
			_, ok := c.Lookup(mapping)
			all = all && ok
		}
		return all
	}, 30*time.Second, 5*time.Millisecond)
}

// stack is a sample that was copied out of the ring.
type stack struct {
	perfevent.Sample
	tid int
}

// sample returns n samples of a process. Each sample has a copy of the
// stack with the given size in bytes.
func sample(t testing.TB, pid, n, size int) []stack {
	t.Helper()
	session, err := perfevent.Open(perfevent.Options{Period: time.Millisecond, UserStack: size, SampleRing: 4 << 20})
	if err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	defer session.Close()
	_, err = session.AttachProcess(pid)
	require.NoError(t, err)
	var out []stack
	var rec perfevent.Record
	for deadline := time.Now().Add(40 * time.Second); len(out) < n; {
		require.True(t, time.Now().Before(deadline), "%d samples in 40 s", len(out))
		require.NoError(t, session.Wait(50*time.Millisecond))
		for session.Read(&rec) {
			if rec.Type != perfevent.TypeSample || rec.PID != pid {
				continue
			}
			s := &rec.Sample
			if !s.HasRegisters {
				continue // the thread was exiting
			}
			out = append(out, stack{tid: rec.TID, Sample: perfevent.Sample{
				Registers: s.Registers,
				Stack:     slices.Clone(s.Stack),
				User:      slices.Clone(s.User),
			}})
		}
	}
	return out
}

// stackBytes is the receiver's default size of stack copies.
const stackBytes = 16384

func TestStacksOfRealProgramsReachTheirEntry(t *testing.T) {
	cFlags := []string{"-O2", "-fomit-frame-pointer", "testdata/calls.c", "-lm", "-lpthread"}
	programs := map[string]func(t *testing.T) int{
		"C": func(t *testing.T) int { return run(t, compile(t, "gcc", cFlags...)) },
		"C, stripped": func(t *testing.T) int {
			return run(t, compile(t, "gcc", append([]string{"-s"}, cFlags...)...))
		},
		"C, static": func(t *testing.T) int {
			return run(t, compile(t, "gcc", append([]string{"-static"}, cFlags...)...))
		},
		"C, early binding": func(t *testing.T) int {
			return run(t, compile(t, "gcc", append([]string{"-no-pie", "-Wl,-z,now", "-fcf-protection=full"}, cFlags...)...))
		},
		"C, without tables": func(t *testing.T) int {
			return run(t, compile(t, "gcc", append([]string{"-fno-asynchronous-unwind-tables", "-fno-unwind-tables"}, cFlags...)...))
		},
		"C, musl": func(t *testing.T) int { return run(t, compile(t, "musl-gcc", cFlags...)) },
		"C, musl, static and stripped": func(t *testing.T) int {
			return run(t, compile(t, "musl-gcc", append([]string{"-static", "-s"}, cFlags...)...))
		},
		"C++": func(t *testing.T) int {
			return run(t, compile(t, "g++", "-O2", "-fomit-frame-pointer", "testdata/exceptions.cc", "-lpthread"))
		},
		"Rust": func(t *testing.T) int { return run(t, compile(t, "rustc", "-O", "testdata/closures.rs")) },
		"Go":   func(t *testing.T) int { return run(t, compile(t, "go", "../../../../test/testdata/spinner")) },
		"Go, stripped": func(t *testing.T) int {
			return run(t, compile(t, "go", "-ldflags=-s -w", "-buildmode=pie", "../../../../test/testdata/spinner"))
		},
		"dash":   func(t *testing.T) int { return installed(t, "/usr/bin/dash", "testdata/loop.sh") },
		"python": func(t *testing.T) int { return run(t, hosttest.Tool(t, "/usr/bin/python3"), "testdata/loop.py") },
	}
	for name, start := range programs {
		t.Run(name, func(t *testing.T) {
			pid := start(t)
			stacks := sample(t, pid, 800, stackBytes)
			m := memoryOf(t, pid)
			cache := newTestCache(t)
			ready(t, cache, m)
			u := newUnwinder(cache)
			var ends [endKinds]int
			frames := 0
			var lost []string
			for i := range stacks {
				pcs, end := u.Unwind(&stacks[i].Sample, nil, m)
				ends[end]++
				frames += len(pcs)
				if end != Whole && len(lost) < 5 {
					lost = append(lost, describe(m, pcs, end))
				}
			}
			t.Logf("%d samples, %d frames; %s\n%s", len(stacks), frames, summary(ends), strings.Join(lost, "\n"))
			if ends[Whole]*100 < len(stacks)*95 {
				t.Errorf("only %d of %d stacks are whole:\n%s", ends[Whole], len(stacks), strings.Join(lost, "\n"))
			}
		})
	}
}

func installed(t *testing.T, path string, args ...string) int {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	return run(t, path, args...)
}

func summary(ends [endKinds]int) string {
	var parts []string
	for e, n := range ends {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", End(e), n))
		}
	}
	return strings.Join(parts, ", ")
}

// describe formats a stack as file offsets.
func describe(m *memory, pcs []uint64, end End) string {
	var out []string
	for _, pc := range pcs {
		at := "?"
		if mapping := m.Mapping(pc); mapping != nil {
			at = fmt.Sprintf("%s+%#x", filepath.Base(mapping.Path), pc-mapping.Start+mapping.FileOffset)
		}
		out = append(out, at)
	}
	return fmt.Sprintf("%s: %s", end, strings.Join(out, " "))
}

// TestUnwindingAgreesWithFramePointers unwinds code that has frame pointers everywhere,
// so that the kernel can unwind it too. Both methods must find the same stack.
func TestUnwindingAgreesWithFramePointers(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) int{
		"C": func(t *testing.T) int {
			return run(t, compile(t, "gcc", "-O2", "-fno-omit-frame-pointer", "testdata/calls.c", "-lm", "-lpthread"))
		},
		"Go": func(t *testing.T) int { return run(t, compile(t, "go", "../../../../test/testdata/spinner")) },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "C" && !tablesShowFramePointers {
				t.Skip("what code has frame pointers is not to be seen")
			}
			pid := start(t)
			stacks := sample(t, pid, 800, stackBytes)
			m := memoryOf(t, pid)
			cache := newTestCache(t)
			ready(t, cache, m)
			u := newUnwinder(cache)
			compared, different, used := 0, 0, 0
			for i := range stacks {
				in := stacks[i].Sample
				chain := in.User
				in.User = nil
				if table := tableAt(cache, m, in.Registers.PC); table == nil || !table.FramePointers() {
					continue
				}
				hasFrame := leafHasFrame(u, &in, m)
				pcs, _ := u.Unwind(&in, nil, m)
				if len(pcs) > 1 && !hasFrame {
					// The frame pointer register still belongs to the caller, so the kernel skips the
					// caller.
					if t := tableAt(cache, m, pcs[1]); t == nil || !t.FramePointers() {
						continue
					}
					pcs = slices.Delete(slices.Clone(pcs), 1, 2)
				}
				used++
				for j := range min(len(pcs), len(chain)) {
					compared++
					if pcs[j] != chain[j] {
						different++
						if different < 5 {
							t.Logf("\n%s\n%s", describe(m, pcs, Whole), describe(m, chain, Whole))
						}
						break
					}
					if t := tableAt(cache, m, pcs[j]); t == nil || !t.FramePointers() {
						break
					}
				}
			}
			t.Logf("%d of %d samples, %d frames, %d differ", used, len(stacks), compared, different)
			require.Greater(t, used, len(stacks)/3)
			require.LessOrEqual(t, different*100, compared)
		})
	}
}

func tableAt(c *Cache, m *memory, address uint64) *Table {
	mapping := m.Mapping(address)
	if mapping == nil {
		return nil
	}
	table, _ := c.Lookup(mapping)
	return table
}

// leafHasFrame reports whether the interrupted function has
// already set up its frame pointer.
func leafHasFrame(u *unwinder, in *perfevent.Sample, m *memory) bool {
	u.mapping = nil
	w := walk{pc: in.Registers.PC, exact: true}
	r, _ := u.rule(&w, m)
	switch {
	case r.flags&flagGo != 0 && runtime.GOARCH == "arm64": // the frame pointer is stored below the frame
		return r.cfaOff != 0 && in.Registers.FP == in.Registers.SP-8
	case r.flags&flagGo != 0:
		return r.fp == locCFA && in.Registers.FP == in.Registers.SP+uint64(int64(r.cfaOff))-16
	default:
		return r.cfa == cfaFP
	}
}

// tablesShowFramePointers reports whether the tables of C compilers use the frame pointer
// in functions that have one. The tables for arm64 use the stack pointer instead.
const tablesShowFramePointers = runtime.GOARCH == "amd64"

func TestFramePointersOfRealPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		path func(t *testing.T) string
		want bool
	}{
		"C without": {func(t *testing.T) string {
			return compile(t, "gcc", "-O2", "-fomit-frame-pointer", "testdata/calls.c", "-lm", "-lpthread")
		}, false},
		"C with": {func(t *testing.T) string {
			return compile(t, "gcc", "-O2", "-fno-omit-frame-pointer", "testdata/calls.c", "-lm", "-lpthread")
		}, tablesShowFramePointers},
		"C++ without": {func(t *testing.T) string {
			return compile(t, "g++", "-O2", "-fomit-frame-pointer", "testdata/exceptions.cc", "-lpthread")
		}, false},
		"C++ with": {func(t *testing.T) string {
			return compile(t, "g++", "-O2", "-fno-omit-frame-pointer", "testdata/exceptions.cc", "-lpthread")
		}, tablesShowFramePointers},
		"Go": {func(t *testing.T) string { return compile(t, "go", "../../../../test/testdata/spinner") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Open(c.path(t))
			require.NoError(t, err)
			defer f.Close()
			info, err := f.Stat()
			require.NoError(t, err)
			table, err := readTable(f, info.Size(), 1<<20, maxFrames)
			require.NoError(t, err)
			require.Equal(t, c.want, table.FramePointers(), "%+v", table.code)
		})
	}
}
