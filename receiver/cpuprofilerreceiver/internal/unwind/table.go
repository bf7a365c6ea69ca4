// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// cfaKind is the kind of rule for the canonical frame address (CFA), which is the caller's
// stack pointer.
type cfaKind uint8

const (
	cfaNone    cfaKind = iota // the code has no rule
	cfaBad                    // the rule is not supported
	cfaSP                     // stack pointer + offset
	cfaFP                     // frame pointer + offset
	cfaSPDeref                // word at stack pointer + offset
	cfaFPDeref                // word at frame pointer + offset
	cfaPLT                    // see registers.plt
)

// locationKind is the kind of rule for a register's value in the caller.
type locationKind uint8

const (
	locSame    locationKind = iota // still in the register
	locCFA                         // word at CFA + offset
	locSP                          // word at stack pointer + offset
	locFP                          // word at frame pointer + offset
	locNone                        // undefined; a frame without a return address has no caller
	locUnknown                     // unknown
)

// Flags of a rule.
const (
	// flagSignal means that a signal interrupted the caller. The caller's address is then
	// its next instruction, not a return address.
	flagSignal = 1 << iota
	// flagRoot means that threads start in the code.
	flagRoot
	// flagGo means that the code is Go code, which has frame pointers.
	flagGo
)

// rule describes how to find the caller of a frame.
type rule struct {
	cfaOff, raOff, fpOff int32
	cfa                  cfaKind
	ra, fp               locationKind
	flags                uint8
}

const (
	ruleSize = int64(unsafe.Sizeof(rule{}))
	// maxRules is the maximum number of rules in a table, because the number of a
	// rule has 16 bits. Large programs have a few hundred rules. If a table is
	// full, ruleBad replaces new rules.
	maxRules = 1 << 16
)

// These are the numbers of the rules that every table contains.
const (
	ruleNone = 0
	ruleBad  = 1
)

// segment is an executable segment of an object file.
type segment struct {
	offset, vaddr, size uint64
}

// Table holds the unwind rules of one object file. It is immutable.
type Table struct {
	segments []segment
	// base is the link-time address that pcs are relative to.
	base uint64
	// pcs is sorted. rules[rows[i]] applies to the addresses from pcs[i] up to, but not
	// including, pcs[i+1].
	pcs   []uint32
	rows  []uint16
	rules []rule
	// buckets speeds up searches. It contains the first row for each 1<<shift bytes of
	// code. The last element is the number of rows.
	buckets []uint32
	shift   uint8

	code coverage
	// incomplete reports whether rules are missing because a limit was reached.
	incomplete bool
}

// coverage counts code bytes, separately for code with frame pointers, Go code and other
// code. Bytes of prologues and epilogues are not counted.
type coverage struct {
	framePointer, other, golang uint64
}

// FramePointers reports whether the code keeps frame pointers in at least 90 % of its
// bytes, not counting prologues and epilogues. It returns false for code without rules.
func (t *Table) FramePointers() bool {
	with := t.code.framePointer + t.code.golang
	return with > 0 && with*10 >= (with+t.code.other)*9
}

// Bytes returns the memory that the table uses.
func (t *Table) Bytes() int64 {
	return int64(unsafe.Sizeof(*t)) + int64(cap(t.pcs))*4 + int64(cap(t.rows))*2 + int64(cap(t.rules))*ruleSize +
		int64(cap(t.buckets))*4 + int64(cap(t.segments))*int64(unsafe.Sizeof(segment{}))
}

// address returns the link-time address that is mapped from a file offset.
func (t *Table) address(offset uint64) (uint64, bool) {
	for i := range t.segments {
		if s := &t.segments[i]; offset-s.offset < s.size {
			return offset - s.offset + s.vaddr, true
		}
	}
	return 0, false
}

// in returns the rule for an address in a mapping of the file.
func (t *Table) in(m *samples.Mapping, address uint64) *rule {
	if addr, ok := t.address(address - m.Start + m.FileOffset); ok {
		return t.at(addr)
	}
	return &noRule
}

// at returns the rule for the code at a link-time address.
func (t *Table) at(addr uint64) *rule {
	rel := addr - t.base
	b := rel >> t.shift
	if b+1 >= uint64(len(t.buckets)) {
		return &t.rules[ruleNone]
	}
	// Find the last row that does not start after rel. It may be before the bucket.
	lo, hi := t.buckets[b], t.buckets[b+1]
	for lo < hi {
		mid := (lo + hi) >> 1
		if uint64(t.pcs[mid]) <= rel {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return &t.rules[ruleNone]
	}
	return &t.rules[t.rows[lo-1]]
}

// tableBuilder makes a Table from functions that are added in any order.
type tableBuilder struct {
	t     *Table
	index map[rule]uint16
	// limit is the end of the code, relative to base.
	limit   uint64
	maxRows int

	functions []function
	pcs       []uint32
	rows      []uint16

	// entry is the address at which the program starts. entryKnown reports whether a
	// function that contains entry was added. afterEntry is the address of the next
	// function, or 0.
	entry, afterEntry uint64
	entryKnown        bool
}

// function is a range of addresses, relative to base, with its rows.
type function struct {
	start, end uint32
	row, rows  uint32
}

// newTableBuilder returns a builder for the code in segments. The table will use about
// maxBytes at most. It returns nil if the segments are empty or span more than 4 GiB.
func newTableBuilder(segments []segment, maxBytes int64) *tableBuilder {
	lo, hi := ^uint64(0), uint64(0)
	for _, s := range segments {
		lo, hi = min(lo, s.vaddr), max(hi, s.vaddr+s.size)
	}
	if lo >= hi || hi-lo > 1<<32-1 {
		return nil
	}
	b := &tableBuilder{
		t:     &Table{segments: segments, base: lo},
		index: make(map[rule]uint16),
		limit: hi - lo,
		// A row takes 6 bytes, and every second row also takes a bucket of 4 bytes.
		maxRows: int(min(maxBytes/8, 1<<30)),
	}
	b.rule(rule{})
	b.rule(rule{cfa: cfaBad})
	return b
}

// rule returns the number of a rule. It adds the rule to the table if the rule is new.
func (b *tableBuilder) rule(r rule) uint16 {
	if i, ok := b.index[r]; ok {
		return i
	}
	if len(b.t.rules) >= maxRules {
		b.t.incomplete = true
		return ruleBad
	}
	i := uint16(len(b.t.rules))
	b.t.rules = append(b.t.rules, r)
	b.index[r] = i
	return i
}

// begin adds a function with the link-time addresses [start, end). It returns false if
// the table has no room or if the addresses are not in the segments.
func (b *tableBuilder) begin(start, end uint64) bool {
	switch {
	case start > b.entry && (b.afterEntry == 0 || start < b.afterEntry):
		b.afterEntry = start
	case start <= b.entry && b.entry < end:
		b.entryKnown = true
	}
	start, end = start-b.t.base, end-b.t.base
	if start >= end || end > b.limit {
		return false
	}
	// The number of functions is limited too, because a function uses more memory than a row
	// during the build.
	if len(b.functions) >= b.maxRows {
		b.t.incomplete = true
		return false
	}
	b.functions = append(b.functions, function{start: uint32(start), end: uint32(end), row: uint32(len(b.pcs))})
	return true
}

// row adds a rule to the last function. The rule applies from a link-time address on. The
// rows of a function are added in the order of addresses. A row at the address of the last
// row replaces the last row. row returns false if the table has no room.
func (b *tableBuilder) row(addr uint64, r rule) bool {
	f := &b.functions[len(b.functions)-1]
	rel := addr - b.t.base
	if rel < uint64(f.start) || rel >= uint64(f.end) {
		return true // outside the function
	}
	number := b.rule(r)
	if f.rows > 0 {
		last := len(b.pcs) - 1
		switch {
		case uint32(rel) < b.pcs[last] || b.rows[last] == number:
			return true
		case uint32(rel) == b.pcs[last]:
			b.rows[last] = number
			return true
		}
	}
	if len(b.pcs) >= b.maxRows {
		b.t.incomplete = true
		return false
	}
	b.pcs = append(b.pcs, uint32(rel))
	b.rows = append(b.rows, number)
	f.rows++
	return true
}

// finish builds the table from the functions, sorted by address. If functions overlap, the
// function that starts first takes precedence. If functions start at the same address, the
// function that was added first takes precedence.
func (b *tableBuilder) finish() *Table {
	t := b.t
	slices.SortStableFunc(b.functions, func(x, y function) int { return cmp.Compare(x.start, y.start) })
	end := uint32(0)
	put := func(pc uint32, number uint16) {
		if n := len(t.rows); n > 0 && t.rows[n-1] == number || n == 0 && number == ruleNone {
			return
		}
		t.pcs = append(t.pcs, pc)
		t.rows = append(t.rows, number)
	}
	t.pcs = make([]uint32, 0, len(b.pcs)+1)
	t.rows = make([]uint16, 0, len(b.pcs)+1)
	for i := range b.functions {
		f := &b.functions[i]
		if f.start < end || f.rows == 0 {
			continue
		}
		if f.start > end {
			put(end, ruleNone)
		}
		for j := f.row; j < f.row+f.rows; j++ {
			put(b.pcs[j], b.rows[j])
		}
		end = f.end
	}
	put(end, ruleNone)
	t.pcs, t.rows, t.rules = slices.Clone(t.pcs), slices.Clone(t.rows), slices.Clone(t.rules)

	t.shift = 6
	for b.limit>>t.shift > uint64(len(t.pcs))/2+1 {
		t.shift++
	}
	t.buckets = make([]uint32, b.limit>>t.shift+2)
	row := uint32(0)
	for i := range t.buckets {
		for int(row) < len(t.pcs) && uint64(t.pcs[row]) < uint64(i)<<t.shift {
			row++
		}
		t.buckets[i] = row
	}
	return t
}
