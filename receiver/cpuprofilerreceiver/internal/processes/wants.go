// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

// WantsPID reports whether a process is to be sampled. It reads nothing about known
// processes.
func (t *Table) WantsPID(pid int) bool {
	if p := t.last; p != nil && p.PID == pid && p.Resource != nil {
		return p.Wanted
	}
	cgroup := uint64(0)
	if p, ok := t.processes.Peek(pid); ok {
		cgroup = p.cgroupID
	}
	p := t.Lookup(pid, cgroup)
	return p != nil && p.Wanted
}

// CgroupOf returns the cgroup that tells a known process's group apart; empty if
// unknown.
func (t *Table) CgroupOf(pid int) string {
	if p, ok := t.processes.Peek(pid); ok {
		return p.Cgroup
	}
	return ""
}
