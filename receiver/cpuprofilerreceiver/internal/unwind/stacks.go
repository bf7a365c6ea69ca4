// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// Mode says how the user's part of stacks is found.
type Mode uint8

// What may be asked for.
const (
	// FramePointers leaves it to the kernel.
	FramePointers Mode = iota
	// Copies has the kernel copy the top of each stack, and walks it by tables.
	Copies
	// CopiesWhereNeeded does so from when a target's process is sampled whose
	// executable or C library keeps no frame pointers. Not where the events are the
	// whole host's.
	CopiesWhereNeeded
)

// Process is what is known of a process's memory and of its stacks.
type Process interface {
	Memory
	// Foundations are the mappings of the executable and of the C library; nil
	// where there is none.
	Foundations() (executable, libc *samples.Mapping)
	// Stack returns the stack of a sample, nil for one without frames, WholeStack
	// that of one that is known to reach the thread's entry.
	Stack(s *perfevent.Sample) *samples.Stack
	WholeStack(s *perfevent.Sample) *samples.Stack
}

// StacksConfig is what Stacks need to know. The zero value is frame pointers.
type StacksConfig struct {
	Mode Mode
	// Bytes is how many are copied of each stack, Tables what copies are walked by;
	// not needed with FramePointers.
	Bytes  int
	Tables Tables
	// What names the sampler in the line that says that its stacks are copied.
	What   string
	Logger *zap.Logger
}

// Stacks finds the stacks of a sampler's samples, and whether they have to be
// copied for that. They belong to the sampler's reading goroutine.
type Stacks struct {
	cfg      StacksConfig
	unwinder *Unwinder
	// wide says that the events are the whole host's, needed that copies were found
	// to be.
	wide, needed bool
	// kept is the program that was found to keep frame pointers last: consecutive
	// samples are often of one.
	kept program
}

// program is told by what was mapped first and how many mappings there are.
type program struct {
	first  *samples.Mapping
	mapped int
}

func programOf(p Process) program {
	if mapped := p.Mapped(); len(mapped) > 0 {
		return program{mapped[0], len(mapped)}
	}
	return program{}
}

// NewStacks returns stacks of which none is known to need a copy.
func NewStacks(cfg StacksConfig) *Stacks {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Stacks{cfg: cfg, unwinder: NewUnwinder(cfg.Tables)}
}

// Attach takes whether events are the whole host's, and returns how many bytes
// they have to copy of each stack.
func (s *Stacks) Attach(wide bool) int {
	s.wide = wide
	return s.Copied()
}

// Copied is how many bytes are to be copied of each stack, by what is known now.
func (s *Stacks) Copied() int {
	if s.cfg.Mode == Copies || s.cfg.Mode == CopiesWhereNeeded && s.needed && !s.wide {
		return s.cfg.Bytes
	}
	return 0
}

// Forget forgets that copies are needed, as for other programs they may not be.
func (s *Stacks) Forget() { s.needed, s.kept = false, program{} }

// Prepare has what is mapped into a process read before its first sample is.
func (s *Stacks) Prepare(p Process) {
	switch {
	case s.cfg.Mode == FramePointers:
	case s.Copied() == 0:
		s.look(p)
	default:
		for _, m := range p.Mapped() {
			s.cfg.Tables.Lookup(m)
		}
	}
}

// Of finds or makes a sample's stack; nil where there is none. For one that was
// seen before it allocates nothing.
func (s *Stacks) Of(p Process, sample *perfevent.Sample) *samples.Stack {
	sample.User = reached(sample.User)
	switch {
	case sample.HasRegisters:
		if s.unwinder.Sample(sample, p) == Whole {
			return p.WholeStack(sample)
		}
	case s.cfg.Mode == CopiesWhereNeeded && !s.needed && !s.wide:
		s.look(p)
	}
	return p.Stack(sample)
}

// look finds out whether a process keeps frame pointers.
func (s *Stacks) look(p Process) {
	is := programOf(p)
	if is == s.kept && is.first != nil {
		return
	}
	executable, libc := p.Foundations()
	known := executable != nil && libc != nil
	for _, m := range [...]*samples.Mapping{executable, libc} {
		if m == nil {
			continue
		}
		t, ready := s.cfg.Tables.Lookup(m)
		if t != nil && !t.FramePointers() {
			s.needed = true
			s.cfg.Logger.Info("stacks are copied and walked by tables from here on: frame pointers do not lead through this file",
				zap.String("sampler", s.cfg.What), zap.String("file", m.Path), zap.Int("pid", m.PID), zap.Int("stack_bytes", s.cfg.Bytes))
			return
		}
		known = known && ready
	}
	if known {
		s.kept = is
	}
}

// No code of a user lies above this: no processor that Linux runs on gives user
// space more than 56 bits.
const mostAddress = 1 << 56

// reached is the part of a stack's user half that frame pointers led through.
// Where they lead astray the kernel goes on until it cannot read, and may give
// what is no address of code on the way: that one and what follows are no
// callers. The leaf is where the processor was, whatever it looks like.
func reached(user []uint64) []uint64 {
	for i, a := range user {
		if a == 0 || i > 0 && (a < leastAddress || a >= mostAddress) {
			return user[:i]
		}
	}
	return user
}
