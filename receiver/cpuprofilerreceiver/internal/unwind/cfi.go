// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import "bytes"

// location is the rule for a register's value in the caller.
type location struct {
	kind locationKind
	off  int64
}

// base is the rule for the canonical frame address (CFA).
type base struct {
	kind cfaKind
	off  int64
}

// state is a row of the table that call frame instructions describe. It contains
// only the columns that rules need.
type state struct {
	cfa    base
	ra, fp location
}

// maxRemembered is the maximum number of states that are remembered at the same time.
// Compilers need only one.
const maxRemembered = 16

// machine executes call frame instructions.
type machine struct {
	regs  registers
	cie   *cie
	state state
	loc   uint64
	flags uint8

	remembered [maxRemembered]state
	depth      int
}

// These are the call frame instructions of DWARF 5, section 7.24, and the extensions of GNU
// and ARM.
const (
	cfaAdvanceLoc = 0x40 // the lower 6 bits are the operand
	cfaOffset     = 0x80 // the lower 6 bits are the operand
	cfaRestore    = 0xc0 // the lower 6 bits are the operand
	cfaHigh       = 0xc0

	cfaNop              = 0x00
	cfaSetLoc           = 0x01
	cfaAdvanceLoc1      = 0x02
	cfaAdvanceLoc2      = 0x03
	cfaAdvanceLoc4      = 0x04
	cfaOffsetExtended   = 0x05
	cfaRestoreExtended  = 0x06
	cfaUndefined        = 0x07
	cfaSameValue        = 0x08
	cfaRegister         = 0x09
	cfaRememberState    = 0x0a
	cfaRestoreState     = 0x0b
	cfaDefCFA           = 0x0c
	cfaDefCFARegister   = 0x0d
	cfaDefCFAOffset     = 0x0e
	cfaDefCFAExpression = 0x0f
	cfaExpression       = 0x10
	cfaOffsetExtendedSF = 0x11
	cfaDefCFASF         = 0x12
	cfaDefCFAOffsetSF   = 0x13
	cfaValOffset        = 0x14
	cfaValOffsetSF      = 0x15
	cfaValExpression    = 0x16
	cfaNegateRAStatePC  = 0x2c
	cfaNegateRAState    = 0x2d // the same number as SPARC's DW_CFA_GNU_window_save
	cfaGNUArgsSize      = 0x2e
	cfaGNUNegOffset     = 0x2f
)

// run executes instructions and calls emit with each complete row except the last one.
// It reports whether all instructions were valid and known, and all calls of emit
// returned true. emit is nil for the instructions of a common information entry, which
// must not contain several rows.
func (m *machine) run(r reader, emit func(addr uint64, r rule) bool) bool {
	advance := func(units uint64) bool {
		to := m.loc + units*m.cie.codeAlign
		if emit == nil || to < m.loc || !emit(m.loc, m.rule()) {
			return false
		}
		m.loc = to
		return true
	}
	for r.more() {
		if !m.execute(&r, advance) || r.bad {
			return false
		}
	}
	return !r.bad
}

// execute executes the next instruction. advance starts a new row after a number of units of
// code.
func (m *machine) execute(r *reader, advance func(units uint64) bool) bool {
	align := m.cie.dataAlign
	op, operand := r.u8(), uint64(0)
	if op&cfaHigh != 0 {
		op, operand = op&cfaHigh, uint64(op&^cfaHigh)
	}
	switch op {
	case cfaAdvanceLoc:
		return advance(operand)
	case cfaOffset:
		m.set(operand, location{locCFA, int64(r.uleb()) * align})
	case cfaRestore:
		m.restore(operand)
	case cfaNop, cfaNegateRAState, cfaNegateRAStatePC:
	case cfaSetLoc:
		return false // relative to the section's address; no compiler writes it
	case cfaAdvanceLoc1:
		return advance(uint64(r.u8()))
	case cfaAdvanceLoc2:
		return advance(uint64(r.u16()))
	case cfaAdvanceLoc4:
		return advance(uint64(r.u32()))
	case cfaOffsetExtended:
		m.set(r.uleb(), location{locCFA, int64(r.uleb()) * align})
	case cfaOffsetExtendedSF:
		m.set(r.uleb(), location{locCFA, r.sleb() * align})
	case cfaGNUNegOffset:
		m.set(r.uleb(), location{locCFA, -int64(r.uleb()) * align})
	case cfaRestoreExtended:
		m.restore(r.uleb())
	case cfaUndefined:
		m.set(r.uleb(), location{kind: locNone})
	case cfaSameValue:
		m.set(r.uleb(), location{kind: locSame})
	case cfaRegister:
		reg, from := r.uleb(), r.uleb()
		if reg == from {
			m.set(reg, location{kind: locSame})
		} else {
			m.set(reg, location{kind: locUnknown})
		}
	case cfaValOffset, cfaValOffsetSF:
		reg := r.uleb()
		r.uleb()
		m.set(reg, location{kind: locUnknown})
	case cfaExpression:
		reg := r.uleb()
		m.set(reg, m.regs.locationOf(r.take(r.uleb())))
	case cfaValExpression:
		reg := r.uleb()
		r.take(r.uleb())
		m.set(reg, location{kind: locUnknown})
	case cfaRememberState:
		if m.depth == maxRemembered {
			return false
		}
		m.remembered[m.depth] = m.state
		m.depth++
	case cfaRestoreState:
		if m.depth == 0 {
			return false
		}
		m.depth--
		m.state = m.remembered[m.depth]
	case cfaDefCFA:
		m.defCFA(r.uleb(), int64(r.uleb()))
	case cfaDefCFASF:
		m.defCFA(r.uleb(), r.sleb()*align)
	case cfaDefCFARegister:
		m.defCFA(r.uleb(), m.state.cfa.off)
	case cfaDefCFAOffset:
		m.state.cfa.off = int64(r.uleb())
	case cfaDefCFAOffsetSF:
		m.state.cfa.off = r.sleb() * align
	case cfaDefCFAExpression:
		m.state.cfa = m.regs.cfaOf(r.take(r.uleb()))
	case cfaGNUArgsSize:
		r.uleb()
	default:
		return false
	}
	return true
}

func (m *machine) defCFA(reg uint64, off int64) {
	kind := cfaBad
	switch reg {
	case m.regs.sp:
		kind = cfaSP
	case m.regs.fp:
		kind = cfaFP
	}
	m.state.cfa = base{kind, off}
}

func (m *machine) set(reg uint64, l location) {
	switch reg {
	case m.regs.ra:
		m.state.ra = l
	case m.regs.fp:
		m.state.fp = l
	}
}

func (m *machine) restore(reg uint64) {
	switch reg {
	case m.regs.ra:
		m.state.ra = m.cie.initial.ra
	case m.regs.fp:
		m.state.fp = m.cie.initial.fp
	}
}

// rule returns the state as a rule of a table.
func (m *machine) rule() rule {
	s := &m.state
	r := rule{cfa: s.cfa.kind, ra: s.ra.kind, fp: s.fp.kind, flags: m.flags}
	var ok [3]bool
	r.cfaOff, ok[0] = clamp(s.cfa.off)
	r.raOff, ok[1] = clamp(s.ra.off)
	r.fpOff, ok[2] = clamp(s.fp.off)
	if s.ra.kind == locNone {
		return rule{cfa: cfaBad, ra: locNone, flags: m.flags | flagRoot}
	}
	if m.flags&flagRoot != 0 {
		return rule{cfa: cfaBad, flags: m.flags}
	}
	if !ok[0] || !ok[1] || s.cfa.kind == cfaNone || s.cfa.kind == cfaBad || s.ra.kind == locUnknown ||
		s.ra.kind == locSame && !m.regs.leafRA {
		return rule{cfa: cfaBad}
	}
	if !ok[2] {
		r.fp, r.fpOff = locUnknown, 0
	}
	if m.flags&flagSignal != 0 && m.regs.leafRA {
		return signalARM64
	}
	return r
}

// signalARM64 is the rule for the code that a signal handler returns to. The rule in the
// kernel's vdso would skip the interrupted function, and find its caller. signalARM64 finds
// the interrupted function through the signal frame at the stack pointer. This frame has
// 128 bytes of siginfo, 184 other bytes, and the registers x0 to x30, sp and pc.
var signalARM64 = rule{
	cfa: cfaSPDeref, cfaOff: 312 + 8*31,
	ra: locSP, raOff: 312 + 8*32,
	fp: locSP, fpOff: 312 + 8*29,
	flags: flagSignal,
}

// These are the operations of DWARF expressions that are used below.
const (
	opDeref      = 0x06
	opPlusUconst = 0x23
	opBreg0      = 0x70
)

// cfaOf returns the rule for the CFA that an expression computes. It supports register +
// offset, dereferenced or not, and the expression that linkers write for procedure linkage
// tables.
func (regs registers) cfaOf(expr []byte) base {
	if off, ok := regs.plt(expr); ok {
		return base{cfaPLT, off}
	}
	reg, off, rest, ok := breg(expr)
	if !ok {
		return base{kind: cfaBad}
	}
	deref := len(rest) == 1 && rest[0] == opDeref
	if !deref && len(rest) > 0 {
		return base{kind: cfaBad}
	}
	switch {
	case reg == regs.sp && deref:
		return base{cfaSPDeref, off}
	case reg == regs.fp && deref:
		return base{cfaFPDeref, off}
	case reg == regs.sp:
		return base{cfaSP, off}
	case reg == regs.fp:
		return base{cfaFP, off}
	}
	return base{kind: cfaBad}
}

// locationOf returns the location of a register that an expression describes. It supports
// only register + offset.
func (regs registers) locationOf(expr []byte) location {
	reg, off, rest, ok := breg(expr)
	switch {
	case !ok || len(rest) > 0:
	case reg == regs.sp:
		return location{locSP, off}
	case reg == regs.fp:
		return location{locFP, off}
	}
	return location{kind: locUnknown}
}

// breg decodes a DW_OP_bregN with its offset, and an optional DW_OP_plus_uconst after it.
func breg(expr []byte) (reg uint64, off int64, rest []byte, ok bool) {
	r := reader{data: expr}
	op := r.u8()
	if op < opBreg0 || op > opBreg0+31 {
		return 0, 0, nil, false
	}
	off = r.sleb()
	if r.more() && r.data[r.pos] == opPlusUconst {
		r.u8()
		off += int64(r.uleb())
	}
	return uint64(op - opBreg0), off, expr[r.pos:], !r.bad
}

// plt recognizes the expression for procedure linkage tables of x86-64, rsp+8 + ((rip & 15)
// >= N) << 3. From byte N of the 16-byte entry on, the CFA is 8 bytes further, because the
// entry has pushed its number. plt returns N.
func (regs registers) plt(expr []byte) (n int64, ok bool) {
	const at, lit0, lit15 = 6, 0x30, 0x3f
	pattern := []byte{opBreg0 + 7, 8, opBreg0 + 16, 0, lit15, 0x1a, 0, 0x2a, lit0 + 3, 0x24, 0x22}
	if regs.leafRA || len(expr) != len(pattern) || expr[at] < lit0 || expr[at] > lit15 {
		return 0, false
	}
	return int64(expr[at] - lit0), bytes.Equal(expr[:at], pattern[:at]) && bytes.Equal(expr[at+1:], pattern[at+1:])
}
