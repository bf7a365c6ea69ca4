// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package goprogram

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
)

// Program contains the facts that are needed to place probes in a Go program.
type Program struct {
	// Version is the Go release of the build, such as go1.26.1.
	Version string
	Machine elf.Machine
	// Entry is the link-time address at which the program starts. The load offset is the
	// difference between the actual start address and Entry.
	Entry uint64
	// Functions contains the functions that the query names, in the query's
	// order. A missing function is nil.
	Functions []*Code
	// Variable is the link-time address of the variable that the query names. It is 0 if
	// the program has no such variable or no symbol table.
	Variable uint64
	// Runs holds the code of the functions that the query selects, sorted by address.
	// Adjacent functions are merged.
	Runs []Run
}

// Code is the start of a function.
type Code struct {
	// Address is the link-time address of the function. Offset is the function's file
	// offset.
	Address, Offset uint64
	// Code holds the first Length bytes of the function.
	Code   [16]byte
	Length int
}

// Run is the range of code from Start to before End.
type Run struct{ Start, End uint64 }

// Query selects the functions, variable and code that Read looks for.
type Query struct {
	// Functions and Variable are names as the linker writes them. Size is the size of the
	// variable in bytes.
	Functions []string
	Variable  string
	Size      uint64
	// Runs reports whether Program.Runs includes the function with the given name. It may
	// be nil.
	Runs func(name []byte) bool
}

// ErrNotGo means that a file is not a Go program.
var ErrNotGo = errors.New("not a Go program")

const (
	// maxProgramFunctions limits the number of functions that Read checks. The largest
	// programs have about 300,000 functions.
	maxProgramFunctions = 1 << 20
	// maxRuns is the maximum length of Program.Runs. Few runs are needed, because the
	// linker places the functions of a package together.
	maxRuns = 4096
	// maxBuildInfo limits the number of bytes that are searched for the version. The
	// version is near the start of the writable segment.
	maxBuildInfo = 1 << 20
	maxGoVersion = 128
)

// Read reads the parts of a Go program that a query selects. The program may be stripped.
func Read(r io.ReaderAt, size int64, q Query) (*Program, error) {
	f, err := elffile.Parse(&blockReader{r: r}, size)
	if err != nil {
		return nil, err
	}
	p := &Program{Machine: f.Machine, Entry: f.Entry, Functions: make([]*Code, len(q.Functions))}
	if p.Version, err = readVersion(f); err != nil {
		return nil, err
	}
	_, goBuildID := f.BuildIDs()
	t, err := NewTable(f, goBuildID, maxProgramFunctions*8)
	if err != nil {
		return p, err
	}
	if t == nil {
		return p, fmt.Errorf("%w: it has no table of functions", ErrNotGo)
	}
	if err := t.find(p, q); err != nil {
		return p, err
	}
	p.Variable, err = findVariable(f, q)
	return p, err
}

// find sets p.Functions and p.Runs.
func (t *Table) find(p *Program, q Query) error {
	name := make([]byte, 0, 256)
	for i := range t.offsets {
		start, end := t.text+uint64(t.entries[i]), t.text+uint64(t.entries[i+1])
		if start == end {
			continue
		}
		b := t.description(i, 8, 8)
		name = t.shortName(name[:0], binary.LittleEndian.Uint32(b[4:]))
		err := t.failed()
		if err != nil {
			return err
		}
		if i := slices.Index(q.Functions, string(name)); i >= 0 && p.Functions[i] == nil {
			if p.Functions[i], err = codeOf(t.f, start, end); err != nil {
				return err
			}
		}
		if q.Runs == nil || !q.Runs(name) {
			continue
		}
		if n := len(p.Runs); n > 0 && p.Runs[n-1].End == start {
			p.Runs[n-1].End = end
		} else if n < maxRuns {
			p.Runs = append(p.Runs, Run{start, end})
		}
	}
	return nil
}

// shortName returns up to 128 bytes of the name at an offset in the name table. This
// length is enough for functions of the runtime. The result shares the memory of name.
func (t *Table) shortName(name []byte, offset uint32) []byte {
	const most = 128
	off := t.names + uint64(offset)
	if off >= t.units {
		t.fail("a function's name is outside the pclntab")
		return name
	}
	name = name[:min(most, t.units-off)]
	t.read(name, off)
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	return name
}

// codeOf reads the start of a function.
func codeOf(f *elffile.File, start, end uint64) (*Code, error) {
	off, avail, ok := f.Offset(start)
	if !ok || !f.Executable(start) {
		return nil, fmt.Errorf("the code at %#x is not in the file", start)
	}
	c := &Code{Address: start, Offset: off}
	c.Length = int(min(uint64(len(c.Code)), avail, end-start))
	return c, f.Read(c.Code[:c.Length], off)
}

// readVersion returns the Go release that the program was built with. The linker writes a
// magic string, then flags, and then the version with its length. Releases before Go
// 1.18 used another format, which is not supported. debug/buildinfo reads the same
// data, but without a size limit.
func readVersion(f *elffile.File) (string, error) {
	const (
		magic       = "\xff Go buildinf:"
		flagsAt     = 15
		inline      = 2
		textAt      = 32
		align       = 16
		overlap     = 256
		unsupported = "the release of Go that it was built with is not known: it is older than Go 1.18"
	)
	version, err := "", ErrNotGo
	look := func(off, size uint64) bool {
		if off > f.Size {
			return false
		}
		// If a part cannot be read, the other parts of the file are searched.
		_ = f.Scan(off, min(size, f.Size-off, maxBuildInfo), overlap, func(b []byte, _ uint64) bool {
			for i := 0; i+textAt < len(b) && i < elffile.ChunkSize; i += align {
				if string(b[i:i+len(magic)]) != magic {
					continue
				}
				if b[i+flagsAt]&inline == 0 {
					err = errors.New(unsupported)
					return false
				}
				n, k := binary.Uvarint(b[i+textAt:])
				if k > 0 && n > 0 && n <= maxGoVersion && n <= uint64(len(b)-i-textAt-k) {
					version, err = string(b[i+textAt+k:][:n]), nil
					return false
				}
			}
			return true
		})
		return !errors.Is(err, ErrNotGo)
	}
	if s, ok := f.Section(".go.buildinfo"); ok && s.Kind != elf.SHT_NOBITS && look(s.Offset, s.Size) {
		return version, err
	}
	for _, s := range f.Segments {
		if s.Kind == elf.PT_LOAD && s.Flags&elf.PF_W != 0 && look(s.Offset, s.Size) {
			break
		}
	}
	return version, err
}

// findVariable looks up the query's variable in .symtab. It returns 0 if .symtab
// does not contain the variable.
func findVariable(f *elffile.File, q Query) (uint64, error) {
	table := slices.IndexFunc(f.Sections, func(s elffile.Section) bool {
		return s.Kind == elf.SHT_SYMTAB && int(s.Link) < len(f.Sections) && s.Offset <= f.Size
	})
	if q.Variable == "" || table < 0 {
		return 0, nil
	}
	symbols := f.Sections[table]
	names := f.Sections[symbols.Link]
	want := append([]byte(q.Variable), 0)
	got := make([]byte, len(want))
	le := binary.LittleEndian
	var found uint64
	err := f.EachEntry(symbols.Offset, min(symbols.Size, f.Size-symbols.Offset), elf.Sym64Size, func(b []byte) bool {
		if elf.ST_TYPE(b[4]) != elf.STT_OBJECT || le.Uint64(b[16:]) != q.Size {
			return true
		}
		name := uint64(le.Uint32(b))
		if name >= names.Size || names.Size-name < uint64(len(got)) || f.Read(got, names.Offset+name) != nil || !bytes.Equal(got, want) {
			return true
		}
		found = le.Uint64(b[8:])
		return false
	})
	if err != nil {
		return 0, fmt.Errorf("reading the symbol table: %w", err)
	}
	return found, nil
}
