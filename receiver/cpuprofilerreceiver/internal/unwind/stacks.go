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

// Mode selects how the user's part of stacks is unwound.
type Mode uint8

// The modes.
const (
	// FramePointers means that the kernel follows frame pointers.
	FramePointers Mode = iota
	// Copies means that the kernel copies the top of each stack, which is unwound by
	// tables.
	Copies
	// CopiesWhereNeeded means Copies from the first sample of a process whose executable or
	// C library has no frame pointers.
	CopiesWhereNeeded
	// CopiesAsNeeded means Copies of as many bytes as the sampled programs need.
	CopiesAsNeeded
)

// Process has the memory and the stacks of a process.
type Process interface {
	Memory
	// ExecutableAndLibc returns the mappings of the executable and of the C library, or nil
	// for a missing one.
	ExecutableAndLibc() (executable, libc *samples.Mapping)
	// Stack returns the stack of a sample, or nil for a sample without frames. WholeStack
	// returns the stack of a sample that reaches the thread's entry.
	Stack(s *perfevent.Sample) *samples.Stack
	WholeStack(s *perfevent.Sample) *samples.Stack
}

// StacksConfig configures Stacks. The zero value means FramePointers.
type StacksConfig struct {
	Mode Mode
	// Bytes is the size of copies, which is the initial size with CopiesAsNeeded. Tables
	// has the tables to unwind copies. FramePointers needs neither.
	Bytes  int
	Tables Tables
	// What names the sampler in log messages.
	What   string
	Logger *zap.Logger
}

// Stacks finds the stacks of a sampler's samples, and decides whether the kernel copies
// stacks. It belongs to the sampler's reading goroutine.
type Stacks struct {
	cfg      StacksConfig
	unwinder *unwinder
	// sizes is nil unless the size of copies changes.
	sizes *sizes
	// needed reports whether copies are needed.
	needed bool
	// patience is the time that unwinding may still wait for tables.
	patience time.Duration
	// kept is the last program that was found to have frame pointers, because consecutive
	// samples often belong to one program.
	kept program
}

// program identifies a program by its first mapping and their number.
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

// NewStacks returns Stacks that need no copies yet.
func NewStacks(cfg StacksConfig) *Stacks {
	cfg.Logger = cmp.Or(cfg.Logger, zap.NewNop())
	s := &Stacks{cfg: cfg, unwinder: newUnwinder(cfg.Tables)}
	if cfg.Mode == CopiesAsNeeded {
		s.sizes = newSizes(cfg.Bytes)
	}
	return s
}

// Copied returns the number of bytes to copy of each stack from now on.
func (s *Stacks) Copied() int {
	switch {
	case s.sizes != nil:
		return s.sizes.bytes
	case s.cfg.Mode == Copies, s.needed:
		return s.cfg.Bytes
	}
	return 0
}

// Copies sets the actual number of copied bytes, if it is different from the result of
// Copied.
func (s *Stacks) Copies(bytes int) {
	if s.sizes != nil {
		s.sizes.set(bytes)
	}
}

// NextBatch is called when samples go to another batch. Copied may have changed.
func (s *Stacks) NextBatch() {
	if s.sizes != nil {
		s.sizes.nextBatch()
	}
}

// Wait permits unwinding to wait for at most patience for tables that are being made, until
// the next call.
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

// Of returns the stack of a sample, or nil. It does not allocate memory for a known stack.
func (s *Stacks) Of(p Process, sample *perfevent.Sample) *samples.Stack {
	return Intern(p, sample, s.Unwind(p, sample, nil))
}

// Unwind replaces the stack of a sample by the unwound stack. It reports whether the stack
// is known to reach the thread's entry. generated may be nil.
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

// Intern returns the stack of a sample, or nil. whole reports that the stack is known to
// reach the thread's entry.
func Intern(p Process, sample *perfevent.Sample, whole bool) *samples.Stack {
	if whole {
		return p.WholeStack(sample)
	}
	return p.Stack(sample)
}

// Flat returns the stack of a sample that the kernel unwound by frame pointers.
func (s *Stacks) Flat(p Process, sample *perfevent.Sample) *samples.Stack {
	sample.User = reached(sample.User)
	return p.Stack(sample)
}

// unwind unwinds the copy of a sample. It waits if a table is being made for it.
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

// look finds out whether a process has frame pointers.
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

// mostAddress is above all user code. No processor that Linux runs on gives user space more
// than 56 bits.
const mostAddress = 1 << 56

// reached returns the valid part of the user's half of a stack. If the frame pointer
// register has another use, the kernel follows it until it cannot read. It may then return
// values that are not addresses of code. Callers end at the first such value. The leaf is
// the program counter, whatever its value.
func reached(user []uint64) []uint64 {
	for i, a := range user {
		if a == 0 || i > 0 && (a < leastAddress || a >= mostAddress) {
			return user[:i]
		}
	}
	return user
}
