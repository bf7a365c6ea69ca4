// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"bytes"
	"cmp"
	"debug/elf"
	"fmt"
	"slices"

	"golang.org/x/arch/x86/x86asm"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
)

// maxCode is the maximum number of bytes of code in one file for which rules are derived
// from instructions. musl's libc has 400 KiB of code.
const maxCode = 2 << 20

// rtSigreturn is the number of the system call rt_sigreturn on x86-64.
const rtSigreturn = 15

// effect is the effect of an instruction on the stack pointer or the frame pointer.
type effect uint8

const (
	other     effect = iota
	moveSP           // adds in.by to the depth
	pushFP           // stores the frame pointer
	popFP            // restores the frame pointer
	frameFP          // copies the stack pointer to the frame pointer
	restoreSP        // sets the depth to base + in.by
	leave            // restores both pointers
	clearFP          // zeroes the frame pointer; the x86-64 ABI thus marks the outermost frame
	loseSP           // moves the stack pointer by an unknown number of bytes
	sigreturn        // starts the code that a signal handler returns to
)

// instruction is a decoded instruction.
type instruction struct {
	at     uint64
	target uint64 // target of a direct jump or call; 0 for other instructions
	by     int32
	effect effect
	call   bool
	// ends reports whether execution never continues at the next instruction. table reports
	// whether the instruction may be a jump through a table of addresses. padding reports
	// whether the instruction may only fill the space between functions or before loops.
	ends, table, padding bool
}

// frameState is the state of a function's frame before an instruction. The zero value is
// the unknown state.
type frameState struct {
	known bool
	// depth is the number of bytes by which the stack pointer is below its value at the
	// function's entry. lost reports whether the depth is unknown.
	depth int32
	lost  bool
	// saved is the depth at which the caller's frame pointer is stored. It is 0 if the
	// frame pointer is not stored.
	saved int32
	// framed reports whether the frame pointer holds an earlier value of the stack pointer.
	// base is the depth at which the stack pointer had this value.
	framed       bool
	base         int32
	root, signal bool
}

// addCode adds rules for x86-64 code without unwind tables, such as musl's libc and
// hand-written assembly. It derives the rules from the instructions that move the stack
// pointer.
func (b *tableBuilder) addCode(f *elffile.File) error {
	if f.Machine != elf.EM_X86_64 || b.t.code.golang > 0 {
		return nil
	}
	left, tables := uint64(maxCode), b.t.code
	for _, gap := range b.gaps() {
		offset, _, ok := f.Offset(gap.start)
		if size := gap.end - gap.start; !ok || size > left {
			b.t.incomplete = b.t.incomplete || ok
			continue
		}
		code := make([]byte, gap.end-gap.start)
		left -= uint64(len(code))
		f.SetBudget(uint64(len(code)))
		if err := f.Read(code, offset); err != nil {
			return fmt.Errorf("reading code without a table: %w", err)
		}
		if !b.begin(gap.start, gap.end) {
			return nil
		}
		b.derive(decode(code, gap.start))
	}
	if tables != (coverage{}) {
		b.t.code = tables // code without tables, such as crt1.o, is not typical of the program
	}
	return nil
}

// addressRange is the range of addresses from start (inclusive) to end (exclusive).
type addressRange struct{ start, end uint64 }

// gaps returns the ranges of code without a function that are larger than padding.
func (b *tableBuilder) gaps() (gaps []addressRange) {
	const padding = 16
	covered := slices.Clone(b.functions)
	slices.SortFunc(covered, func(x, y function) int { return cmp.Compare(x.start, y.start) })
	for _, s := range b.t.segments {
		at, end := s.vaddr, s.vaddr+s.size
		add := func(to uint64) {
			if to > at+padding {
				gaps = append(gaps, addressRange{at, min(to, end)})
			}
		}
		for _, c := range covered {
			start, limit := b.t.base+uint64(c.start), b.t.base+uint64(c.end)
			if limit <= at {
				continue
			}
			if start >= end {
				break
			}
			add(start)
			at = max(at, limit)
		}
		if at < end {
			add(end)
		}
	}
	return gaps
}

// endbr64 is the first instruction of functions that are called indirectly. x86asm
// does not support this instruction.
var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// decode decodes code at a link-time address. A byte that starts no valid instruction
// counts as an instruction that ends the code before it.
func decode(code []byte, at uint64) (all []instruction) {
	for len(code) > 0 {
		in := instruction{at: at, ends: true}
		decoded, err := x86asm.Decode(code, 64)
		size := max(decoded.Len, 1)
		switch {
		case bytes.HasPrefix(code, endbr64):
			in.ends, size = false, len(endbr64)
		case err == nil:
			in.fill(&decoded)
		}
		all = append(all, in)
		code, at = code[size:], at+uint64(size)
	}
	return all
}

func (in *instruction) fill(d *x86asm.Inst) {
	in.ends = false
	if rel, ok := d.Args[0].(x86asm.Rel); ok {
		in.target = in.at + uint64(d.Len) + uint64(int64(rel))
	}
	first, second := d.Args[0], d.Args[1]
	immediate, isImmediate := second.(x86asm.Imm)
	switch d.Op {
	case x86asm.CALL:
		in.call = true
	case x86asm.JMP:
		m, indirect := first.(x86asm.Mem)
		_, register := first.(x86asm.Reg)
		in.ends, in.table = true, register || indirect && m.Index != 0
	case x86asm.RET, x86asm.HLT, x86asm.UD2:
		in.ends = true
	case x86asm.NOP, x86asm.INT, x86asm.XCHG:
		in.padding = d.Op != x86asm.XCHG || first == second
	case x86asm.PUSH, x86asm.PUSHFQ:
		in.effect, in.by = moveSP, 8
		if first == x86asm.RBP {
			in.effect = pushFP
		}
	case x86asm.POP, x86asm.POPFQ:
		in.effect, in.by = moveSP, -8
		if first == x86asm.RBP {
			in.effect = popFP
		}
	case x86asm.LEAVE:
		in.effect = leave
	case x86asm.XOR:
		if first == second && (first == x86asm.EBP || first == x86asm.RBP) {
			in.effect = clearFP
		}
	case x86asm.MOV:
		switch {
		case first == x86asm.RBP && second == x86asm.RSP:
			in.effect = frameFP
		case first == x86asm.RSP && second == x86asm.RBP:
			in.effect = restoreSP
		case first == x86asm.RSP:
			in.effect = loseSP
		case (first == x86asm.RAX || first == x86asm.EAX) && second == x86asm.Imm(rtSigreturn):
			in.effect = sigreturn
		}
	case x86asm.LEA:
		if m, ok := second.(x86asm.Mem); ok && first == x86asm.RSP {
			in.effect = loseSP
			switch {
			case m.Index != 0:
			case m.Base == x86asm.RSP:
				in.effect, in.by = moveSP, int32(-m.Disp)
			case m.Base == x86asm.RBP:
				in.effect, in.by = restoreSP, int32(-m.Disp)
			}
		}
	case x86asm.SUB, x86asm.ADD:
		if first == x86asm.RSP {
			in.effect, in.by = moveSP, int32(immediate)
			if d.Op == x86asm.ADD {
				in.by = -in.by
			}
			if !isImmediate {
				in.effect = loseSP
			}
		}
	default:
		if first == x86asm.RSP && d.Op != x86asm.CMP && d.Op != x86asm.TEST {
			in.effect = loseSP
		}
	}
}

// derive adds the rules of decoded code. A function starts at the target of a call. It also
// starts after the end of another function, or after a call followed by padding, unless the
// instruction there is the target of a jump.
//
// The target of a jump has the frame state of the jump, which may come later in the code.
// Therefore, two passes find the states, and the third pass adds the rules.
func (b *tableBuilder) derive(code []instruction) {
	begins := make(map[uint64]bool)
	jumps := make(map[uint64]frameState)
	for i := range code {
		switch in := &code[i]; {
		case in.call:
			begins[in.target] = true
		case in.target != 0:
			jumps[in.target] = frameState{}
		}
	}
	for pass := range 3 {
		var s, table frameState
		ended, called, padded := true, false, false
		for i := range code {
			in := &code[i]
			state, jumped := jumps[in.at]
			if in.padding && !jumped && (ended || called) {
				padded = true
				continue
			}
			apart := ended || called && padded && in.at%16 == 0
			switch {
			case in.at == b.entry:
				s = frameState{known: true, root: true}
			case state.known && !begins[in.at]:
				s = state
			case ended && !jumped && table.known && (in.effect != moveSP && in.effect != pushFP || in.by < 0):
				s = table
			case i == 0, begins[in.at], apart && !jumped && pass > 0:
				s, table = frameState{known: true}, frameState{}
			case ended, apart && pass == 0:
				s = frameState{}
			}
			if pass == 2 {
				b.derived(in, &s, code[min(i+1, len(code)-1)].at-in.at)
			}
			if in.target != 0 && !in.call && s.known && !jumps[in.target].known {
				jumps[in.target] = s
			}
			if in.table && s.depth > 0 {
				table = s
			}
			s.apply(in)
			ended, called, padded = in.ends, in.call, false
		}
	}
}

// derived adds the rule for an instruction. size is the instruction's size in bytes.
func (b *tableBuilder) derived(in *instruction, s *frameState, size uint64) {
	if s.framed {
		b.t.code.framePointer += size
	} else {
		b.t.code.other += size
	}
	if in.effect == sigreturn && s.depth == 0 {
		s.signal = true
		b.row(in.at-1, signalAMD64) // the handler returns to this instruction
	}
	b.row(in.at, s.rule())
}

// apply applies the effect of an instruction to the state.
func (s *frameState) apply(in *instruction) {
	switch in.effect {
	case moveSP:
		s.depth += in.by
	case pushFP:
		s.depth += in.by
		if s.saved == 0 {
			s.saved = s.depth
		}
	case popFP:
		s.depth += in.by
		s.saved, s.framed = 0, false
	case frameFP:
		s.framed, s.base = !s.lost, s.depth
	case restoreSP:
		s.depth, s.lost = s.base+in.by, s.lost && !s.framed
	case leave:
		s.depth, s.lost = s.base-8, !s.framed
		s.saved, s.framed = 0, false
	case clearFP:
		s.root = s.root || s.saved == 0
	case loseSP:
		s.lost = true
	case other, sigreturn:
	}
}

// rule returns the rule that finds the caller of a frame in this state.
func (s *frameState) rule() rule {
	r := rule{cfa: cfaSP, cfaOff: s.depth + 8, ra: locCFA, raOff: -8}
	if s.saved > 0 {
		r.fp, r.fpOff = locCFA, -8-s.saved
	}
	switch {
	case s.root:
		return rule{cfa: cfaBad, flags: flagRoot}
	case s.signal:
		return signalAMD64
	case s.framed:
		r.cfa, r.cfaOff = cfaFP, s.base+8
	case !s.known, s.lost, s.depth < 0:
		return rule{cfa: cfaBad}
	}
	return r
}
