// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import "testing"

// SetPIDs limits how many processes and threads the cgroup may have. It skips the
// test where that cannot be done.
func (c *Cgroup) SetPIDs(t testing.TB, most int) {
	t.Helper()
	if err := c.made.SetPIDs(most); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// PIDs is how many processes and threads are in the cgroup, where SetPIDs works.
func (c *Cgroup) PIDs() int { return c.made.PIDs() }

// KillAtOnce ends all processes of the cgroup in one step. It skips the test where
// that cannot be done.
func (c *Cgroup) KillAtOnce(t testing.TB) {
	t.Helper()
	if err := c.made.KillAtOnce(); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}
