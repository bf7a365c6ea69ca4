// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

// WantsPID says whether a process is to be sampled. For one that is known it
// reads nothing.
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

// CgroupOf is the cgroup that gives a known process's unit its identity; empty
// where it is not known.
func (t *Table) CgroupOf(pid int) string {
	if p, ok := t.processes.Peek(pid); ok {
		return p.Cgroup
	}
	return ""
}
