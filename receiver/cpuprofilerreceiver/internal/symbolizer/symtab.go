// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package symbolizer

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
)

// symbol is a function of an ELF symbol table. It has only 12 bytes, because a large C++
// program has a million functions. Names are read from the file on demand.
type symbol struct {
	// start is relative to symbolTable.base.
	start, size uint32
	// name is an offset in a string table. The top bits contain the number of the string table.
	name uint32
}

const (
	compactSymbolSize  = 12
	buildingSymbolSize = 16
	maxSymbolName      = 8 << 10
	// stringTableShift is the first bit of the string table's number in symbol.name.
	stringTableShift = 30
	// nestingLimit is the maximum number of symbols that are tried for an address, beginning
	// with the nearest symbol before it. The nearest symbol may be nested in a larger symbol
	// and end before the address.
	nestingLimit = 16
	// aliasLimit is the maximum number of names of one address that are compared.
	aliasLimit = 16
)

// symbolTable holds the functions of .symtab and .dynsym, and the functions of the separate
// file, sorted by address.
type symbolTable struct {
	f       *elffile.File
	base    uint64
	symbols []symbol
	strings [3]stringTable
}

// stringTable is a section with names. held is its memory in bytes.
type stringTable struct {
	f       *elffile.File
	section elffile.Section
	held    int64
}

type rankedSymbol struct {
	symbol
	rank uint8
}

// newSymbolTable reads the symbol tables of f and the .symtab of separate, which may be
// nil. It skips addresses for which skip returns true. It allocates at most limit bytes.
func newSymbolTable(f *elffile.File, separate *symbolFile, limit int64, skip func(vaddr uint64) bool) (*symbolTable, error) {
	t := &symbolTable{f: f, base: math.MaxUint64}
	for _, s := range f.Segments {
		if s.Kind == elf.PT_LOAD && s.Flags&elf.PF_X != 0 {
			t.base = min(t.base, s.Address)
		}
	}
	from := []struct {
		f    *elffile.File
		kind elf.SectionType
	}{{f, elf.SHT_SYMTAB}, {f, elf.SHT_DYNSYM}}
	if separate != nil {
		from = append(from, from[0])
		from[2].f = separate.f
	}
	var found []rankedSymbol
	for i, from := range from {
		for _, s := range from.f.Sections {
			if s.Kind != from.kind || int(s.Link) >= len(from.f.Sections) {
				continue
			}
			t.strings[i] = stringTable{f: from.f, section: from.f.Sections[s.Link]}
			var err error
			if found, err = t.read(found, from.f, s, uint32(i)<<stringTableShift, limit, skip); err != nil {
				return nil, err
			}
			if separate != nil && from.f == separate.f && separate.file == nil {
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

// read adds the symbols of a section of f to found. table is the number of the string
// table, shifted by stringTableShift.
func (t *symbolTable) read(found []rankedSymbol, f *elffile.File, s elffile.Section, table uint32, limit int64, skip func(uint64) bool) ([]rankedSymbol, error) {
	if s.Offset > f.Size {
		return found, nil
	}
	le := binary.LittleEndian
	tooLarge := false
	err := f.EachEntry(s.Offset, min(s.Size, f.Size-s.Offset), elf.Sym64Size, func(b []byte) bool {
		info, shndx := b[4], elf.SectionIndex(le.Uint16(b[6:]))
		name, value, size := le.Uint32(b), le.Uint64(b[8:]), le.Uint64(b[16:])
		kind := elf.ST_TYPE(info)
		if kind != elf.STT_FUNC && kind != elf.STT_GNU_IFUNC || shndx == elf.SHN_UNDEF || name == 0 || name >= 1<<stringTableShift {
			return true
		}
		if value < t.base || value-t.base > math.MaxUint32 || !t.f.Executable(value) || skip(value) {
			return true
		}
		if tooLarge = int64(len(found)+1)*buildingSymbolSize > limit; tooLarge {
			return false
		}
		r := rankedSymbol{symbol{start: uint32(value - t.base), size: uint32(min(size, math.MaxUint32)), name: name | table}, rank(info)}
		if size == 0 {
			r.rank = 0
			// A symbol without a size extends to the end of its section, or to the next
			// symbol, at which compact cuts it.
			r.size = math.MaxUint32
			if int(shndx) < len(f.Sections) {
				if s := f.Sections[shndx]; s.Address <= value && value-s.Address < s.Size {
					r.size = uint32(min(s.Address+s.Size-value, math.MaxUint32))
				}
			}
		}
		found = append(found, r)
		return true
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the symbol table: %w", err)
	case tooLarge:
		return nil, errTooLarge
	}
	return found, nil
}

// rank orders the names of one address. The name with the highest rank is shown. read sets
// rank 0 for a symbol without a size, which may be a label.
func rank(info byte) uint8 {
	switch elf.ST_BIND(info) {
	case elf.STB_GLOBAL:
		return 3
	case elf.STB_WEAK:
		return 2
	}
	return 1
}

// compact sorts symbols by address. For each address, it keeps the names with the
// highest rank.
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

// bytes returns the memory that the table uses.
func (t *symbolTable) bytes() int64 {
	n := int64(len(t.symbols)) * compactSymbolSize
	for i := range t.strings {
		n += t.strings[i].held
	}
	return n
}

// lines returns the function at pc, a link-time address. The result is empty if the table
// has no function there.
func (t *symbolTable) lines(pc uint64) ([]samples.Line, error) {
	if pc < t.base || pc-t.base > math.MaxUint32 {
		return nil, nil
	}
	at := uint32(pc - t.base)
	i := sort.Search(len(t.symbols), func(i int) bool { return t.symbols[i].start > at })
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

// name returns the best name of symbol i and its aliases. betterAlias compares the names.
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

// betterAlias reports whether a is a better name than b. The name with fewer leading
// underscores is better. If the numbers of leading underscores are equal, the shorter name
// is better.
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
		table.f.SetBudget(maxLookupBytes)
	}
	start, end := table.section.Offset, table.section.Offset+table.section.Size
	name, err := table.f.CString(start+at, end, maxSymbolName)
	// In .symtab, the version of a symbol follows an @.
	name, _, _ = strings.Cut(name, "@")
	return name, err
}

// displayName demangles C++ and Rust names. It omits parameters, because Go and C names
// have no parameters either. system is the mangled name, or "" if name was not mangled.
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
