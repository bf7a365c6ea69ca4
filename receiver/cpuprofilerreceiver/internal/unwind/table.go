// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"slices"
	"unsafe"
)

// cfaKind says how the canonical frame address is found: the value that the
// stack pointer has in the caller.
type cfaKind uint8

const (
	cfaNone    cfaKind = iota // nothing is known about this code
	cfaBad                    // it is known, and cannot be followed
	cfaSP                     // the stack pointer and an offset
	cfaFP                     // the frame pointer and an offset
	cfaSPDeref                // what is stored at the stack pointer and an offset
	cfaFPDeref                // what is stored at the frame pointer and an offset
	cfaPLT                    // what an entry of a procedure linkage table has pushed by then
)

// where says where a register of the caller is.
type where uint8

const (
	whereSame    where = iota // it was not changed
	whereCFA                  // at the canonical frame address and an offset
	whereSP                   // at the stack pointer and an offset
	whereFP                   // at the frame pointer and an offset
	whereNowhere              // it has no value: of a return address, there is no caller
	whereUnknown              // it cannot be followed
)

// Flags of a rule.
const (
	// flagSignal says that the caller was interrupted: its address is that of
	// the instruction, not of one after a call.
	flagSignal = 1 << iota
	// flagRoot says that this is where threads begin.
	flagRoot
	// flagGo says that the code is Go's, which keeps frame pointers.
	flagGo
)

// rule is how to get from a frame to its caller.
type rule struct {
	cfaOff, raOff, fpOff int32
	cfa                  cfaKind
	ra, fp               where
	flags                uint8
}

const (
	ruleSize = int64(unsafe.Sizeof(rule{}))
	// maxRules is how many rules a row can name. Large programs have some
	// hundreds; at the bound what is new cannot be followed.
	maxRules = 1 << 16
)

// The rules that every table has.
const (
	ruleNone = 0
	ruleBad  = 1
)

// segment is a part of an object file that is mapped to be executed.
type segment struct {
	offset, vaddr, size uint64
}

// Table is what is known about the code of one object file. It does not change.
type Table struct {
	segments []segment
	// base is the link-time address that pcs are relative to.
	base uint64
	// pcs is sorted; the rule rules[rows[i]] holds from pcs[i] to pcs[i+1].
	pcs   []uint32
	rows  []uint16
	rules []rule
	// buckets are the first row of each 1<<shift bytes of code, and the number
	// of rows, so that a search has little to look at.
	buckets []uint32
	shift   uint8

	buildID string
	code    coverage
	// incomplete says that a bound was hit.
	incomplete bool
}

// coverage counts bytes of code, prologues and epilogues left out.
type coverage struct {
	framePointer, other, golang uint64
}

// FramePointers says whether the code keeps frame pointers: after the prologue
// at least 90 % of its bytes find the caller's frame through one. Code that
// nothing is known about counts as having none.
func (t *Table) FramePointers() bool {
	with := t.code.framePointer + t.code.golang
	return with > 0 && with*10 >= (with+t.code.other)*9
}

// BuildID is the GNU build id in hex, or empty.
func (t *Table) BuildID() string { return t.buildID }

// Bytes is the memory held.
func (t *Table) Bytes() int64 {
	return int64(unsafe.Sizeof(*t)) + int64(cap(t.pcs))*4 + int64(cap(t.rows))*2 + int64(cap(t.rules))*ruleSize +
		int64(cap(t.buckets))*4 + int64(cap(t.segments))*int64(unsafe.Sizeof(segment{})) + int64(len(t.buildID))
}

// Rows is the number of ranges of addresses with a rule of their own.
func (t *Table) Rows() int { return len(t.pcs) }

// address is the link-time address of what is at an offset of the file.
func (t *Table) address(offset uint64) (uint64, bool) {
	for i := range t.segments {
		if s := &t.segments[i]; offset-s.offset < s.size {
			return offset - s.offset + s.vaddr, true
		}
	}
	return 0, false
}

// at is the rule for the code at a link-time address.
func (t *Table) at(addr uint64) *rule {
	rel := addr - t.base
	b := rel >> t.shift
	if b+1 >= uint64(len(t.buckets)) {
		return &t.rules[ruleNone]
	}
	// The row that holds at rel is the last one not above it: among the
	// bucket's own, or the last before them.
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

// tableBuilder makes a Table from rows in any order of address.
type tableBuilder struct {
	t     *Table
	index map[rule]uint16
	// limit is the address of the end of the code, relative to base.
	limit   uint64
	maxRows int
}

func newTableBuilder(segments []segment, maxBytes int64) (*tableBuilder, bool) {
	lo, hi := ^uint64(0), uint64(0)
	for _, s := range segments {
		lo, hi = min(lo, s.vaddr), max(hi, s.vaddr+s.size)
	}
	if lo >= hi || hi-lo > 1<<32-1 {
		return nil, false
	}
	b := &tableBuilder{
		t:     &Table{segments: segments, base: lo},
		index: make(map[rule]uint16),
		limit: hi - lo,
		// Rows, a bucket for every second one, and what the slices have spare.
		maxRows: int(min(maxBytes/10, 1<<30)),
	}
	b.rule(rule{})
	b.rule(rule{cfa: cfaBad})
	return b, true
}

// rule is the number of a rule.
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

// covers says whether code may be at a link-time address.
func (b *tableBuilder) covers(addr uint64) bool { return addr-b.t.base < b.limit }

// row says that a rule holds from the link-time address on. Rows come in order;
// one at the address of the last replaces it.
func (b *tableBuilder) row(addr uint64, number uint16) bool {
	t := b.t
	rel := uint32(addr - t.base)
	if n := len(t.pcs); n > 0 {
		if rel < t.pcs[n-1] {
			return true // of something that lies in what another one covers
		}
		if rel == t.pcs[n-1] {
			if n > 1 && t.rows[n-2] == number {
				t.pcs, t.rows = t.pcs[:n-1], t.rows[:n-1]
			} else {
				t.rows[n-1] = number
			}
			return true
		}
		if t.rows[n-1] == number {
			return true
		}
	}
	if len(t.pcs) >= b.maxRows {
		t.incomplete = true
		return false
	}
	t.pcs = append(t.pcs, rel)
	t.rows = append(t.rows, number)
	return true
}

// finish makes the buckets and gives the memory back that is not needed.
func (b *tableBuilder) finish() *Table {
	t := b.t
	t.pcs, t.rows, t.rules = slices.Clip(slices.Clone(t.pcs)), slices.Clip(slices.Clone(t.rows)), slices.Clip(slices.Clone(t.rules))
	t.shift = 6
	for b.limit>>t.shift > uint64(len(t.pcs))/2+1 {
		t.shift++
	}
	n := b.limit>>t.shift + 1
	t.buckets = make([]uint32, n+1)
	row := uint32(0)
	for i := range t.buckets {
		for int(row) < len(t.pcs) && uint64(t.pcs[row]) < uint64(i)<<t.shift {
			row++
		}
		t.buckets[i] = row
	}
	t.buckets[n] = uint32(len(t.pcs))
	return t
}
