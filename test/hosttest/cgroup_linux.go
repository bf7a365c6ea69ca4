// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

// Cgroup is a test's own cgroup. It is removed with its processes when the test
// ends.
type Cgroup struct {
	// Path is the path below each hierarchy's root, with a leading slash.
	Path string
	made *scratch.Cgroup
}

// NewCgroup makes a cgroup below the root cgroup, with a suffix that makes its name
// unique. It skips the test if cgroups cannot be made.
func NewCgroup(t testing.TB, name string) *Cgroup {
	t.Helper()
	return NewCgroupCalled(t, fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixNano()%1e9))
}

// NewCgroupCalled makes a cgroup of exactly that name, for tests that make one
// again.
func NewCgroupCalled(t testing.TB, name string) *Cgroup {
	t.Helper()
	made, err := scratch.Make(name)
	if err != nil {
		SkipUnprivileged(t, "%v", err)
	}
	c := &Cgroup{Path: made.Path, made: made}
	t.Cleanup(func() { c.Remove(t) })
	return c
}

// NewContainer makes a cgroup with the name that Docker gives to the cgroup of a container.
// The cgroup is below another new cgroup. If user is not 0 (root), both are delegated to
// the user.
func NewContainer(t testing.TB, id string, user int) *Cgroup {
	t.Helper()
	parent := NewCgroup(t, "hotprofile-container")
	if user != 0 {
		parent.Delegate(t, user)
	}
	c := NewCgroupCalled(t, strings.TrimPrefix(parent.Path, "/")+"/docker-"+id+".scope")
	if user != 0 {
		c.Delegate(t, user)
	}
	return c
}

// SetQuota limits the cgroup to cores CPUs; 0 or less removes the limit. It skips
// the test if that is not possible.
func (c *Cgroup) SetQuota(t testing.TB, cores float64) {
	t.Helper()
	if err := c.made.SetQuota(cores); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// LimitMemory limits the memory of the cgroup, including the kernel's cache of its
// files. It skips the test if that is not possible.
func (c *Cgroup) LimitMemory(t testing.TB, bytes int64) {
	t.Helper()
	if err := c.made.LimitMemory(bytes); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// RaiseWeight gives the cgroup a high weight, so that it gets the CPU that its quota
// allows on a busy machine. It skips the test if that is not possible.
func (c *Cgroup) RaiseWeight(t testing.TB) {
	t.Helper()
	if err := c.made.RaiseWeight(100); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// Command returns a command that starts inside the cgroup. It and its children are
// killed when the test ends.
func (c *Cgroup) Command(name string, args ...string) *exec.Cmd {
	return c.made.Command(name, args...)
}

// Delegate gives the cgroup to a user, who may then make others below it. It skips
// the test if that is not possible.
func (c *Cgroup) Delegate(t testing.TB, uid int) {
	t.Helper()
	if err := c.made.Delegate(uid); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// Add moves a process into the cgroup, for processes of other users, which Command
// cannot start.
func (c *Cgroup) Add(t testing.TB, pid int) {
	t.Helper()
	if err := c.made.Add(pid); err != nil {
		t.Fatal(err)
	}
}

// Remove kills the cgroup's processes and removes it, as a container engine does.
// Otherwise that happens when the test ends.
func (c *Cgroup) Remove(t testing.TB) {
	t.Helper()
	if err := c.made.Remove(); err != nil {
		t.Error(err)
	}
}
