// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/hotprofile/hotprofile/internal/hosttest/scratch"
)

// Cgroup is a cgroup of a test's own, removed with all that runs in it when the
// test ends.
type Cgroup struct {
	// Path is the path below each hierarchy's root, with a leading slash.
	Path string
	made *scratch.Cgroup
}

// NewCgroup makes one below the root cgroup, called name plus something that
// makes it unique. It skips the test where cgroups cannot be made.
func NewCgroup(t testing.TB, name string) *Cgroup {
	t.Helper()
	return NewCgroupCalled(t, fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixNano()%1e9))
}

// NewCgroupCalled makes one of exactly that name, for tests in which a cgroup
// comes back.
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

// SetQuota limits the cgroup to cores CPUs; 0 or less removes the limit. It
// skips the test where that cannot be done.
func (c *Cgroup) SetQuota(t testing.TB, cores float64) {
	t.Helper()
	if err := c.made.SetQuota(cores); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// Favour has the cgroup get the CPU that its quota allows, whatever else runs on
// the machine. It skips the test where that cannot be done.
func (c *Cgroup) Favour(t testing.TB) {
	t.Helper()
	if err := c.made.Favour(100); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// Command returns a command that is inside the cgroup from its first
// instruction on. It and its children are killed when the test ends.
func (c *Cgroup) Command(name string, args ...string) *exec.Cmd {
	return c.made.Command(name, args...)
}

// Add moves a process into the cgroup, for those that Command cannot start: of
// users who may not put themselves there.
func (c *Cgroup) Add(t testing.TB, pid int) {
	t.Helper()
	if err := c.made.Add(pid); err != nil {
		t.Fatal(err)
	}
}

// Remove kills what runs in the cgroup and removes it, as a container engine
// does; a test that does not call it need not worry.
func (c *Cgroup) Remove(t testing.TB) {
	t.Helper()
	if err := c.made.Remove(); err != nil {
		t.Error(err)
	}
}
