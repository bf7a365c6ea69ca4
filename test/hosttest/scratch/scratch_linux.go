// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package scratch

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
	"time"
)

// Cgroup is a cgroup with the same path in several hierarchies.
type Cgroup struct {
	// Path is the path below the root of each hierarchy, with a leading slash.
	Path string
	dirs []string
	cpu  string // directory with the quota; empty if there is none
	v2   bool   // whether cpu is in the v2 tree

	memory  string // directory with the memory limit; empty if there is none
	acct    string // directory with the CPU time in v1; empty if there is none
	unified string // directory in the v2 tree; empty if there is none
}

// Make creates the cgroup called name below the root cgroup. If Make fails, it
// removes all parts of the cgroup.
func Make(name string) (*Cgroup, error) {
	mounts, err := mounts()
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	if len(mounts) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted")
	}
	c := &Cgroup{Path: "/" + name}
	for _, m := range mounts {
		if m.unified {
			enable(m.dir)
		}
		dir := filepath.Join(m.dir, c.Path)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, errors.Join(fmt.Errorf("make a cgroup: %w", err), c.Remove())
		}
		c.dirs = append(c.dirs, dir)
		if m.controllers["cpu"] {
			c.cpu, c.v2 = dir, false
		}
		if m.controllers["memory"] {
			c.memory = dir
		}
		if m.controllers["cpuacct"] {
			c.acct = dir
		}
		if m.unified {
			c.unified = dir
			if _, err := os.Stat(filepath.Join(dir, "memory.max")); err == nil && c.memory == "" {
				c.memory = dir
			}
		}
		if m.unified && c.cpu == "" {
			if _, err := os.Stat(filepath.Join(dir, "cpu.max")); err == nil {
				c.cpu, c.v2 = dir, true
			}
		}
	}
	return c, nil
}

// enable enables the controllers that monitors read, for the children of the v2
// tree's root. Container engines do the same, because systemd enables the cpu
// controller only if a unit needs it. A missing controller, for example on a hybrid
// host, causes an error only when it is used.
func enable(root string) {
	for _, controller := range []string{"cpu", "memory", "pids"} {
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+controller), 0)
	}
}

// SetQuota limits the cgroup to cores CPUs. If cores is 0 or
// less, SetQuota removes the limit.
func (c *Cgroup) SetQuota(cores float64) error {
	if c.cpu == "" {
		return fmt.Errorf("no hierarchy here owns the cpu controller, so %s cannot have a quota", c.Path)
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
		return fmt.Errorf("set the CPU quota of %s: %w", c.Path, err)
	}
	return nil
}

// RaiseWeight sets the CPU weight to the given multiple of the default
// weight. Other programs on a busy machine then take little CPU time from the
// cgroup. The quota does not change.
func (c *Cgroup) RaiseWeight(times int) error {
	if c.cpu == "" {
		return fmt.Errorf("no hierarchy here owns the cpu controller, so %s cannot have a weight", c.Path)
	}
	file, usual := "cpu.shares", 1024
	if c.v2 {
		file, usual = "cpu.weight", 100
	}
	if err := os.WriteFile(filepath.Join(c.cpu, file), []byte(strconv.Itoa(times*usual)), 0); err != nil {
		return fmt.Errorf("set the CPU weight of %s: %w", c.Path, err)
	}
	return nil
}

// CPUTime returns the CPU time that the cgroup's processes have
// used, as the kernel reports it.
func (c *Cgroup) CPUTime() (time.Duration, error) {
	dir, name, unit := c.acct, "cpuacct.usage", time.Nanosecond
	if dir == "" {
		dir, name, unit = c.unified, "cpu.stat", time.Microsecond
	}
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of %s: %w", c.Path, err)
	}
	used, _, _ := strings.Cut(strings.TrimPrefix(string(content), "usage_usec "), "\n")
	n, err := strconv.ParseInt(used, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of %s: %s: %w", c.Path, name, err)
	}
	return time.Duration(n) * unit, nil
}

// Command returns a command that starts inside the cgroup.
func (c *Cgroup) Command(name string, args ...string) *exec.Cmd {
	var script strings.Builder
	for _, dir := range c.dirs {
		fmt.Fprintf(&script, "echo $$ > '%s/cgroup.procs' && ", dir)
	}
	script.WriteString(`exec "$0" "$@"`)
	return exec.Command("/bin/sh", append([]string{"-c", script.String(), name}, args...)...)
}

// Delegate gives the cgroup to a user, who can then create cgroups below it.
func (c *Cgroup) Delegate(uid int) error {
	for _, dir := range c.dirs {
		if err := os.Chown(dir, uid, uid); err != nil {
			return fmt.Errorf("delegate %s: %w", c.Path, err)
		}
	}
	return nil
}

// Add moves a process with all its threads into the cgroup.
func (c *Cgroup) Add(pid int) error {
	for _, dir := range c.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("move process %d into %s: %w", pid, c.Path, err)
		}
	}
	return nil
}

// Remove kills the cgroup's processes and removes the cgroup, like a container engine. On
// a very busy machine, killed processes take a while to end. If Remove fails for this
// reason, it can be called again.
func (c *Cgroup) Remove() error {
	var errs []error
	var left []string
	deadline := time.Now().Add(time.Minute)
	for _, dir := range c.dirs {
		for {
			c.kill()
			err := os.Remove(dir)
			if err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			if time.Now().After(deadline) {
				errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
				left = append(left, dir)
				break
			}
			time.Sleep(10 * time.Millisecond) // a cgroup becomes empty shortly after its processes are reaped
		}
	}
	c.dirs = left
	return errors.Join(errs...)
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

// mounts returns the hierarchies that a container engine would use on this host. These
// are the v2 tree and the v1 hierarchies that monitors read.
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
			for _, read := range []string{"cpu", "cpuacct", "memory", "pids"} {
				if m.controllers[read] {
					out = append(out, m)
					break
				}
			}
		}
	}
	return out, scan.Err()
}
