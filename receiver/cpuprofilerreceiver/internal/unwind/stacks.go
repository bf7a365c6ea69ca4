// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"cmp"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// Mode selects how the user part of stacks is unwound.
type Mode uint8

// The modes.
const (
	// FramePointers means that the kernel unwinds by frame pointers.
	FramePointers Mode = iota
	// Copies means that the kernel copies the top of each stack,
	// and the tables unwind the copy.
	Copies
	// CopiesWhereNeeded means that unwinding starts with FramePointers. It
	// switches to Copies at the first sample of a process whose executable or C
	// library has no frame pointers.
	CopiesWhereNeeded
	// CopiesAsNeeded is like Copies, but adapts the size of
	// copies to the sampled programs.
	CopiesAsNeeded
)

// Memory provides the mappings of a process.
type Memory interface {
	Mappings
	// Mapped returns the mappings, sorted by address. The caller must not change the slice.
	Mapped() []*samples.Mapping
}

// Process provides the mappings and the interned stacks of a process.
type Process interface {
	Memory
	// ExecutableAndLibc returns the mappings of the executable and of the C library. A
	// missing mapping is nil.
	ExecutableAndLibc() (executable, libc *samples.Mapping)
	// Stack returns the interned stack of a sample, or nil for a sample without frames.
	// whole reports whether the stack is known to reach the thread's entry.
	Stack(s *perfevent.Sample, whole bool) *samples.Stack
}

// StacksConfig configures Stacks. The zero value means FramePointers.
type StacksConfig struct {
	Mode Mode
	// Bytes is the size of copies. With CopiesAsNeeded it is the initial size. Tables
	// provides the tables for unwinding copies. FramePointers uses neither field.
	Bytes  int
	Tables Tables
	// What contains the sampler's name for log messages.
	What   string
	Logger *zap.Logger
}

// Stacks finds the stacks of a sampler's samples, and decides whether the kernel copies
// stacks. Only the sampler's reading goroutine uses it.
type Stacks struct {
	cfg      StacksConfig
	unwinder *unwinder
	// sizes adapts the size of copies. It is nil unless the mode is CopiesAsNeeded.
	sizes *sizes
	// needed is true if CopiesWhereNeeded has found a process that needs copies.
	needed bool
	// patience is the remaining time that unwinding may wait for tables.
	patience time.Duration
	// kept is the last program that was found to have frame pointers. It saves lookups,
	// because consecutive samples often belong to the same program.
	kept program
}

// program identifies a program by its first mapping and the number of its mappings.
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

// NewStacks returns Stacks for a sampler.
func NewStacks(cfg StacksConfig) *Stacks {
	cfg.Logger = cmp.Or(cfg.Logger, zap.NewNop())
	s := &Stacks{cfg: cfg, unwinder: &unwinder{tables: cfg.Tables}}
	if cfg.Mode == CopiesAsNeeded {
		s.sizes = newSizes(cfg.Bytes)
	}
	return s
}

// Copied returns the number of bytes of each stack that the kernel should copy from now
// on.
func (s *Stacks) Copied() int {
	switch {
	case s.sizes != nil:
		return s.sizes.bytes
	case s.cfg.Mode == Copies, s.needed:
		return s.cfg.Bytes
	}
	return 0
}

// Copies sets the number of bytes that the kernel actually copies. This number may
// differ from the result of Copied.
func (s *Stacks) Copies(bytes int) {
	if s.sizes != nil {
		s.sizes.set(bytes)
	}
}

// NextBatch is called at the start of a new batch. It may change the result of Copied.
func (s *Stacks) NextBatch() {
	if s.sizes != nil {
		s.sizes.nextBatch()
	}
}

// Wait sets the total time that unwinding may wait for tables until the next call of Wait.
func (s *Stacks) Wait(patience time.Duration) { s.patience = patience }

// Forget resets the need for copies, because other programs may not need them.
func (s *Stacks) Forget() { s.needed, s.kept = false, program{} }

// Prepare requests the tables of a process before its first sample is read.
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

// Of unwinds a sample and returns its interned stack, or nil for a sample without frames.
// It does not allocate memory for a known stack.
func (s *Stacks) Of(p Process, sample *perfevent.Sample) *samples.Stack {
	whole := s.Unwind(p, sample, nil)
	return p.Stack(sample, whole)
}

// Unwind replaces the user part of a sample's stack with the unwound stack. It reports
// whether the stack is known to reach the thread's entry. generated may be nil.
func (s *Stacks) Unwind(p Process, sample *perfevent.Sample, generated Generated) (whole bool) {
	sample.User = reached(sample.User)
	switch {
	case sample.HasRegisters:
		return s.unwind(p, sample, generated) == Whole
	case s.cfg.Mode == CopiesWhereNeeded && !s.needed:
		s.look(p)
	}
	return false
}

// Flat returns the interned stack of a sample that the kernel unwound by frame pointers.
func (s *Stacks) Flat(p Process, sample *perfevent.Sample) *samples.Stack {
	sample.User = reached(sample.User)
	return p.Stack(sample, false)
}

// unwind unwinds the copied stack of a sample. If a needed table is being made, it waits
// for the table.
func (s *Stacks) unwind(p Process, sample *perfevent.Sample, generated Generated) End {
	chain := sample.User
	end := s.unwinder.Sample(sample, p, generated)
	if end == Unready && s.patience > 0 {
		s.patience -= s.cfg.Tables.Settle(s.patience)
		sample.User = chain
		end = s.unwinder.Sample(sample, p, generated)
	}
	if s.sizes != nil && (end == Whole || end == CutOff && len(sample.Stack) >= s.sizes.bytes) {
		s.sizes.add(programOf(p), s.unwinder.needed, end == CutOff)
	}
	return end
}

// If a process maps at most maxAhead files, all of its files are read ahead. A program such
// as ffmpeg maps more than a hundred files, but runs code of only a few. Reading all files
// would delay the files that its stacks need.
const maxAhead = 16

// Sample replaces the user part of a sample's stack with the unwound stack. The sample must
// have registers. The stack is valid until the next call.
func (u *unwinder) Sample(s *perfevent.Sample, p Memory, generated Generated) End {
	pcs, end := u.Unwind(s, generated, p)
	if end == Unready {
		// The other files of the process will be needed soon too.
		if mapped := p.Mapped(); len(mapped) <= maxAhead {
			for _, m := range mapped {
				u.tables.Lookup(m)
			}
		}
	}
	s.User = pcs
	s.Truncated = end != Whole
	return end
}

// look sets needed if the executable or the C library of a process has no frame pointers.
func (s *Stacks) look(p Process) {
	is := programOf(p)
	if is == s.kept && is.first != nil {
		return
	}
	executable, libc := p.ExecutableAndLibc()
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

// mostAddress is above all user code. No processor that Linux supports has more than 56
// bits of user address space.
const mostAddress = 1 << 56

// reached returns the valid part of a user stack. If code uses the frame pointer
// register for other data, the kernel follows the data as if it were a frame pointer,
// until a read fails. The stack may then contain values that are not code addresses.
// reached cuts the stack at the first such caller. The leaf is the program counter,
// so any value except 0 is valid.
func reached(user []uint64) []uint64 {
	for i, a := range user {
		if a == 0 || i > 0 && (a < leastAddress || a >= mostAddress) {
			return user[:i]
		}
	}
	return user
}
