// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// child starts a process and returns its pid. The process is
// killed at the end of the test.
func child(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// sleepPath returns the path of the file that contains the program sleep.
func sleepPath(t *testing.T) string {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	sleep, err = filepath.EvalSymlinks(sleep)
	require.NoError(t, err)
	return sleep
}

// hasEnviron waits until the environment of a process is readable. The kernel copies the
// environment shortly after the new program has become visible.
func hasEnviron(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return err == nil && len(b) > 0
	}, 30*time.Second, time.Millisecond)
}

func TestRealProcess(t *testing.T) {
	tree, err := cgroup.Open("/")
	if err != nil {
		hosttest.SkipUnprivileged(t, "no cgroups here: %v", err)
	}
	sleep := sleepPath(t)
	cmd := exec.Command(sleep, "600")
	cmd.Env = []string{"OTEL_SERVICE_NAME=nap"}
	began := time.Now()
	pid := child(t, cmd)
	hasEnviron(t, pid)

	table := NewTable(Config{Tree: tree})
	p := table.Lookup(pid, 0)
	a := attributes(t, p.Resource)
	require.Equal(t, "nap", a["service.name"])
	require.Equal(t, sleep, a["process.executable.path"])
	require.Equal(t, os.Getpid(), p.PPID)
	require.WithinDuration(t, began, p.StartTime, 5*time.Second)
	require.NotEmpty(t, p.space.mappings)
	require.Equal(t, filepath.Base(sleep), table.ThreadName(pid, pid))
	require.Equal(t, Stats{Processes: 1, Bytes: table.held()}, table.Stats())

	t.Run("is found by its executable", func(t *testing.T) {
		m, err := NewMatcher([]Target{{Executable: sleep}}, os.Getpid())
		require.NoError(t, err)
		found, missing, err := NewFinder(Config{Tree: tree, Wanted: m}, true).Find(context.Background())
		require.NoError(t, err)
		require.Empty(t, missing)
		require.Contains(t, found, Match{procfs.Process{PID: pid, Start: p.ticks}, 1})
	})
}

// TestRealProgramThatIsALink covers links to one file. The file can be several programs if
// the links have different names. For example, redis-check-rdb is a link to redis-server.
func TestRealProgramThatIsALink(t *testing.T) {
	sleep := sleepPath(t)
	for name, test := range map[string]struct{ link, argument, want string }{
		"a link":                              {link: "key-server", argument: "key-server", want: "key-server"},
		"with its path":                       {link: "key-server", argument: "/opt/bin/key-server", want: "key-server"},
		"with its state":                      {link: "key-server", argument: "/opt/bin/key-server 127.0.0.1:6379", want: "key-server"},
		"longer than the kernel's names":      {link: "key-server-with-a-long-name", argument: "key-server-with-a-long-name", want: "key-server-with-a-long-name"},
		"an argument that is not its name":    {link: "key-server", argument: "worker", want: filepath.Base(sleep)},
		"the file's own name, called another": {link: filepath.Base(sleep), argument: "key-server", want: filepath.Base(sleep)},
	} {
		t.Run(name, func(t *testing.T) {
			link := filepath.Join(t.TempDir(), test.link)
			require.NoError(t, os.Symlink(sleep, link))
			cmd := exec.Command(link, "600")
			cmd.Args[0] = test.argument
			pid := child(t, cmd)
			hasEnviron(t, pid)
			a := attributes(t, NewTable(Config{}).Lookup(pid, 0).Resource)
			require.Equal(t, test.want, a["process.executable.name"])
			require.Equal(t, sleep, a["process.executable.path"])
		})
	}
}

// TestRealProgramOfADescriptorHasTheNameOfItsFile executes a program through a descriptor.
// Container runtimes also do this when they execute themselves through /proc/self/exe. The
// kernel then uses the number of the descriptor as the program's name.
func TestRealProgramOfADescriptorHasTheNameOfItsFile(t *testing.T) {
	sleep := sleepPath(t)
	f, err := os.Open(sleep)
	require.NoError(t, err)
	defer f.Close()
	cmd := exec.Command("/proc/self/fd/3", "600")
	cmd.ExtraFiles = []*os.File{f}
	pid := child(t, cmd)
	hasEnviron(t, pid)
	table := NewTable(Config{})
	a := attributes(t, table.Lookup(pid, 0).Resource)
	require.Equal(t, "3", table.ThreadName(pid, pid))
	require.Equal(t, filepath.Base(sleep), a["process.executable.name"])
}

// TestRealProgramAtTheRootOfItsMountHasItsOwnName executes a file that is the root of its
// mount, as a container runtime may do. The program must be identified by the process
// name in the kernel, because the file has no other path.
func TestRealProgramAtTheRootOfItsMountHasItsOwnName(t *testing.T) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, sleepPath(t), unix.OPEN_TREE_CLONE)
	if err != nil {
		hosttest.SkipUnprivileged(t, "clone a mount: %v", err)
	}
	f := os.NewFile(uintptr(fd), "sleep")
	defer f.Close()
	cmd := exec.Command("/proc/self/fd/3", "600")
	cmd.ExtraFiles = []*os.File{f}
	pid := child(t, cmd)
	hasEnviron(t, pid)
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	require.NoError(t, err)
	require.Equal(t, "/", link)
	a := attributes(t, NewTable(Config{}).Lookup(pid, 0).Resource)
	require.Equal(t, "3", a["process.executable.name"])
	require.NotContains(t, a, "process.executable.path")
}

func TestRealMappingsHoldOwnCode(t *testing.T) {
	table := NewTable(Config{})
	pcs := make([]uintptr, 1)
	require.Equal(t, 1, runtime.Callers(1, pcs))
	s := table.Lookup(os.Getpid(), 0).Stack(&perfevent.Sample{User: []uint64{uint64(pcs[0])}}, false)
	own, err := os.Executable()
	require.NoError(t, err)
	require.Equal(t, own, s.Locations[0].Mapping.Path)
}

func TestRealMappingsKnowTheirRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		hosttest.SkipUnprivileged(t, "a mount namespace needs root")
	}
	table := NewTable(Config{})
	roots := func(attr *syscall.SysProcAttr) map[uint64]struct{} {
		cmd := exec.Command("sleep", "60")
		cmd.SysProcAttr = attr
		p := table.Lookup(child(t, cmd), 0)
		found := map[uint64]struct{}{}
		for _, m := range p.Mapped() {
			found[m.Root] = struct{}{}
		}
		require.Len(t, found, 1)
		require.NotContains(t, found, uint64(0))
		return found
	}
	own := roots(nil)
	require.Equal(t, own, roots(nil))
	require.NotEqual(t, own, roots(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}))
}

// TestShortLivedProcessesAreMatched runs processes that live for a few milliseconds, in
// their own cgroup. Their samples are read long after the processes have ended.
func TestShortLivedProcessesAreMatched(t *testing.T) {
	rights := perfevent.Probe()
	if rights.HostWide != nil {
		hosttest.SkipUnprivileged(t, "%v", rights.HostWide)
	}
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	group := hosttest.NewCgroup(t, "hotprofile-short")

	session, err := perfevent.Open(perfevent.Options{HostWide: true, Period: time.Millisecond})
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	_, err = session.AttachHost()
	require.NoError(t, err)
	table := NewTable(Config{Tree: tree})

	// The shell executes a program that runs for about 20 ms, and also
	// forks without executing a program.
	program := filepath.Join(t.TempDir(), "burn.sh")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\ni=0; while [ $i -lt 20000 ]; do i=$((i+1)); done\n"), 0o700))
	var faults []string
	// On a busy machine, samples may be read so late that the process is gone.
	for range 3 {
		if faults = shortLived(t, session, table, group, program); len(faults) == 0 {
			return
		}
		t.Log(faults)
	}
	require.Empty(t, faults)
}

// shortLived runs a shell that starts programs which live for a few milliseconds. It
// returns a description of the samples that were matched too rarely.
func shortLived(t *testing.T, session *perfevent.Session, table *Table, group *hosttest.Cgroup, program string) (faults []string) {
	t.Helper()
	cmd := group.Command("/bin/sh", "-c", `n=0; while [ $n -lt 60 ]; do n=$((n+1)); `+program+`; (i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done); done`)
	cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME=burner")
	shell := child(t, cmd)

	type seen struct{ samples, inGroup, named, mapped int }
	byPID := map[int]*seen{}
	family := map[int]bool{shell: true}
	var rec perfevent.Record
	end := time.Now().Add(2 * time.Minute)
	wait := 100 * time.Millisecond
	for over := false; !over; {
		require.True(t, time.Now().Before(end), "the shell did not come to an end")
		require.NoError(t, session.Wait(wait))
		for session.Read(&rec) {
			switch rec.Type {
			case perfevent.TypeFork:
				family[rec.Task.PID] = family[rec.Task.PID] || family[rec.Task.PPID]
				table.Fork(rec.Task.PID, rec.Task.PPID, rec.Task.TID, rec.Task.PTID)
			case perfevent.TypeExit:
				table.Exit(rec.Task.PID, rec.Task.TID)
				over = over || rec.Task.PID == shell
			case perfevent.TypeComm:
				if rec.Comm.Exec {
					table.Exec(rec.Comm.PID, rec.Comm.Name)
				} else {
					table.Comm(rec.Comm.PID, rec.Comm.TID, rec.Comm.Name)
				}
			case perfevent.TypeMmap:
				table.Mmap(rec.Mmap.PID, &rec.Mmap)
			case perfevent.TypeLost:
				table.AfterLoss()
			case perfevent.TypeSample:
				if rec.PID <= 0 || !family[rec.PID] || rec.PID == shell {
					continue
				}
				p := table.Lookup(rec.PID, rec.Sample.CgroupID)
				s := byPID[rec.PID]
				if s == nil {
					s = &seen{}
					byPID[rec.PID] = s
				}
				s.samples++
				if p.Cgroup == group.Path {
					s.inGroup++
				}
				if attributes(t, p.Resource)["service.name"] == "burner" {
					s.named++
				}
				if stack := p.Stack(&rec.Sample, false); stack != nil && len(rec.Sample.User) > 0 &&
					stack.Locations[len(rec.Sample.Kernel)].Mapping != nil {
					s.mapped++
				} else if stack != nil && len(rec.Sample.User) == 0 {
					s.mapped++ // the process was between two programs
				}
			}
		}
		wait = 100 * time.Millisecond
		if table.Settle() {
			wait = time.Millisecond
		}
	}
	var all seen
	for _, s := range byPID {
		all.samples += s.samples
		all.inGroup += s.inGroup
		all.named += s.named
		all.mapped += s.mapped
	}
	t.Logf("%d processes, %+v, table %+v, session %+v", len(byPID), all, table.Stats(), session.Stats())
	require.Greater(t, len(byPID), 30)
	require.Greater(t, all.samples, 100)
	for what, n := range map[string]int{"in their cgroup": all.inGroup, "named": all.named, "mapped": all.mapped} {
		if 100*n < 95*all.samples {
			faults = append(faults, fmt.Sprintf("%d of %d samples %s", n, all.samples, what))
		}
	}
	return faults
}

func TestRealSampleKnowsItsProcess(t *testing.T) {
	rights := perfevent.Probe()
	if rights.Own != nil {
		hosttest.SkipUnprivileged(t, "%v", rights.Own)
	}
	session, err := perfevent.Open(perfevent.Options{Period: time.Millisecond})
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	pid := child(t, exec.Command("/bin/sh", "-c", "while :; do :; done"))
	_, err = session.AttachProcess(pid)
	require.NoError(t, err)
	table := NewTable(Config{})
	var rec perfevent.Record
	stacks := map[*samples.Stack]int{}
	for end := time.Now().Add(30 * time.Second); len(stacks) == 0 || len(stacks) > 0 && sum(stacks) < 50; {
		require.True(t, time.Now().Before(end), "no samples")
		require.NoError(t, session.Wait(100*time.Millisecond))
		for session.Read(&rec) {
			if rec.Type == perfevent.TypeSample && rec.PID == pid {
				stacks[table.Lookup(rec.PID, rec.Sample.CgroupID).Stack(&rec.Sample, false)]++
			}
		}
	}
	require.Less(t, len(stacks), sum(stacks), "stacks that are seen again are interned: "+strconv.Itoa(len(stacks)))
}

func sum(m map[*samples.Stack]int) (n int) {
	for _, c := range m {
		n += c
	}
	return n
}
