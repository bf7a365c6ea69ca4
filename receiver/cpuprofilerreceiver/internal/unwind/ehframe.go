// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"math"
)

// registers holds the DWARF numbers of the registers that rules use.
type registers struct {
	sp, fp, ra uint64
	// leafRA reports whether a call puts the return address into a register, not on the
	// stack.
	leafRA bool
}

var errMachine = errors.New("neither x86-64 nor AArch64 code, and no other is unwound")

func registersOf(m elf.Machine) (registers, error) {
	switch m {
	case elf.EM_X86_64:
		return registers{sp: 7, fp: 6, ra: 16}, nil
	case elf.EM_AARCH64:
		return registers{sp: 31, fp: 29, ra: 30, leafRA: true}, nil
	default:
		return registers{}, errMachine
	}
}

var errCut = errors.New("it ends within an entry")

// reader reads a section. Reads beyond the end return zeros and set bad.
type reader struct {
	data []byte
	pos  int
	bad  bool
}

func (r *reader) more() bool { return !r.bad && r.pos < len(r.data) }

func (r *reader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.data)-r.pos) {
		r.bad = true
		return nil
	}
	b := r.data[r.pos:][:n]
	r.pos += int(n)
	return b
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// word reads a number of up to 8 bytes.
func (r *reader) word(bytes uint64) uint64 {
	var b [8]byte
	copy(b[:], r.take(bytes))
	return binary.LittleEndian.Uint64(b[:])
}

func (r *reader) u16() uint16 { return uint16(r.word(2)) }

func (r *reader) u32() uint32 { return uint32(r.word(4)) }

func (r *reader) u64() uint64 { return r.word(8) }

func (r *reader) uleb() uint64 {
	var v uint64
	for shift := 0; ; shift += 7 {
		b := r.u8()
		if shift < 64 {
			v |= uint64(b&0x7f) << shift
		}
		if b < 0x80 {
			return v
		}
	}
}

func (r *reader) sleb() int64 {
	start := r.pos
	v := int64(r.uleb())
	if bits := 7 * (r.pos - start); !r.bad && bits < 64 && r.data[r.pos-1]&0x40 != 0 {
		v |= -1 << bits
	}
	return v
}

// cstring reads a string up to a zero byte.
func (r *reader) cstring() []byte {
	start := r.pos
	for r.u8() != 0 {
	}
	if r.bad {
		return nil
	}
	return r.data[start : r.pos-1]
}

// These constants define the encodings of pointers in .eh_frame (DW_EH_PE_*). An encoding
// consists of a format and a base.
const (
	pointerFormat   = 0x0f
	pointerRelative = 0x70
	pointerIndirect = 0x80
	pointerOmitted  = 0xff

	formatAbsolute = 0x00
	formatUleb     = 0x01
	formatU2       = 0x02
	formatU4       = 0x03
	formatU8       = 0x04
	formatSleb     = 0x09
	formatS2       = 0x0a
	formatS4       = 0x0b
	formatS8       = 0x0c

	relativeToNothing = 0x00
	relativeToPC      = 0x10
)

// pointer reads an encoded pointer. addr is the address of the section.
func (r *reader) pointer(encoding uint8, addr uint64) (uint64, bool) {
	at := addr + uint64(r.pos)
	v, ok := r.number(encoding)
	if !ok || encoding&pointerIndirect != 0 {
		return 0, false
	}
	switch encoding & pointerRelative {
	case relativeToNothing:
		return v, true
	case relativeToPC:
		return v + at, true
	}
	return 0, false
}

// number reads a pointer without adding its base.
func (r *reader) number(encoding uint8) (uint64, bool) {
	var v uint64
	switch encoding & pointerFormat {
	case formatAbsolute, formatU8, formatS8:
		v = r.u64()
	case formatUleb:
		v = r.uleb()
	case formatU2:
		v = uint64(r.u16())
	case formatU4:
		v = uint64(r.u32())
	case formatSleb:
		v = uint64(r.sleb())
	case formatS2:
		v = uint64(int16(r.u16()))
	case formatS4:
		v = uint64(int32(r.u32()))
	default:
		return 0, false
	}
	return v, !r.bad
}

// cie is a common information entry. Several functions share it.
type cie struct {
	codeAlign uint64
	dataAlign int64
	encoding  uint8
	augmented bool
	signal    bool
	// initial is the state at the start of each function. ok is false if the entry is
	// invalid or has unknown parts.
	initial state
	ok      bool
}

// frames reads .eh_frame into a tableBuilder.
type frames struct {
	regs registers
	addr uint64 // address of the section
	to   *tableBuilder
	// terminated reports whether an entry of length 0 ends the section.
	// Other data may follow this entry.
	terminated bool
	// entry is the address at which the program starts.
	entry uint64
	cies  map[int]*cie
	// skipped counts functions that are invalid or have unknown parts.
	skipped int
}

// read reads the section and skips invalid entries. It returns an error if an entry extends
// beyond the end of the section, because the next entry cannot be found.
func (f *frames) read(section []byte) error {
	f.cies = make(map[int]*cie)
	for r := (reader{data: section}); r.more(); {
		start := r.pos
		length := uint64(r.u32())
		if length == 0 {
			if f.terminated {
				return nil
			}
			continue // the terminator of one object file, which some linkers keep
		}
		if length == 0xffffffff {
			length = r.u64()
		}
		at := r.pos
		body := r.take(length)
		if r.bad {
			return errCut
		}
		e := reader{data: section[:at+len(body)], pos: at}
		id := e.u32()
		if e.bad {
			continue
		}
		if id == 0 {
			f.cies[start] = f.readCIE(&e)
			continue
		}
		c := f.cies[at-int(id)]
		if c == nil || !c.ok || !f.readFunction(&e, c) {
			f.skipped++
		}
		if f.to.t.incomplete {
			return nil
		}
	}
	return nil
}

func (f *frames) readCIE(e *reader) *cie {
	c := &cie{}
	version := e.u8()
	if version != 1 && version != 3 && version != 4 {
		return c
	}
	augmentation := e.cstring()
	if version == 4 {
		if e.u8() != 8 || e.u8() != 0 { // sizes of an address and of a segment selector
			return c
		}
	}
	c.codeAlign = e.uleb()
	c.dataAlign = e.sleb()
	ra := uint64(0)
	if version == 1 {
		ra = uint64(e.u8())
	} else {
		ra = e.uleb()
	}
	if ra != f.regs.ra {
		return c
	}
	if len(augmentation) > 0 {
		if augmentation[0] != 'z' {
			return c
		}
		c.augmented = true
		length := e.uleb()
		if e.bad || length > uint64(len(e.data)-e.pos) {
			return c
		}
		end := e.pos + int(length)
		for _, a := range augmentation[1:] {
			switch a {
			case 'R':
				c.encoding = e.u8()
			case 'P':
				encoding := e.u8()
				if encoding == pointerOmitted {
					continue
				}
				if _, ok := e.number(encoding); !ok {
					return c
				}
			case 'L':
				e.u8()
			case 'S':
				c.signal = true
			case 'B', 'G': // return addresses are signed with key B; memory is tagged
			default:
				return c
			}
		}
		if e.bad || e.pos > end {
			return c
		}
		e.pos = end
	}
	if e.bad || c.codeAlign == 0 {
		return c
	}
	c.initial = state{ra: location{kind: locUnknown}}
	if f.regs.leafRA {
		c.initial.ra.kind = locSame
	}
	m := machine{regs: f.regs, cie: c, state: c.initial}
	c.ok = m.run(reader{data: e.data[e.pos:]}, nil)
	c.initial = m.state
	return c
}

func (f *frames) readFunction(e *reader, c *cie) bool {
	start, ok := e.pointer(c.encoding, f.addr)
	if !ok {
		return false
	}
	size, ok := e.number(c.encoding & pointerFormat)
	if !ok {
		return false
	}
	if c.augmented {
		e.take(e.uleb())
	}
	end := start + size
	if e.bad || start == 0 || end < start || !f.to.begin(start, end) {
		return false
	}
	m := machine{regs: f.regs, cie: c, state: c.initial, loc: start}
	if f.entry >= start && f.entry < end {
		m.flags = flagRoot
	}
	if c.signal {
		m.flags |= flagSignal
	}
	code := codeOf{start: start}
	ok = m.run(reader{data: e.data[e.pos:]}, func(addr uint64, r rule) bool {
		code.row(min(addr, end), r)
		return f.to.row(addr, r)
	})
	if !ok {
		// The rest of the function has no usable rule.
		m.state.cfa.kind = cfaBad
	}
	code.row(min(m.loc, end), m.rule())
	f.to.row(m.loc, m.rule())
	code.row(end, rule{})
	code.add(&f.to.t.code)
	return true
}

// codeOf counts the code bytes of one function. It counts code whose caller is found through
// the frame pointer separately from other code.
type codeOf struct {
	start, from uint64
	last        rule
	began       bool
	coverage
	seen bool // whether a row had a frame pointer
}

// These constants are the maximum sizes of prologues and epilogues in bytes.
const (
	maxPrologue = 32
	maxEpilogue = 16
)

// row starts a new row, and counts the bytes of the previous row.
func (c *codeOf) row(addr uint64, r rule) {
	if c.began && addr > c.from {
		n := addr - c.from
		switch {
		case c.last.cfa == cfaFP || c.last.cfa == cfaFPDeref:
			c.framePointer += n
			c.seen = true
		case c.last.cfa == cfaPLT, c.last.cfa == cfaNone, c.last.ra == locNone, c.last.flags != 0:
			// This code does not come from a compiler, so it is not counted.
		case c.seen && n <= maxEpilogue:
		default:
			c.other += n
		}
	}
	c.began, c.from, c.last = true, addr, r
}

// add adds the counts of the function to the counts of the file.
func (c *codeOf) add(to *coverage) {
	if c.seen {
		// The prologue does not count as code without a frame pointer.
		c.other -= min(c.other, maxPrologue)
	}
	to.framePointer += c.framePointer
	to.other += c.other
}

// clamp converts v to 32 bits. It returns false if v does not fit.
func clamp(v int64) (int32, bool) {
	if v < math.MinInt32 || v > math.MaxInt32 {
		return 0, false
	}
	return int32(v), true
}
