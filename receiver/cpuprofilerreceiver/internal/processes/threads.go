// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import "github.com/hotprofile/hotprofile/internal/samples"

// thread is one thread of a process.
type thread struct{ pid, tid int }

// ThreadName returns the name of a thread, or "" if it is unknown.
func (t *Table) ThreadName(pid, tid int) string {
	p := t.last
	if p == nil || p.PID != pid {
		var ok bool
		if p, ok = t.processes.Peek(pid); !ok {
			return ""
		}
	}
	if tid == pid {
		return p.Name
	}
	if name, ok := p.threads[tid]; ok {
		return name
	}
	name, _ := t.fs.threadName(pid, tid)
	name = t.intern(name)
	p.setThreadName(tid, name) // also stored if unknown, so that it is read only once
	return name
}

// Thread returns a thread. The result contains the name and
// the id only if they are wanted.
func (t *Table) Thread(pid, tid int, name, id bool) (thread samples.Thread) {
	if name {
		thread.Name = t.ThreadName(pid, tid)
	}
	if id {
		thread.ID = int32(tid)
	}
	return thread
}

func (p *Process) setThreadName(tid int, name string) {
	if tid == p.PID {
		p.Name = name
		return
	}
	t := p.table
	if _, known := p.threads[tid]; !known {
		if t.stats.ThreadNames >= t.cfg.Limits.ThreadNames {
			t.stats.ThreadNameResets++
			t.dropThreadNames()
		}
		if p.threads == nil {
			p.threads = make(map[int]string)
		}
		t.stats.ThreadNames++
	}
	p.threads[tid] = name
}

func (p *Process) dropThreadName(tid int) {
	if _, known := p.threads[tid]; known {
		delete(p.threads, tid)
		p.table.stats.ThreadNames--
	}
}

func (p *Process) dropThreadNames() {
	p.table.stats.ThreadNames -= len(p.threads)
	p.threads = nil
}

func (t *Table) dropThreadNames() {
	for _, p := range t.processes.Values() {
		p.dropThreadNames()
	}
}

// forkThread gives a new thread the name of its creator, as the kernel does. If the
// creator's name is unknown, the name of the new thread is read when it is needed.
func (p *Process) forkThread(tid, ptid int) {
	name, ok := p.threads[ptid]
	if ptid == p.PID {
		name, ok = p.Name, p.Name != ""
	}
	if !ok {
		p.dropThreadName(tid) // the name of an earlier thread with this id
		return
	}
	p.setThreadName(tid, name)
}
