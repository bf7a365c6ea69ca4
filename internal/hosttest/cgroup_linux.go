// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Cgroup is a cgroup of the same path in every hierarchy that counts CPU time,
// as a container's is. It is removed when the test ends.
type Cgroup struct {
	// Path is the path below each hierarchy's root, with a leading slash.
	Path string
	dirs []string
	cpu  string // the directory that owns the quota; empty where none does
	v2   bool   // whether cpu is in the v2 tree
}

// NewCgroup makes one below the root cgroup, called name plus something that
// makes it unique. It skips the test where cgroups cannot be made.
func NewCgroup(t testing.TB, name string) *Cgroup {
	t.Helper()
	c := &Cgroup{Path: fmt.Sprintf("/%s-%d-%d", name, os.Getpid(), time.Now().UnixNano()%1e9)}
	t.Cleanup(func() { c.remove(t) })
	mounts, err := mounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		dir := filepath.Join(m.dir, c.Path)
		if err := os.Mkdir(dir, 0o755); err != nil {
			SkipUnprivileged(t, "cannot make a cgroup: %v", err)
		}
		c.dirs = append(c.dirs, dir)
		if m.controllers["cpu"] {
			c.cpu, c.v2 = dir, false
		}
		if m.unified && c.cpu == "" {
			if _, err := os.Stat(filepath.Join(dir, "cpu.max")); err == nil {
				c.cpu, c.v2 = dir, true
			}
		}
	}
	return c
}

// SetQuota limits the cgroup to cores CPUs; 0 or less removes the limit.
func (c *Cgroup) SetQuota(t testing.TB, cores float64) {
	t.Helper()
	if c.cpu == "" {
		SkipUnprivileged(t, "no hierarchy here owns the cpu controller, so %s cannot have a quota", c.Path)
	}
	const period = 100_000
	quota := strconv.Itoa(int(cores * period))
	file, value := "cpu.cfs_quota_us", quota
	if cores <= 0 {
		value = "-1"
	}
	if c.v2 {
		file, value = "cpu.max", fmt.Sprintf("%s %d", quota, period)
		if cores <= 0 {
			value = "max"
		}
	}
	if err := os.WriteFile(filepath.Join(c.cpu, file), []byte(value), 0); err != nil {
		SkipUnprivileged(t, "cannot set a CPU quota: %v", err)
	}
}

// Command returns a command that is inside the cgroup from its first
// instruction on. It and its children are killed when the test ends.
func (c *Cgroup) Command(name string, args ...string) *exec.Cmd {
	var script strings.Builder
	for _, dir := range c.dirs {
		fmt.Fprintf(&script, "echo $$ > '%s/cgroup.procs' && ", dir)
	}
	script.WriteString(`exec "$0" "$@"`)
	return exec.Command("/bin/sh", append([]string{"-c", script.String(), name}, args...)...)
}

// Remove kills what runs in the cgroup and removes it, as a container engine
// does; a test that does not call it need not worry.
func (c *Cgroup) Remove(t testing.TB) {
	t.Helper()
	c.remove(t)
}

func (c *Cgroup) remove(t testing.TB) {
	deadline := time.Now().Add(10 * time.Second)
	for _, dir := range c.dirs {
		for {
			c.kill()
			err := os.Remove(dir)
			if err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("cannot remove cgroup %s: %v", dir, err)
				break
			}
			time.Sleep(10 * time.Millisecond) // the kernel empties a cgroup a moment after its processes are reaped
		}
	}
	c.dirs = nil
}

func (c *Cgroup) kill() {
	for _, dir := range c.dirs {
		procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, f := range strings.Fields(string(procs)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

type mount struct {
	dir         string
	unified     bool
	controllers map[string]bool
}

// mounts lists the hierarchies that a container engine would use here: the v2
// tree, and the v1 ones that have to do with CPU.
func mounts() ([]mount, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []mount
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		fields := strings.Fields(scan.Text())
		if len(fields) < 4 {
			continue
		}
		switch fields[2] {
		case "cgroup2":
			out = append(out, mount{dir: fields[1], unified: true})
		case "cgroup":
			m := mount{dir: fields[1], controllers: map[string]bool{}}
			for _, o := range strings.Split(fields[3], ",") {
				m.controllers[o] = true
			}
			if m.controllers["cpu"] || m.controllers["cpuacct"] {
				out = append(out, m)
			}
		}
	}
	return out, scan.Err()
}
