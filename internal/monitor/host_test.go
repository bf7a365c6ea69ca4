// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package monitor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const busy = "while :; do :; done"

func openHost(t testing.TB, maxOpen int) *Source {
	t.Helper()
	tree, err := cgroup.Open("/")
	if err != nil {
		hosttest.SkipUnprivileged(t, "no cgroups here: %v", err)
	}
	s, err := NewSource(tree, Options{MaxOpenFiles: maxOpen})
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Close()
		require.Zero(t, s.files.Kept(), "every file is closed")
	})
	return s
}

func run(t testing.TB, cmd *exec.Cmd) int {
	t.Helper()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { end(cmd) })
	return cmd.Process.Pid
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func shell(script string) *exec.Cmd { return exec.Command("/bin/sh", "-c", script) }

// until reads the monitors every 5 ms until a condition is true.
func until(t testing.TB, w *Watcher, out []Result, ok func() bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		w.Read(time.Now(), out)
		return ok()
	}, 30*time.Second, 5*time.Millisecond)
}

// inCgroup starts a shell script in a cgroup. It returns the unit after the script has
// entered every hierarchy.
func inCgroup(t testing.TB, s *Source, c *hosttest.Cgroup, script string) cgroup.Group {
	t.Helper()
	u, _ := inCgroupWithPID(t, s, c, script)
	return u
}

func inCgroupWithPID(t testing.TB, s *Source, c *hosttest.Cgroup, script string) (u cgroup.Group, pid int) {
	t.Helper()
	pid = run(t, c.Command("/bin/sh", "-c", script))
	require.Eventually(t, func() bool {
		p, err := s.tree.PathsOf(pid)
		for _, h := range []cgroup.Hierarchy{cgroup.V2Tree, cgroup.CPU, cgroup.CPUAcct} {
			if s.tree.Mount(h) != "" && p[h] != c.Path {
				return false
			}
		}
		u = s.tree.GroupOf(p)
		return err == nil
	}, 30*time.Second, time.Millisecond)
	return u, pid
}

func TestHostUnitWithAQuota(t *testing.T) {
	s := openHost(t, 64)
	c := hosttest.NewCgroup(t, "hotprofile-monitor")
	c.SetQuota(t, 0.5)
	w, err := s.Watch(inCgroup(t, s, c, busy), procfs.Process{}, []string{CPUUtilization, CPUUsage})
	require.NoError(t, err)
	defer w.Close()
	var out [2]Result
	until(t, w, out[:], func() bool {
		require.NoError(t, out[0].Err)
		return out[0].Reading.Num > 0.2
	})
	require.Equal(t, cgroup.Capacity{Cores: 0.5, By: cgroup.ByQuota, Path: c.Path}, w.Capacity())
	usage, utilization := out[1].Reading, out[0].Reading
	require.Equal(t, usage.Num, utilization.Num)
	require.InDelta(t, usage.Den*0.5, utilization.Den, 1e-6)
	c.SetQuota(t, -1)
	w.Read(time.Now().Add(time.Second), out[:])
	require.Equal(t, cgroup.ByOnline, w.Capacity().By)

	c.Remove(t)
	until(t, w, out[:], func() bool { return errors.Is(out[0].Err, ErrGone) })
}

func processNow(t *testing.T, pid int) procfs.Process {
	p, err := procfs.At("").Process(pid)
	require.NoError(t, err)
	return p
}

func TestHostProcess(t *testing.T) {
	for name, keep := range map[string]int{"file kept open": 64, "file opened each time": 0} {
		t.Run(name, func(t *testing.T) {
			s := openHost(t, keep)
			cmd := shell(busy)
			p := processNow(t, run(t, cmd))
			w, err := s.Watch(cgroup.Group{}, p, []string{CPUUtilization, CPUUsage})
			require.NoError(t, err)
			defer w.Close()
			var out [2]Result
			until(t, w, out[:], func() bool {
				require.NoError(t, out[0].Err)
				return out[1].Reading.Num > 0.05
			})
			require.NotZero(t, w.Capacity().Cores)
			end(cmd)
			w.Read(time.Now(), out[:])
			require.Equal(t, ErrGone, out[0].Err)
			_, err = s.Watch(cgroup.Group{}, p, []string{CPUUsage})
			require.Equal(t, ErrGone, err)
		})
	}
}

func TestHostProcessOfAnotherStartIsGone(t *testing.T) {
	s := openHost(t, 64)
	p := processNow(t, os.Getpid())
	p.Start--
	_, err := s.Watch(cgroup.Group{}, p, []string{CPUUsage})
	require.Equal(t, ErrGone, err)
}

func TestHostReusedPIDIsNotReadAsTheOldProcess(t *testing.T) {
	for name, keep := range map[string]int{"file kept open": 64, "file opened each time": 0} {
		t.Run(name, func(t *testing.T) {
			s := openHost(t, keep)
			var out [1]Result
			for range 100 {
				old := shell("exec sleep 60")
				pid := run(t, old)
				w, err := s.Watch(cgroup.Group{}, procfs.Process{PID: pid}, []string{CPUUsage})
				require.NoError(t, err)
				w.Read(time.Now(), out[:])
				require.NoError(t, out[0].Err)
				// Wait until the clock has advanced by more than one tick of 10 ms, so that the next
				// process starts in a later tick than the first process.
				since := s.clocks.ticks()
				require.Eventually(t, func() bool { return s.clocks.ticks() > since+1 }, 30*time.Second, time.Millisecond)
				end(old)
				if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
					w.Close()
					hosttest.SkipUnprivileged(t, "cannot choose the next pid: %v", err)
				}
				next := shell("exec sleep 60")
				reused := run(t, next) == pid
				w.Read(time.Now(), out[:])
				w.Close()
				require.Equal(t, ErrGone, out[0].Err)
				end(next)
				if reused {
					return
				}
			}
			t.Skip("other programs took the pid each time")
		})
	}
}

func TestHostProcessThatMovesGetsItsNewCapacity(t *testing.T) {
	s := openHost(t, 64)
	cmd := shell("exec sleep 60")
	pid := run(t, cmd)
	w, err := s.Watch(cgroup.Group{}, procfs.Process{PID: pid}, []string{CPUUtilization})
	require.NoError(t, err)
	defer w.Close()
	var out [1]Result
	now := time.Now()
	w.Read(now, out[:])
	require.NoError(t, out[0].Err)
	before := w.Capacity()

	c := hosttest.NewCgroup(t, "hotprofile-moved")
	c.SetQuota(t, 0.25)
	for _, h := range []cgroup.Hierarchy{cgroup.V2Tree, cgroup.CPU} {
		if dir := s.tree.Mount(h); dir != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, c.Path, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
		}
	}
	w.Read(now.Add(time.Second), out[:])
	require.NoError(t, out[0].Err)
	require.NotEqual(t, before, w.Capacity())
	require.Equal(t, 0.25, w.Capacity().Cores)
}

// TestHostUnitWithoutACounter reads a unit that has no CPU counter. Only systemd's v1
// hierarchy separates this unit from other units, as on hosts without CPU accounting.
func TestHostUnitWithoutACounter(t *testing.T) {
	s := openHost(t, 64)
	if s.tree.Mount(cgroup.Systemd) == "" {
		t.Skip("no name=systemd hierarchy here")
	}
	path := fmt.Sprintf("/hotprofile-clocks-%d", os.Getpid())
	dir := filepath.Join(s.tree.Mount(cgroup.Systemd), path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		hosttest.SkipUnprivileged(t, "cannot make a cgroup: %v", err)
	}
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return os.Remove(dir) == nil }, 30*time.Second, 10*time.Millisecond)
	})
	enter := "echo $$ > '" + dir + "/cgroup.procs' && "
	idle := run(t, shell(enter+"exec sleep 60"))
	var u cgroup.Group
	require.Eventually(t, func() bool {
		p, err := s.tree.PathsOf(idle)
		u = s.tree.GroupOf(p)
		return err == nil && u.ID != ""
	}, 30*time.Second, time.Millisecond)
	if u.Cgroup != path {
		t.Skipf("this test's own process is in %s, so its children are too", u.Cgroup)
	}

	// The CPU time that a process used before it entered the cgroup does not count.
	mover := shell(busy)
	moved := run(t, mover)
	require.Eventually(t, func() bool {
		used, err := s.clocks.process(moved)
		return err == nil && used > 300*time.Millisecond
	}, 30*time.Second, time.Millisecond)

	w, err := s.Watch(u, procfs.Process{}, []string{CPUUsage, CPUUtilization})
	require.NoError(t, err)
	defer w.Close()
	var out [2]Result
	w.Read(time.Now(), out[:])
	require.NoError(t, out[0].Err)
	require.NoError(t, mover.Process.Signal(syscall.SIGSTOP))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(moved)), 0))
	w.Read(time.Now(), out[:])
	require.NoError(t, out[0].Err)
	require.Less(t, out[0].Reading.Num, 0.2)
	require.NoError(t, mover.Process.Signal(syscall.SIGCONT))
	until(t, w, out[:], func() bool { return out[0].Reading.Num > 0.2 })

	// The CPU time of a process remains counted after the process has ended.
	end(mover)
	before := out[0].Reading.Num
	for range 2 * recheckEvery {
		w.Read(time.Now(), out[:])
		require.NoError(t, out[0].Err)
		require.False(t, out[0].Restarted)
		require.GreaterOrEqual(t, out[0].Reading.Num, before)
	}

	// A process that starts in the cgroup counts from its start.
	started := shell(enter + busy)
	child := run(t, started)
	until(t, w, out[:], func() bool { return out[0].Reading.Num > before+0.2 })
	total, err := s.clocks.process(child)
	require.NoError(t, err)
	w.Read(time.Now(), out[:])
	require.GreaterOrEqual(t, out[0].Reading.Num-before, total.Seconds()-0.05, "except for the CPU time before it came here")
	end(started)
}

func TestReadDoesNotAllocate(t *testing.T) {
	s := openHost(t, 64)
	c := hosttest.NewCgroup(t, "hotprofile-allocs")
	w, err := s.Watch(inCgroup(t, s, c, "sleep 60"), procfs.Process{}, []string{CPUUtilization, CPUUsage})
	require.NoError(t, err)
	defer w.Close()
	p, err := s.Watch(cgroup.Group{}, procfs.Process{PID: os.Getpid()}, []string{CPUUtilization, CPUUsage})
	require.NoError(t, err)
	defer p.Close()
	var out [2]Result
	now := time.Now()
	for _, w := range []*Watcher{w, p} {
		w.Read(now, out[:])
		require.Zero(t, testing.AllocsPerRun(recheckEvery-4, func() {
			now = now.Add(time.Second)
			w.Read(now, out[:])
			if out[0].Err != nil {
				t.Error(out[0].Err)
			}
		}))
	}
}

// BenchmarkRead reads two monitors of one unit, with and without keeping files open.
func BenchmarkRead(b *testing.B) {
	for _, keep := range []int{64, 0} {
		name := "Kept"
		if keep == 0 {
			name = "OpenedEachTime"
		}
		b.Run("Unit"+name, func(b *testing.B) {
			s := openHost(b, keep)
			c := hosttest.NewCgroup(b, "hotprofile-bench")
			w, err := s.Watch(inCgroup(b, s, c, "sleep 600"), procfs.Process{}, []string{CPUUtilization, CPUUsage})
			require.NoError(b, err)
			defer w.Close()
			benchmark(b, w)
		})
		b.Run("Process"+name, func(b *testing.B) {
			s := openHost(b, keep)
			w, err := s.Watch(cgroup.Group{}, procfs.Process{PID: os.Getpid()}, []string{CPUUtilization, CPUUsage})
			require.NoError(b, err)
			defer w.Close()
			benchmark(b, w)
		})
	}
}

func benchmark(b *testing.B, w *Watcher) {
	var out [2]Result
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		w.Read(now, out[:])
		if out[0].Err != nil {
			b.Fatal(out[0].Err)
		}
	}
}
