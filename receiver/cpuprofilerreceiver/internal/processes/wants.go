// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

// WantsPID reports whether a process is to be sampled. It reads nothing about known
// processes.
func (t *Table) WantsPID(pid int) bool {
	p := t.Known(pid)
	return p != nil && p.Wanted
}

// Known is Lookup for a record that does not have the cgroup: a known process stays in
// its own.
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

// CgroupOf returns the cgroup that tells a known process's group apart; empty if
// unknown.
func (t *Table) CgroupOf(pid int) string {
	if p, ok := t.processes.Peek(pid); ok {
		return p.Cgroup
	}
	return ""
}
