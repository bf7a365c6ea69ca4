// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"cmp"
	"slices"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// These constants are upper bounds for memory, in bytes. The bounds are for a process
// with its resource, a mapping without its path, a thread's name, and an entry in a map
// of strings.
const (
	processBytes = 1664
	mappingBytes = 192
	threadBytes  = 96
	stringBytes  = 48
)

// bytes returns the memory of a program's facts.
func (f *facts) bytes() int {
	n := len(f.path) + len(f.called) + len(f.raw) + len(f.group.Cgroup) + len(f.group.ContainerID) + len(f.group.PodUID) + f.env.bytes()
	for _, path := range f.paths {
		n += len(path)
	}
	return n
}

// weigh updates the memory that is counted for a process, excluding its mappings and
// stacks. It is called when the facts of the process may have changed.
func (t *Table) weigh(p *Process) {
	n := processBytes + p.facts.bytes() + p.context.described.bytes()
	t.stats.Bytes += n - p.bytes
	p.bytes = n
}

func mappingsBytes(all []*samples.Mapping) (n int) {
	for _, m := range all {
		n += mappingBytes + len(m.Path)
	}
	return n
}

// setMappings sets the mappings of a space and their memory in bytes.
func (t *Table) setMappings(s *space, mappings []*samples.Mapping, bytes int) {
	t.stats.Bytes += bytes - s.mapped
	s.mappings, s.mapped = mappings, bytes
}

// held returns the memory of processes, mappings and names.
func (t *Table) held() int {
	return t.stats.Bytes + t.stats.ThreadNames*threadBytes + t.nameBytes + t.memberships.bytes
}

// size returns the memory of a process. The memory of a shared space is divided equally
// among the processes that use the space.
func (p *Process) size() int {
	n := p.bytes + len(p.threads)*threadBytes
	if p.space != nil {
		n += p.space.mapped / max(p.space.users, 1)
	}
	return n
}

// makeRoom forgets processes other than keep if the memory exceeds Limits.Bytes. It frees
// an eighth more than needed, so that it does not run again for each new process.
func (t *Table) makeRoom(keep *Process) {
	if t.held() <= t.cfg.Limits.Bytes {
		return
	}
	for _, p := range t.ranking((*Process).size) {
		if t.held() <= t.cfg.Limits.Bytes/8*7 {
			return
		}
		if p != keep {
			t.processes.Remove(p.PID)
			t.stats.Evicted++
		}
	}
}

// dropMostStacks forgets stacks of spaces other than keep until there is room for need
// bytes plus a quarter of Limits.StackBytes. If there is still no room for need bytes, it
// also forgets the stacks of keep.
func (t *Table) dropMostStacks(keep *space, need int) {
	size := func(p *Process) int {
		if p.space == nil {
			return 0
		}
		return p.space.bytes
	}
	for _, p := range t.ranking(size) {
		if t.stats.StackBytes+need <= t.cfg.Limits.StackBytes/4*3 {
			return
		}
		if p.space != nil && p.space != keep {
			t.dropStacks(p.space)
		}
	}
	if t.stats.StackBytes+need > t.cfg.Limits.StackBytes {
		t.dropStacks(keep)
	}
}

// ranking returns the processes in the order in which they are forgotten. Processes
// without samples in this batch and the previous batch come first, starting with the
// longest idle process. Other processes follow, starting with the largest. The processes
// of hot units come last, also starting with the largest.
func (t *Table) ranking(size func(*Process) int) []*Process {
	type ranked struct {
		*Process
		class, size int
	}
	hot := func(*Process) bool { return false }
	if t.cfg.Hot != nil {
		hot = t.cfg.Hot()
	}
	all := make([]ranked, 0, t.processes.Len())
	for _, p := range t.processes.Values() {
		r := ranked{Process: p, size: size(p)}
		switch {
		case hot(p):
			r.class = 2
		case p.batch > 0 && p.batch+1 >= t.batch:
			r.class = 1
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b ranked) int {
		if a.class != b.class || a.class > 0 {
			return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(b.size, a.size))
		}
		return cmp.Or(cmp.Compare(a.batch, b.batch), cmp.Compare(a.program, b.program))
	})
	out := make([]*Process, len(all))
	for i := range all {
		out[i] = all[i].Process
	}
	return out
}
