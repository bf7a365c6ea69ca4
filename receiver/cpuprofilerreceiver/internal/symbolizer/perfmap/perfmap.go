// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package perfmap understands the files perf-PID.map in which runtimes tell
// what code they have generated: an address, a size and a name per line, in the
// order in which it was generated. It reads bytes and opens nothing.
package perfmap

import (
	"bytes"
	"cmp"
	"math"
	"slices"
)

const (
	// maxName is where names are cut. Longer ones are of generic types nested
	// into each other, whose ends tell nobody anything.
	maxName = 1 << 10
	// maxCode bounds the code of one entry: no runtime generates a gigabyte for
	// one function, and one that claims to would hide all others.
	maxCode = 1 << 30
	// entrySize is what an entry takes beside its name, in a Map and in the
	// Index made of it.
	entrySize = 24 + 24
)

// entry is the code that a name is of.
type entry struct {
	start uint64
	size  uint32
	// name is an offset into the text, where a newline ends it.
	name uint32
	// number is the greater the later the entry came.
	number uint32
}

func (e entry) end() uint64 { return e.start + uint64(e.size) }

// Map is one file as far as it was read. It belongs to one goroutine.
type Map struct {
	limit   int64
	entries []entry // without overlaps and by address, but for those from sorted on
	sorted  int
	text    []byte
	number  uint32
	full    bool
}

// New returns an empty Map that takes up to limit bytes of memory, together with
// the Index made of it.
func New(limit int64) *Map { return &Map{limit: limit} }

// Add takes more of the file: whole lines, or what is left of the last one. It
// reports how many bytes it took: what follows the last newline is to be given
// again, with more. Lines that are no entries are passed over.
func (m *Map) Add(b []byte) (taken int) {
	for {
		n := bytes.IndexByte(b[taken:], '\n')
		if n < 0 {
			return taken
		}
		m.line(b[taken : taken+n])
		taken += n + 1
	}
}

func (m *Map) line(b []byte) {
	start, size, name, ok := parse(b)
	if !ok {
		return
	}
	if m.full {
		return
	}
	if m.bytes()+int64(entrySize+len(name)+1) > m.limit || len(m.text)+len(name) >= math.MaxUint32 {
		m.settle() // what was replaced need not be held
		// Where little was, the next lines would need this again.
		if m.bytes() > m.limit/8*7 {
			m.full = true
			return
		}
	}
	m.number++
	m.entries = append(m.entries, entry{start: start, size: size, name: uint32(len(m.text)), number: m.number})
	m.text = append(append(m.text, name...), '\n')
}

// bytes is the memory held, with what an Index shares of it.
func (m *Map) bytes() int64 { return int64(len(m.entries))*entrySize + int64(len(m.text)) }

// parse takes a line apart.
func parse(b []byte) (start uint64, size uint32, name []byte, ok bool) {
	b = bytes.TrimRight(b, "\r")
	start, b, ok = hex(b)
	if !ok {
		return 0, 0, nil, false
	}
	length, name, ok := hex(b)
	if !ok || length == 0 || length > maxCode || start+length < start || len(name) == 0 {
		return 0, 0, nil, false
	}
	return start, uint32(length), name[:min(len(name), maxName)], true
}

// hex reads a number and the blank behind it.
func hex(b []byte) (n uint64, rest []byte, ok bool) {
	if len(b) > 1 && b[0] == '0' && (b[1] == 'x' || b[1] == 'X') {
		b = b[2:]
	}
	for i, c := range b {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		case c == ' ' && i > 0:
			return n, b[i+1:], true
		default:
			return 0, nil, false
		}
		if n>>60 != 0 {
			return 0, nil, false
		}
		n = n<<4 | uint64(c)
	}
	return 0, nil, false
}

// settle sorts the entries and removes those that later ones took the place of.
// Code is freed as a whole, so an entry is gone as soon as a part of it is reused.
// Where what replaced it was replaced too it may be back: nothing runs there.
func (m *Map) settle() {
	if m.sorted == len(m.entries) {
		return
	}
	// The slices of the last Index stay as they are.
	all := slices.Clone(m.entries)
	slices.SortFunc(all, func(a, b entry) int {
		if c := cmp.Compare(a.start, b.start); c != 0 {
			return c
		}
		return cmp.Compare(a.number, b.number)
	})
	kept, names := all[:0], 0
	for _, e := range all {
		if n := len(kept); n > 0 && kept[n-1].end() > e.start {
			if kept[n-1].number > e.number {
				continue
			}
			kept = kept[:n-1]
		}
		kept = append(kept, e)
	}
	for _, e := range kept {
		names += len(at(m.text, e.name)) + 1
	}
	m.entries, m.sorted = kept, len(kept)
	if len(m.text) > 2*names {
		text := make([]byte, 0, names)
		for i, e := range kept {
			kept[i].name = uint32(len(text))
			text = append(append(text, at(m.text, e.name)...), '\n')
		}
		m.text = text
	}
}

func at(text []byte, name uint32) []byte {
	rest := text[name:]
	return rest[:bytes.IndexByte(rest, '\n')]
}

// Full says that the memory was used up: entries were left out, and those that
// come will be.
func (m *Map) Full() bool { return m.full }

// Index returns what the Map says now. It does not change when more is added.
func (m *Map) Index() *Index {
	m.settle()
	m.entries = slices.Clip(m.entries) // so that what is added goes elsewhere
	return &Index{entries: m.entries, text: m.text, size: m.bytes()}
}

// Index finds names. Any number of goroutines may use it.
type Index struct {
	entries []entry
	text    []byte
	size    int64
}

// Len is the number of entries, Bytes what they take, the Map included.
func (x *Index) Len() int { return len(x.entries) }

// Bytes is the memory that the Index and its Map take.
func (x *Index) Bytes() int64 { return x.size }

// Find returns the name of the code at pc; nil where there is none.
func (x *Index) Find(pc uint64) []byte {
	lo, hi := 0, len(x.entries) // the last entry whose start is not above
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if x.entries[mid].start <= pc {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 || pc >= x.entries[lo-1].end() {
		return nil
	}
	return at(x.text, x.entries[lo-1].name)
}
