// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

// Known is like Lookup, but for a record without a cgroup. A known process keeps its
// cgroup.
func (t *Table) Known(pid int) *Process {
	if p := t.last; p != nil && p.PID == pid && p.Resource != nil {
		return p
	}
	cgroup := uint64(0)
	if p, ok := t.processes.Peek(pid); ok {
		cgroup = p.cgroupID
	}
	return t.Lookup(pid, cgroup)
}
