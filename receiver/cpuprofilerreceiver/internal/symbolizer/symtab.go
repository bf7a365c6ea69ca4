// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// symbol is a function of an ELF symbol table, 12 bytes: a large C++ program
// has a million of them. Names stay in the file until they are asked for.
type symbol struct {
	// start is relative to symbolTable.base.
	start, size uint32
	// name is an offset into a string table, whose number is in the top bits.
	name uint32
}

const (
	compactSymbolSize  = 12
	buildingSymbolSize = 16
	// stringTableShift is where in symbol.name the number of the table begins.
	stringTableShift = 30
	// nestingLimit is how far back an enclosing function is looked for, where
	// the nearest symbol before an address ends before it.
	nestingLimit = 16
	// aliasLimit is how many names of one address are compared.
	aliasLimit = 16
)

// symbolTable is the functions of .symtab and .dynsym, and of the file with the
// symbols that were stripped off, sorted by address.
type symbolTable struct {
	f       *elfFile
	base    uint64
	symbols []symbol
	strings [3]stringTable
}

// stringTable is where names are. held is what it takes in memory.
type stringTable struct {
	f       *elfFile
	section section
	held    int64
}

type rankedSymbol struct {
	symbol
	rank uint8
}

// newSymbolTable reads the symbol tables of f, and of the file that has its
// symbols, which may be nil, leaving out what skip says. It takes at most limit
// bytes while it works.
func newSymbolTable(f *elfFile, separate *symbolFile, limit int64, skip func(vaddr uint64) bool) (*symbolTable, error) {
	t := &symbolTable{f: f, base: math.MaxUint64}
	for _, s := range f.segments {
		if s.kind == elf.PT_LOAD && s.flags&elf.PF_X != 0 {
			t.base = min(t.base, s.vaddr)
		}
	}
	from := []struct {
		f    *elfFile
		kind elf.SectionType
	}{{f, elf.SHT_SYMTAB}, {f, elf.SHT_DYNSYM}}
	if separate != nil {
		from = append(from, from[0])
		from[2].f = separate.f
	}
	var found []rankedSymbol
	for i, from := range from {
		for _, s := range from.f.sections {
			if s.kind != from.kind || int(s.link) >= len(from.f.sections) {
				continue
			}
			t.strings[i] = stringTable{f: from.f, section: from.f.sections[s.link]}
			var err error
			if found, err = t.read(found, from.f, s, uint32(i)<<stringTableShift, limit, skip); err != nil {
				return nil, err
			}
			if separate != nil && from.f == separate.f && separate.closer == nil {
				if err := t.strings[i].keep(limit - int64(len(found))*buildingSymbolSize); err != nil {
					return nil, err
				}
			}
			break
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	t.symbols = compact(found)
	return t, nil
}

// read adds the symbols of a section of f, which have their names in the table
// of that number.
func (t *symbolTable) read(found []rankedSymbol, f *elfFile, s section, table uint32, limit int64, skip func(uint64) bool) ([]rankedSymbol, error) {
	if s.offset > f.size {
		return found, nil
	}
	left := min(s.size, f.size-s.offset)
	off := s.offset
	buf := make([]byte, scanChunk/symbolSize*symbolSize)
	le := binary.LittleEndian
	for left >= symbolSize {
		b := buf[:min(uint64(len(buf)), left/symbolSize*symbolSize)]
		if err := f.read(b, off); err != nil {
			return nil, fmt.Errorf("read the symbol table: %w", err)
		}
		off += uint64(len(b))
		left -= uint64(len(b))
		for ; len(b) > 0; b = b[symbolSize:] {
			info, shndx := b[4], elf.SectionIndex(le.Uint16(b[6:]))
			name, value, size := le.Uint32(b), le.Uint64(b[8:]), le.Uint64(b[16:])
			kind := elf.ST_TYPE(info)
			if kind != elf.STT_FUNC && kind != elf.STT_GNU_IFUNC || shndx == elf.SHN_UNDEF || name == 0 || name >= 1<<stringTableShift {
				continue
			}
			if value < t.base || value-t.base > math.MaxUint32 || !t.f.executable(value) || skip(value) {
				continue
			}
			if int64(len(found)+1)*buildingSymbolSize > limit {
				return nil, errTooLarge
			}
			r := rankedSymbol{symbol{start: uint32(value - t.base), size: uint32(min(size, math.MaxUint32)), name: name | table}, rank(info)}
			if size == 0 {
				r.rank = 0
				// Up to the end of its section; compact stops it at the next symbol.
				r.size = math.MaxUint32
				if int(shndx) < len(f.sections) {
					if s := f.sections[shndx]; s.addr <= value && value-s.addr < s.size {
						r.size = uint32(min(s.addr+s.size-value, math.MaxUint32))
					}
				}
			}
			found = append(found, r)
		}
	}
	return found, nil
}

// rank says which of several names of one address is shown: a symbol without a
// size is a label at best, a local name is the least known.
func rank(info byte) uint8 {
	switch elf.ST_BIND(info) {
	case elf.STB_GLOBAL:
		return 3
	case elf.STB_WEAK:
		return 2
	}
	return 1
}

// compact sorts by address and keeps the best names of each address.
func compact(found []rankedSymbol) []symbol {
	slices.SortFunc(found, func(a, b rankedSymbol) int {
		if c := cmp.Compare(a.start, b.start); c != 0 {
			return c
		}
		if c := cmp.Compare(b.rank, a.rank); c != 0 {
			return c
		}
		return cmp.Compare(a.name, b.name)
	})
	n := 0
	for i, s := range found {
		if i > 0 && s.start == found[i-1].start && s.rank != found[n-1].rank {
			continue
		}
		found[n] = s
		n++
	}
	found = found[:n]
	out := make([]symbol, n)
	next := uint32(math.MaxUint32)
	for i := n - 1; i >= 0; i-- {
		if i+1 < n && found[i+1].start != found[i].start {
			next = found[i+1].start
		}
		out[i] = found[i].symbol
		if found[i].rank == 0 {
			out[i].size = min(out[i].size, next-out[i].start)
		}
	}
	return out
}

func (t *symbolTable) bytes() int64 {
	n := int64(len(t.symbols)) * compactSymbolSize
	for i := range t.strings {
		n += t.strings[i].held
	}
	return n
}

func (t *symbolTable) frameType() samples.FrameType { return samples.FrameNative }

func (t *symbolTable) lines(pc uint64) ([]samples.Line, error) {
	if pc < t.base || pc-t.base > math.MaxUint32 {
		return nil, nil
	}
	at := uint32(pc - t.base)
	i, _ := slices.BinarySearchFunc(t.symbols, at, func(s symbol, at uint32) int {
		if s.start <= at {
			return -1
		}
		return 1
	})
	for back := 0; i > 0 && back < nestingLimit; back++ {
		i--
		s := t.symbols[i]
		if at-s.start < s.size {
			name, err := t.name(i)
			if err != nil || name == "" {
				return nil, err
			}
			function, system := displayName(name)
			return []samples.Line{{Function: function, SystemName: system}}, nil
		}
	}
	return nil, nil
}

// name is the name of symbol i, or of an alias that reads better: with fewer
// leading underscores, then shorter.
func (t *symbolTable) name(i int) (string, error) {
	best, err := t.nameOf(t.symbols[i])
	if err != nil {
		return "", err
	}
	for j := i - 1; j >= 0 && i-j < aliasLimit && t.symbols[j].start == t.symbols[i].start; j-- {
		if alias, err := t.nameOf(t.symbols[j]); err == nil && betterAlias(alias, best) {
			best = alias
		}
	}
	return best, nil
}

func betterAlias(a, b string) bool {
	ua, ub := len(a)-len(strings.TrimLeft(a, "_")), len(b)-len(strings.TrimLeft(b, "_"))
	if ua != ub {
		return ua < ub
	}
	return len(a) < len(b)
}

func (t *symbolTable) nameOf(s symbol) (string, error) {
	table := &t.strings[s.name>>stringTableShift]
	at := uint64(s.name & (1<<stringTableShift - 1))
	if table.f != t.f {
		table.f.budget = maxLookupBytes
	}
	name, err := cstring(table.f, table.section.offset+at, table.section.offset+table.section.size, maxSymbolName)
	// Symbols of a version carry it in .symtab, after an @.
	name, _, _ = strings.Cut(name, "@")
	return name, err
}

// displayName demangles C++ and Rust names. Parameters are left out, as Go's
// and C's names have none either; system is the linker's name where it differs.
func displayName(name string) (function, system string) {
	const maxMangled, maxDemangled = 4 << 10, 13 // 2^13 bytes
	if !strings.HasPrefix(name, "_Z") && !strings.HasPrefix(name, "_R") || len(name) > maxMangled {
		return name, ""
	}
	readable, err := demangle.ToString(name, demangle.NoParams, demangle.NoEnclosingParams, demangle.MaxLength(maxDemangled))
	if err != nil || readable == name {
		return name, ""
	}
	return readable, name
}
