// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cgroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hotprofile/hotprofile/internal/cgroup/openfile"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

func TestMain(m *testing.M) {
	switch os.Getenv("CGROUP_TEST_CHILD") {
	case "enter":
		os.Exit(enterNamespace())
	case "inside":
		os.Exit(insideNamespace())
	}
	goleak.VerifyTestMain(m)
}

func openHost(t testing.TB) *Tree {
	t.Helper()
	tree, err := Open("/")
	if err != nil {
		hosttest.SkipUnprivileged(t, "no cgroups here: %v", err)
	}
	return tree
}

// start runs a shell command in a cgroup. The command enters one hierarchy after the
// other, so start waits until the command is in all hierarchies.
func start(t testing.TB, tree *Tree, c *hosttest.Cgroup, script string) *exec.Cmd {
	t.Helper()
	cmd := c.Command("/bin/sh", "-c", script)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		p, err := tree.PathsOf(cmd.Process.Pid)
		for _, h := range []Hierarchy{V2Tree, CPU, CPUAcct} {
			if tree.trees[h] != nil && p[h] != c.Path {
				return false
			}
		}
		return err == nil
	}, 30*time.Second, time.Millisecond)
	return cmd
}

func TestHostFindsProcessGroupAndContainer(t *testing.T) {
	tree := openHost(t)
	t.Logf("%s, v2 at %q, cpu at %q", tree.Mode(), tree.Mount(V2Tree), tree.Mount(CPU))
	c := hosttest.NewCgroup(t, "hotprofile-test")
	cmd := start(t, tree, c, "sleep 60")
	u := groupOfPID(t, tree, cmd.Process.Pid)
	require.Equal(t, c.Path, u.ID)

	groups, err := tree.NewScanner().Groups()
	require.NoError(t, err)
	require.Contains(t, groups, u)

	pids, err := tree.Processes(u)
	require.NoError(t, err)
	require.True(t, pids[cmd.Process.Pid])

	dir, err := tree.PerfDir(u)
	require.NoError(t, err)
	require.DirExists(t, dir)
	require.Empty(t, tree.Limited())
}

func TestHostCPUTimeGrowsWithABusyProcess(t *testing.T) {
	tree := openHost(t)
	c := hosttest.NewCgroup(t, "hotprofile-busy")
	idle := hosttest.NewCgroup(t, "hotprofile-idle")
	r := tree.NewReader(openfile.NewSet(16))
	defer r.Close()
	busyGroup := groupOfPID(t, tree, start(t, tree, c, "while :; do :; done").Process.Pid)
	idleGroup := groupOfPID(t, tree, start(t, tree, idle, "sleep 60").Process.Pid)
	busyTime, err := r.OpenCPUTime(busyGroup)
	require.NoError(t, err)
	defer busyTime.Close()
	idleTime, err := r.OpenCPUTime(idleGroup)
	require.NoError(t, err)
	defer idleTime.Close()
	require.Eventually(t, func() bool {
		used, replaced, err := busyTime.Read(time.Now())
		require.NoError(t, err)
		require.False(t, replaced)
		return used > 200*time.Millisecond
	}, 30*time.Second, 10*time.Millisecond)
	used, _, err := idleTime.Read(time.Now())
	require.NoError(t, err)
	require.Less(t, used, 150*time.Millisecond)
}

func TestHostQuotaChangesWhileRunning(t *testing.T) {
	tree := openHost(t)
	c := hosttest.NewCgroup(t, "hotprofile-quota")
	start(t, tree, c, "sleep 60")
	r := tree.NewReader(openfile.NewSet(16))
	defer r.Close()
	h, ok := tree.owner(CPU)
	require.True(t, ok)
	var p Paths
	p[h] = c.Path
	capacity, err := r.OpenCPUCapacity(p)
	require.NoError(t, err)
	defer capacity.Close()
	now := time.Now()
	read := func() Capacity {
		now = now.Add(time.Second)
		got, err := capacity.Read(now)
		require.NoError(t, err)
		return got
	}
	none := read()
	require.Equal(t, ByOnline, none.By)
	c.SetQuota(t, 0.25)
	require.Equal(t, Capacity{0.25, ByQuota, c.Path}, read())
	c.SetQuota(t, 0.75)
	require.Equal(t, Capacity{0.75, ByQuota, c.Path}, read())
	c.SetQuota(t, -1)
	require.Equal(t, none, read())
}

func TestHostAncestorsQuota(t *testing.T) {
	tree := openHost(t)
	c := hosttest.NewCgroup(t, "hotprofile-parent")
	h, ok := tree.owner(CPU)
	require.True(t, ok)
	child := filepath.Join(c.Path, "child")
	require.NoError(t, os.Mkdir(tree.dir(h, child), 0o755))
	t.Cleanup(func() { _ = os.Remove(tree.dir(h, child)) })
	c.SetQuota(t, 0.5)
	r := tree.NewReader(openfile.NewSet(16))
	defer r.Close()
	var p Paths
	p[h] = child
	capacity, err := r.OpenCPUCapacity(p)
	require.NoError(t, err)
	defer capacity.Close()
	got, err := capacity.Read(time.Now())
	require.NoError(t, err)
	require.Equal(t, Capacity{0.5, ByQuota, c.Path}, got)
}

func TestHostCgroupRemovedAndMadeAnew(t *testing.T) {
	tree := openHost(t)
	r := tree.NewReader(openfile.NewSet(16))
	defer r.Close()
	for _, h := range []Hierarchy{V2Tree, CPUAcct} {
		t.Run(h.String(), func(t *testing.T) {
			if tree.trees[h] == nil {
				t.Skip("not mounted here")
			}
			path := fmt.Sprintf("/hotprofile-again-%d", os.Getpid())
			dir := tree.dir(h, path)
			if err := os.Mkdir(dir, 0o755); err != nil {
				hosttest.SkipUnprivileged(t, "cannot make a cgroup: %v", err)
			}
			t.Cleanup(func() { _ = os.Remove(dir) })
			var p Paths
			p[h] = path
			u := Group{ID: path, Cgroup: path, Paths: p, by: h}
			used, err := r.OpenCPUTime(u)
			require.NoError(t, err)
			defer used.Close()
			require.NoError(t, os.Remove(dir))
			_, _, err = used.Read(time.Now())
			require.Equal(t, ErrGone, err)
			_, err = r.OpenCPUTime(u)
			require.Error(t, err)

			require.NoError(t, os.Mkdir(dir, 0o755))
			_, replaced, err := used.Read(time.Now())
			require.NoError(t, err)
			require.True(t, replaced)
			require.NoError(t, os.Remove(dir))
			require.NoError(t, os.Mkdir(dir, 0o755)) // between two readings
			_, replaced, err = used.Read(time.Now())
			require.NoError(t, err)
			require.True(t, replaced)
		})
	}
}

// outcome is the result of a process in a private cgroup namespace.
type outcome struct {
	Mode     string
	Limited  string
	Own      Paths
	Other    Paths
	OtherErr string
	Err      string
}

func TestHostPrivateCgroupNamespace(t *testing.T) {
	tree := openHost(t)
	other := hosttest.NewCgroup(t, "hotprofile-other")
	otherPID := start(t, tree, other, "sleep 60").Process.Pid
	for name, mount := range map[string]string{
		"the host's tree, own cgroup found by pid":   "",
		"the host's tree, own cgroup found by inode": "also",
		"the host's root mounted elsewhere":          "bound",
		"only the own part of the tree":              "only",
	} {
		t.Run(name, func(t *testing.T) {
			if mount != "" && tree.Mount(V2Tree) == "" {
				t.Skip("no v2 tree to mount")
			}
			c := hosttest.NewCgroup(t, "hotprofile-private")
			cmd := c.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "CGROUP_TEST_CHILD=enter", "CGROUP_TEST_PID="+strconv.Itoa(otherPID), "CGROUP_TEST_MOUNT="+mount)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			require.NoError(t, err, "%s", out)
			var got outcome
			require.NoError(t, json.Unmarshal(out, &got), "%s", out)
			require.Empty(t, got.Err)
			if mount == "only" {
				require.Equal(t, "v2", got.Mode)
				require.Contains(t, got.Limited, "root_path")
				require.Equal(t, "/", got.Own[V2Tree])
				require.Contains(t, got.OtherErr, "outside")
				return
			}
			require.Empty(t, got.OtherErr)
			require.Empty(t, got.Limited)
			require.Equal(t, string(tree.Mode()), got.Mode)
			require.Equal(t, c.Path, tree.GroupOf(got.Own).Cgroup)
			require.Equal(t, other.Path, tree.GroupOf(got.Other).Cgroup)
		})
	}
}

// enterNamespace restarts this program in its own mount namespace and its own cgroup
// namespace. The root of the cgroup namespace is the current cgroup.
func enterNamespace() int {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "CGROUP_TEST_CHILD=inside")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWCGROUP | syscall.CLONE_NEWNS}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func insideNamespace() int {
	var got outcome
	if err := look(&got); err != nil {
		got.Err = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(got)
	return 0
}

func look(got *outcome) error {
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return err
	}
	root := "/"
	switch os.Getenv("CGROUP_TEST_MOUNT") {
	case "also":
		dir, err := os.MkdirTemp("", "cgroup")
		if err != nil {
			return err
		}
		defer os.Remove(dir)
		if err := syscall.Mount("cgroup2", dir, "cgroup2", 0, ""); err != nil {
			return err
		}
		defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	case "bound":
		dir, err := os.MkdirTemp("", "host")
		if err != nil {
			return err
		}
		defer os.Remove(dir)
		if err := syscall.Mount("/", dir, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
			return err
		}
		defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
		root = dir
	case "only":
		// This directory looks like a root directory in which only the container's own
		// part of the tree is mounted.
		dir, err := os.MkdirTemp("", "root")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		own := filepath.Join(dir, "sys/fs/cgroup")
		if err := errors.Join(os.MkdirAll(own, 0o755), os.Mkdir(filepath.Join(dir, "proc"), 0o755)); err != nil {
			return err
		}
		if err := syscall.Mount("cgroup2", own, "cgroup2", 0, ""); err != nil {
			return err
		}
		defer func() { _ = syscall.Unmount(own, syscall.MNT_DETACH) }()
		if err := syscall.Mount("proc", filepath.Join(dir, "proc"), "proc", 0, ""); err != nil {
			return err
		}
		defer func() { _ = syscall.Unmount(filepath.Join(dir, "proc"), syscall.MNT_DETACH) }()
		root = dir
	}
	tree, err := Open(root)
	if err != nil {
		return err
	}
	if dir := tree.Mount(V2Tree); !Under(dir, root) {
		return fmt.Errorf("%s is not below %s", dir, root)
	}
	got.Mode, got.Limited = string(tree.Mode()), tree.Limited()
	if got.Own, err = tree.PathsOf(os.Getpid()); err != nil {
		return err
	}
	pid, err := strconv.Atoi(os.Getenv("CGROUP_TEST_PID"))
	if err != nil {
		return err
	}
	if got.Other, err = tree.PathsOf(pid); err != nil {
		got.OtherErr = err.Error()
	}
	return nil
}

func TestReadingAllocatesNothing(t *testing.T) {
	tree := openHost(t)
	c := hosttest.NewCgroup(t, "hotprofile-allocs")
	u := groupOfPID(t, tree, start(t, tree, c, "sleep 60").Process.Pid)
	r := tree.NewReader(openfile.NewSet(16))
	defer r.Close()
	used, err := r.OpenCPUTime(u)
	require.NoError(t, err)
	defer used.Close()
	capacity, err := r.OpenCPUCapacity(u.Paths)
	require.NoError(t, err)
	defer capacity.Close()
	now := time.Now()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		now = now.Add(time.Second)
		if _, _, err := used.Read(time.Now()); err != nil {
			t.Error(err)
		}
		if _, err := capacity.Read(now); err != nil {
			t.Error(err)
		}
	}))
}

// BenchmarkReading compares ways to read a cgroup's CPU time. One of them uses containerd's
// library, which reads all statistics of the cgroup.
func BenchmarkReading(b *testing.B) {
	tree := openHost(b)
	c := hosttest.NewCgroup(b, "hotprofile-bench")
	u := groupOfPID(b, tree, start(b, tree, c, "sleep 600").Process.Pid)
	b.Run("CPUTime", func(b *testing.B) {
		r := tree.NewReader(openfile.NewSet(16))
		defer r.Close()
		used, err := r.OpenCPUTime(u)
		require.NoError(b, err)
		defer used.Close()
		b.Logf("%s", used.From())
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := used.Read(time.Now()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("CPUTimeOpenedEachTime", func(b *testing.B) {
		r := tree.NewReader(openfile.NewSet(0))
		defer r.Close()
		used, err := r.OpenCPUTime(u)
		require.NoError(b, err)
		defer used.Close()
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := used.Read(time.Now()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("CPUAcct", func(b *testing.B) {
		if tree.trees[CPUAcct] == nil {
			b.Skip("not mounted here")
		}
		r, path := tree.NewReader(openfile.NewSet(16)), u.Paths[CPUAcct]
		used := &CPUTime{r: r, stat: acquire(r, r.stats, CPUAcct, path, "cpuacct.usage")}
		defer used.Close()
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := used.Read(time.Now()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Capacity", func(b *testing.B) {
		r := tree.NewReader(openfile.NewSet(16))
		defer r.Close()
		capacity, err := r.OpenCPUCapacity(u.Paths)
		require.NoError(b, err)
		defer capacity.Close()
		now := time.Now()
		b.ReportAllocs()
		for b.Loop() {
			now = now.Add(time.Second)
			if _, err := capacity.Read(now); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("pread", func(b *testing.B) {
		f, err := os.Open(filepath.Join(tree.dir(V2Tree, u.Paths[V2Tree]), "cpu.stat"))
		require.NoError(b, err)
		defer f.Close()
		fd, buf := int(f.Fd()), make([]byte, 4096)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := syscall.Pread(fd, buf, 0); err != nil && !errors.Is(err, io.EOF) {
				b.Fatal(err)
			}
		}
	})
	b.Run("containerd", func(b *testing.B) {
		b.ReportAllocs()
		if cgroups.Mode() == cgroups.Unified {
			m, err := cgroup2.Load(u.Cgroup)
			require.NoError(b, err)
			for b.Loop() {
				if _, err := m.Stat(); err != nil {
					b.Fatal(err)
				}
			}
			return
		}
		m, err := cgroup1.Load(cgroup1.StaticPath(u.Paths[CPU]))
		require.NoError(b, err)
		for b.Loop() {
			if _, err := m.Stat(cgroup1.IgnoreNotExist); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkGroups scans a host with 1,000 containers of one process each. It measures the
// first scan and later scans.
func BenchmarkGroups(b *testing.B) {
	tree := openHost(b)
	for i := range 1000 {
		c := hosttest.NewCgroupCalled(b, fmt.Sprintf("docker-%064x.scope", i))
		require.NoError(b, c.Command("sleep", "120").Start())
	}
	// The benchmark reports the CPU time of a scan, because the CPU time does not depend
	// on other work on the machine.
	cpu := func(b *testing.B) time.Duration {
		var u syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	scan := func(b *testing.B, s *Scanner) {
		found, err := s.Groups()
		require.NoError(b, err)
		require.GreaterOrEqual(b, len(found), 990)
	}
	require.Eventually(b, func() bool {
		found, err := tree.NewScanner().Groups()
		return err == nil && len(found) >= 1000
	}, 30*time.Second, 100*time.Millisecond)
	b.Run("First", func(b *testing.B) {
		b.ReportAllocs()
		before := cpu(b)
		for b.Loop() {
			scan(b, tree.NewScanner())
		}
		b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
	})
	b.Run("Known", func(b *testing.B) {
		s := tree.NewScanner()
		scan(b, s)
		b.ReportAllocs()
		before := cpu(b)
		for b.Loop() {
			scan(b, s)
		}
		b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
	})
}
