// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package unwind unwinds stacks of code without frame pointers, which the
// kernel cannot unwind. It starts from a sample's user registers and from the
// sample's copy of the top of the stack.
//
// The unwind rules are read once per object file. They come from .eh_frame, which
// compilers write for exceptions and debuggers, and from the tables of Go programs. A
// Table contains sorted addresses, and the rule that is valid from each address on. A
// rule finds the caller's stack pointer (the canonical frame address), the return address
// and the caller's frame pointer. A Cache makes the Tables on a separate goroutine, one
// Table for each build of a program. The memory of the Cache is limited. An unwinder
// walks the stack. It never waits and does not allocate memory.
//
// A rule may use only the stack pointer and the frame pointer. Only the few DWARF
// expressions that linkers and C libraries write are supported. If the code has any other
// rule, the stack ends with Lost.
//
// No existing library is suitable. Delve's library interprets the call frame instructions
// again for each address and panics at unknown instructions. The tables of
// OpenTelemetry's eBPF profiler cannot be used without the rest of that profiler.
package unwind

import (
	"encoding/binary"
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// MaxDepth is the maximum number of frames of a stack.
const MaxDepth = 127

// Frame is a frame of generated code.
type Frame struct {
	PC, SP, FP uint64
	// BCP is perfevent.Registers.BCP in the innermost frame, and 0 in all other frames.
	BCP uint64
	// Exact reports whether PC is the next instruction to run, not a return address.
	Exact bool
	// Stack is the copied stack memory. Start is its address.
	Stack []byte
	Start uint64
}

// Load reads a word of the stack.
func (f *Frame) Load(address uint64) (uint64, bool) {
	w := walk{copy: f.Stack, start: f.Start}
	return w.load(address)
}

// Generated finds the callers of generated code.
type Generated interface {
	// Has reports whether pc is in generated code of a mapped file. Code
	// without a file is always generated.
	Has(pc uint64) bool
	// Step replaces a frame of generated code with the frame of its caller. It returns
	// the address that represents the code in the stack, or false if the code is unknown.
	Step(f *Frame) (name uint64, ok bool)
}

// End is the reason why an unwound stack ends.
type End uint8

// These constants are the reasons why a stack ends. A stack that ends for a reason
// other than Whole is truncated.
const (
	// Whole means that the stack ends in a function at which threads start.
	Whole End = iota
	// Deep means that the stack has more frames than MaxDepth.
	Deep
	// CutOff means that the stack is deeper than the copy.
	CutOff
	// Unready means that the stack ends in a file that has not been read yet.
	Unready
	// Lost means that the stack ends in code without a rule that leads to its caller.
	Lost
)

// Mappings finds mappings of a process.
type Mappings interface {
	// Mapping returns the mapping at an address, or nil if no file is mapped there.
	Mapping(address uint64) *samples.Mapping
}

// Tables finds the table of a mapping's file.
type Tables interface {
	// Lookup returns the table of a mapping's file, or nil. It returns false if the table
	// may become available later.
	Lookup(m *samples.Mapping) (*Table, bool)
	// Settle waits until all requests are served, for at most limit. It returns the wait
	// time.
	Settle(limit time.Duration) time.Duration
}

// unwinder walks stacks. It is not safe for concurrent use.
type unwinder struct {
	tables Tables
	frames [MaxDepth]uint64
	// needed is the number of bytes of the copy that were
	// needed to unwind the last stack.
	needed int
	// generated is the last frame of generated code.
	generated Frame

	// mapping, table and ready cache the last lookup, because consecutive frames often
	// belong to the same file.
	mapping *samples.Mapping
	table   *Table
	ready   bool
}

// User code never lies below leastAddress. addressMask removes the signature that AArch64
// puts into the upper bits of return addresses.
const (
	leastAddress = 4096
	addressMask  = 1<<48 - 1
)

// walk is the state of a walk. pc, sp, fp and lr are the registers of the current frame.
type walk struct {
	pc, sp, fp, lr uint64
	// fpKnown and lrKnown report whether fp and lr belong to the current frame.
	fpKnown, lrKnown bool
	// exact reports whether pc is the next instruction to run, not a return address.
	exact bool
	// start is the address of the first byte of the copy.
	start uint64
	copy  []byte
}

// load reads a word of the copied stack.
func (w *walk) load(addr uint64) (uint64, bool) {
	off := addr - w.start
	if off >= uint64(len(w.copy)) || uint64(len(w.copy))-off < 8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(w.copy[off:]), true
}

// Unwind returns the addresses of a sample's stack, the leaf first, and the reason why
// the stack ends. All addresses are return addresses, except for the first address and
// the addresses that a signal interrupted. The slice is valid until the next call.
//
// The user part of the sample is the stack that the kernel unwound by frame
// pointers. It may be deeper than the copy, or empty. generated is used for code
// without a file, and may be nil.
func (u *unwinder) Unwind(in *perfevent.Sample, generated Generated, mappings Mappings) ([]uint64, End) {
	u.mapping = nil
	w := walk{
		pc: in.Registers.PC, sp: in.Registers.SP, fp: in.Registers.FP, lr: in.Registers.LR,
		fpKnown: true, lrKnown: true, exact: true,
		start: in.Registers.SP, copy: in.Stack,
	}
	n := 0
	bcp := in.Registers.BCP
	for {
		u.frames[n] = w.pc
		n++
		u.needed = int(w.sp - w.start)
		if generated != nil && n < MaxDepth && (mappings.Mapping(w.pc) == nil || generated.Has(w.pc)) {
			u.generated = Frame{PC: w.pc, SP: w.sp, FP: w.fp, BCP: bcp, Exact: w.exact, Stack: in.Stack, Start: w.start}
			if name, ok := generated.Step(&u.generated); ok {
				f := &u.generated
				bcp = 0
				u.frames[n-1] = name
				if end := w.enter(f.PC, f.SP, f.FP, true, false); end != Whole {
					return u.frames[:n], end
				}
				continue
			}
		}
		bcp = 0
		rule, ready := u.rule(&w, mappings)
		if rule.flags&flagRoot != 0 {
			return u.frames[:n], Whole
		}
		if n == MaxDepth {
			return u.frames[:n], Deep
		}
		var end End
		if rule.cfa != cfaNone {
			end = w.step(rule)
		} else if end = w.byFramePointer(); end != Whole && !ready {
			end = Unready
		} else if end != Whole && w.throughTrampoline(mappings) {
			end = Whole
		}
		if end != Whole {
			return u.splice(&w, n, in.User, rule, end, mappings)
		}
	}
}

var noRule rule

// rule returns the rule for the current frame. ready is false if the table may become
// available later.
func (u *unwinder) rule(w *walk, mappings Mappings) (r *rule, ready bool) {
	at := w.pc
	if !w.exact {
		at-- // a call may be the last instruction of its function
	}
	m := u.mapping
	if m == nil || at < m.Start || at >= m.Limit {
		m = mappings.Mapping(at)
		if m == nil {
			return &noRule, true
		}
		u.mapping = m
		u.table, u.ready = u.tables.Lookup(m)
	}
	if u.table == nil {
		return &noRule, u.ready
	}
	return u.table.in(m, at), true
}

// step uses a rule to make the caller the current frame. It returns Whole on success.
func (w *walk) step(r *rule) End {
	var cfa uint64
	ok := true
	switch r.cfa {
	case cfaSP:
		cfa = w.sp + uint64(int64(r.cfaOff))
	case cfaFP:
		cfa, ok = w.fp+uint64(int64(r.cfaOff)), w.fpKnown
	case cfaSPDeref:
		if cfa, ok = w.load(w.sp + uint64(int64(r.cfaOff))); !ok {
			return CutOff
		}
	case cfaFPDeref:
		if !w.fpKnown {
			return Lost
		}
		if cfa, ok = w.load(w.fp + uint64(int64(r.cfaOff))); !ok {
			return w.beyond(w.fp)
		}
	case cfaPLT:
		cfa = w.sp + 8
		if w.pc&15 >= uint64(int64(r.cfaOff)) {
			cfa += 8
		}
	default:
		ok = false
	}
	if !ok {
		return Lost
	}

	var pc uint64
	switch r.ra {
	case locCFA:
		pc, ok = w.load(cfa + uint64(int64(r.raOff)))
	case locSP:
		pc, ok = w.load(w.sp + uint64(int64(r.raOff)))
	case locFP:
		pc, ok = w.load(w.fp + uint64(int64(r.raOff)))
		ok = ok && w.fpKnown
	case locSame: // the return address is in the link register
		if !w.lrKnown {
			return Lost
		}
		pc = w.lr
	default:
		return Lost
	}
	if !ok {
		return w.beyond(cfa)
	}

	fp, fpKnown := w.fp, w.fpKnown
	switch r.fp {
	case locSame:
	case locCFA:
		fp, fpKnown = w.load(cfa + uint64(int64(r.fpOff)))
	case locSP:
		fp, fpKnown = w.load(w.sp + uint64(int64(r.fpOff)))
	case locFP:
		fp, fpKnown = w.load(w.fp + uint64(int64(r.fpOff)))
	default:
		fpKnown = false
	}

	signal := r.flags&flagSignal != 0
	if signal {
		// On AArch64, the signal frame stores the interrupted function's link register
		// right after the frame pointer.
		w.lr, w.lrKnown = w.load(w.sp + uint64(int64(r.fpOff)) + 8)
		w.lrKnown = w.lrKnown && r.cfaOff == signalARM64.cfaOff
	} else {
		w.lrKnown = false
	}
	return w.enter(pc, cfa, fp, fpKnown, signal)
}

// enter makes a frame the current frame. It returns Whole on success. If the frame is
// impossible, it returns the reason why the stack ends. Stacks grow downwards, so the
// caller's frame must be at a higher address. There are two exceptions: a leaf function
// may have no frame, and a signal handler may use another stack.
func (w *walk) enter(pc, sp, fp uint64, fpKnown, signal bool) End {
	if pc &= addressMask; pc < leastAddress {
		return Lost
	}
	if sp <= w.sp && !signal && (!w.exact || sp < w.sp || pc == w.pc) {
		return Lost
	}
	if sp < w.start {
		return CutOff
	}
	w.pc, w.sp, w.fp, w.fpKnown, w.exact = pc, sp, fp, fpKnown, signal
	return Whole
}

// beyond returns CutOff if addr may be on the stack above the copied
// part. Otherwise it returns Lost.
func (w *walk) beyond(addr uint64) End {
	const farthest = 1 << 30
	if addr >= w.start && addr-w.start < farthest {
		return CutOff
	}
	return Lost
}

// byFramePointer uses the frame pointer to make the caller the current frame.
func (w *walk) byFramePointer() End {
	if !w.fpKnown || w.fp < w.sp || w.fp%8 != 0 {
		return Lost
	}
	fp, ok1 := w.load(w.fp)
	pc, ok2 := w.load(w.fp + 8)
	if !ok1 || !ok2 {
		return w.beyond(w.fp)
	}
	if fp != 0 && fp <= w.fp {
		return Lost
	}
	w.lrKnown = false
	return w.enter(pc, w.fp+16, fp, true, false)
}

// throughTrampoline steps over a trampoline of CPython, which `python -X perf` generates
// for each function in anonymous memory. The trampoline's frame has only 8 bytes of
// alignment and the return address (Objects/asm_trampoline.S).
func (w *walk) throughTrampoline(mappings Mappings) bool {
	if w.exact || mappings.Mapping(w.pc-1) != nil {
		return false
	}
	pc, ok := w.load(w.sp + 8)
	return ok && mappings.Mapping(pc-1) != nil && w.enter(pc, w.sp+16, w.fp, w.fpKnown, false) == Whole
}

// splice appends the rest of the kernel's stack if the current frame has a frame pointer.
// The kernel's stack is needed because the callers may be beyond the copy or on another
// stack.
func (u *unwinder) splice(w *walk, n int, chain []uint64, r *rule, end End, mappings Mappings) ([]uint64, End) {
	if r.flags&flagGo == 0 && (r.cfa == cfaNone || u.table == nil || !u.table.FramePointers()) || len(chain) < 2 {
		return u.frames[:n], end
	}
	// The frames are counted because a recursive function is in the chain several times.
	times := 0
	for _, pc := range u.frames[1:n] {
		if pc == w.pc {
			times++
		}
	}
	for i, pc := range chain {
		if i == 0 || pc != w.pc {
			continue
		}
		if times--; times > 0 {
			continue
		}
		rest := chain[i+1:]
		added := copy(u.frames[n:], rest)
		if added == 0 {
			return u.frames[:n], end
		}
		n += added
		if added < len(rest) {
			return u.frames[:n], Deep
		}
		if u.Root(u.frames[n-1], mappings) {
			return u.frames[:n], Whole
		}
		return u.frames[:n], end
	}
	return u.frames[:n], end
}

// Root reports whether a return address is in a function at which threads start.
func (u *unwinder) Root(address uint64, mappings Mappings) bool {
	u.mapping = nil
	w := walk{pc: address}
	r, _ := u.rule(&w, mappings)
	return r.flags&flagRoot != 0
}
