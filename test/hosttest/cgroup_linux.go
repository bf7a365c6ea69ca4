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

// Cgroup is a cgroup of one test. The cgroup and its processes
// are removed when the test ends.
type Cgroup struct {
	// Path is the path below the root of each hierarchy, with a leading slash.
	Path string
	made *scratch.Cgroup
}

// NewCgroup creates a cgroup below the root cgroup. A suffix makes its name unique.
// NewCgroup skips the test if cgroups cannot be created.
func NewCgroup(t testing.TB, name string) *Cgroup {
	t.Helper()
	return NewCgroupCalled(t, fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixNano()%1e9))
}

// NewCgroupCalled creates a cgroup with exactly the given name. Tests use it to
// create a removed cgroup again.
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

// NewContainer creates a cgroup with the name that Docker gives to the cgroup of a
// container. The parent is also a new cgroup. If user is not 0 (root), both
// cgroups are delegated to the user.
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

// SetQuota limits the cgroup to cores CPUs. If cores is 0 or less, SetQuota removes the
// limit. SetQuota skips the test if the limit cannot be set.
func (c *Cgroup) SetQuota(t testing.TB, cores float64) {
	t.Helper()
	if err := c.made.SetQuota(cores); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// LimitMemory limits the memory of the cgroup, including the page cache of its files. It
// skips the test if the limit cannot be set.
func (c *Cgroup) LimitMemory(t testing.TB, bytes int64) {
	t.Helper()
	if err := c.made.LimitMemory(bytes); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// RaiseWeight gives the cgroup a high CPU weight. On a busy machine, the cgroup
// then still gets the CPU time that its quota allows. RaiseWeight skips the
// test if the weight cannot be set.
func (c *Cgroup) RaiseWeight(t testing.TB) {
	t.Helper()
	if err := c.made.RaiseWeight(100); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// Command returns a command that starts inside the cgroup. The process and its children
// are killed when the test ends.
func (c *Cgroup) Command(name string, args ...string) *exec.Cmd {
	return c.made.Command(name, args...)
}

// Delegate gives the cgroup to a user, who can then create cgroups below it. It skips the
// test if this is not possible.
func (c *Cgroup) Delegate(t testing.TB, uid int) {
	t.Helper()
	if err := c.made.Delegate(uid); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// Add moves a process into the cgroup. It is for processes of other
// users, which Command cannot start.
func (c *Cgroup) Add(t testing.TB, pid int) {
	t.Helper()
	if err := c.made.Add(pid); err != nil {
		t.Fatal(err)
	}
}

// Remove kills the cgroup's processes and removes the cgroup, like a container engine. If
// Remove is not called, the cgroup is removed at the end of the test.
func (c *Cgroup) Remove(t testing.TB) {
	t.Helper()
	if err := c.made.Remove(); err != nil {
		t.Error(err)
	}
}
