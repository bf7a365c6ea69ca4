// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package perfmap parses perf-PID.map files, in which language runtimes list generated
// code. Each line has the address, size and name of a function. Runtimes append new lines
// while the process runs. The package itself does not open files.
package perfmap

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"sort"
	"strconv"
)

const (
	// maxName is the length to which names are truncated. Only names of
	// nested generic types are longer.
	maxName = 1 << 10
	// maxCode is the maximum size of one entry. An entry of more than 1 GiB is
	// wrong and would hide other entries.
	maxCode = 1 << 30
	// entrySize is the memory of an entry in a Map and in its Index, without the name.
	entrySize = 24 + 24
)

// entry is one function.
type entry struct {
	start uint64
	size  uint32
	// name is the offset of the name in Map.text. The name ends with a newline.
	name uint32
	// number is greater for later entries.
	number uint32
}

func (e entry) end() uint64 { return e.start + uint64(e.size) }

// Map holds the functions from the part of a perf map file that was read. It is not safe for
// concurrent use.
type Map struct {
	limit   int64
	entries []entry // entries[:sorted] is sorted by address and has no overlaps
	sorted  int
	text    []byte
	number  uint32
	full    bool // limit is reached, and further entries are dropped
}

// New returns an empty Map. The Map and its Index use up to limit bytes of memory.
func New(limit int64) *Map { return &Map{limit: limit} }

// Add parses the next bytes of the file up to the last newline, and returns the number of
// parsed bytes. The next call must start with the remaining bytes. Add skips invalid lines.
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
	if !ok || m.full {
		return
	}
	if m.bytes()+int64(entrySize+len(name)+1) > m.limit || len(m.text)+len(name) >= math.MaxUint32 {
		m.settle() // removes replaced entries
		// If settle has freed only little memory, the map counts as full. Otherwise each
		// further line would call settle again.
		if m.bytes() > m.limit/8*7 {
			m.full = true
			return
		}
	}
	m.number++
	m.entries = append(m.entries, entry{start: start, size: size, name: uint32(len(m.text)), number: m.number})
	m.text = append(append(m.text, name...), '\n')
}

// bytes returns the memory of the Map and its Index.
func (m *Map) bytes() int64 { return int64(len(m.entries))*entrySize + int64(len(m.text)) }

// parse splits a line into its address, size and name.
func parse(b []byte) (start uint64, size uint32, name []byte, ok bool) {
	b = bytes.TrimRight(b, "\r")
	start, b, ok = Hex(b)
	if !ok {
		return 0, 0, nil, false
	}
	length, name, ok := Hex(b)
	if !ok || length == 0 || length > maxCode || start+length < start || len(name) == 0 {
		return 0, 0, nil, false
	}
	return start, uint32(length), name[:min(len(name), maxName)], true
}

// Hex parses a hexadecimal number and the space after it.
func Hex(b []byte) (n uint64, rest []byte, ok bool) {
	number, rest, ok := bytes.Cut(b, []byte{' '})
	if len(number) > 1 && number[0] == '0' && number[1]|0x20 == 'x' {
		number = number[2:]
	}
	n, err := strconv.ParseUint(string(number), 16, 64)
	return n, rest, ok && err == nil
}

// settle sorts the entries and removes entries that later entries replaced. Runtimes free
// a function as a whole, so an entry is stale when a part of its memory is reused. A
// stale entry may stay if its replacement was replaced too, because the code of the stale
// entry no longer runs.
func (m *Map) settle() {
	if m.sorted == len(m.entries) {
		return
	}
	// The entries are cloned, because the last Index still uses the array of m.entries.
	all := slices.Clone(m.entries)
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.number, b.number))
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

// Index returns an index of the current entries. Later calls of Add do not change it.
func (m *Map) Index() *Index {
	m.settle()
	m.entries = slices.Clip(m.entries) // Add must not write to the Index's array
	return &Index{entries: m.entries, text: m.text, size: m.bytes()}
}

// Index finds names by address. It is immutable and safe for concurrent use.
type Index struct {
	entries []entry
	text    []byte
	size    int64
}

// Bytes returns the memory of the Index and its Map.
func (x *Index) Bytes() int64 { return x.size }

// Entry returns the number of the entry that contains pc, or -1.
func (x *Index) Entry(pc uint64) int {
	above := sort.Search(len(x.entries), func(i int) bool { return x.entries[i].start > pc })
	if above == 0 || pc >= x.entries[above-1].end() {
		return -1
	}
	return above - 1
}

// Name returns the name of an entry. The caller must not change the bytes.
func (x *Index) Name(entry int) []byte { return at(x.text, x.entries[entry].name) }
