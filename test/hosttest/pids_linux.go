// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import "testing"

// SetPIDs limits the number of processes and threads in the cgroup. It skips the
// test if the limit cannot be set.
func (c *Cgroup) SetPIDs(t testing.TB, most int) {
	t.Helper()
	if err := c.made.SetPIDs(most); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// PIDs returns the number of processes and threads in the cgroup. It
// returns 0 if SetPIDs does not work.
func (c *Cgroup) PIDs() int { return c.made.PIDs() }

// KillAtOnce ends all processes of the cgroup in one step. It skips
// the test if this is not possible.
func (c *Cgroup) KillAtOnce(t testing.TB) {
	t.Helper()
	if err := c.made.KillAtOnce(); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}
