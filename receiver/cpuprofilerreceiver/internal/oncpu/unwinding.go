// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// Unwinding says how the user's part of stacks is found.
type Unwinding uint8

// What may be asked for.
const (
	// FramePointers leaves it to the kernel.
	FramePointers Unwinding = iota
	// Copies has the kernel copy the top of each stack, and walks it by tables.
	Copies
	// CopiesWhereNeeded does so from when a target's process is sampled whose
	// executable or C library keeps no frame pointers. Not for the whole host.
	CopiesWhereNeeded
)

// userStack is how many bytes are copied of each stack for what was found.
func (r *reader) userStack(f found) int {
	switch {
	case r.cfg.Unwinding == Copies, r.cfg.Unwinding == CopiesWhereNeeded && r.needed && !f.Wanted.Host:
		return r.cfg.StackBytes
	default:
		return 0
	}
}

// stack finds or makes a sample's stack; nil where there is none.
func (r *reader) stack(p *processes.Process, s *perfevent.Sample) *samples.Stack {
	s.User = reached(s.User)
	switch {
	case s.HasRegisters && r.attached.options.UserStack > 0:
		if r.unwinder.Sample(s, p) == unwind.Whole {
			return p.WholeStack(s)
		}
	case r.cfg.Unwinding == CopiesWhereNeeded && !r.needed && !r.last.Wanted.Host:
		r.look(p)
	}
	return p.Stack(s)
}

// prepare has the files of processes that are known already read before their
// first samples are: those of cgroups and the host are read as they are sampled.
func (r *reader) prepare(f found) {
	if r.cfg.Unwinding == FramePointers || f.Wanted.Host {
		return
	}
	for _, w := range f.plan.Processes {
		p := r.cfg.Table.Lookup(w.PID, 0)
		if r.userStack(f) == 0 {
			r.look(p)
			continue
		}
		for _, m := range p.Mapped() {
			r.cfg.Tables.Track(m)
		}
	}
}

// look finds out whether a process keeps frame pointers.
func (r *reader) look(p *processes.Process) {
	executable, libc := p.Foundations()
	for _, m := range [...]*samples.Mapping{executable, libc} {
		if m == nil {
			continue
		}
		if t, _ := r.cfg.Tables.Lookup(m); t != nil && !t.FramePointers() {
			r.needed = true
			r.cfg.Logger.Info("stacks are copied and walked by tables from here on: frame pointers do not lead through this file",
				zap.String("file", m.Path), zap.Int("pid", p.PID), zap.Int("stack_bytes", r.cfg.StackBytes))
			return
		}
	}
}
