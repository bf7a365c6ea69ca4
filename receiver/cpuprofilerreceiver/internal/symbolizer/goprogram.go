// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// GoProgram is what has to be known about a Go program to place probes in it.
type GoProgram struct {
	// Version is the release that it was built with, as go1.26.1.
	Version string
	Machine elf.Machine
	// Entry is the link-time address that the program starts at: with where it
	// really started that tells where it was loaded.
	Entry uint64
	// Function is the function that was asked for; nil where there is none.
	Function *GoCode
	// Variable is the link-time address of the variable that was asked for; 0
	// where there is none, or no symbol table that tells.
	Variable uint64
	// Runs are the stretches of code whose functions the caller wanted to know, by
	// address, those that touch each other joined.
	Runs []Run
}

// GoCode is a function of a program.
type GoCode struct {
	// Address is its link-time address, Offset where it is in the file.
	Address, Offset uint64
	// Code is how it begins, Length how many of these bytes are its own.
	Code   [16]byte
	Length int
}

// Run is code from Start to before End.
type Run struct{ Start, End uint64 }

// GoQuery is what ReadGoProgram is to look for.
type GoQuery struct {
	// Function and Variable are names as the linker gives them. A variable has
	// Size bytes.
	Function, Variable string
	Size               uint64
	// Runs says of a function's name whether Runs is to have its code.
	Runs func(name []byte) bool
}

// ErrNotGo says that a file is no Go program.
var ErrNotGo = errors.New("not a Go program")

const (
	// maxProgramFunctions bounds what a file may make ReadGoProgram look at; the
	// largest programs have some 300,000.
	maxProgramFunctions = 1 << 20
	// maxRuns bounds the stretches of code; packages are linked in one piece each.
	maxRuns = 4096
	// maxBuildInfo is how far into writable memory the linker's note of the
	// release is looked for: it comes first.
	maxBuildInfo = 1 << 20
	maxGoVersion = 128
)

// ReadGoProgram reads what a query asks for from a Go program, stripped or not.
func ReadGoProgram(r io.ReaderAt, size int64, q GoQuery) (*GoProgram, error) {
	f, err := parseELF(&windows{r: r}, size)
	if err != nil {
		return nil, err
	}
	p := &GoProgram{Machine: f.machine}
	var hdr [ehdrSize]byte
	if err := f.read(hdr[:], 0); err != nil {
		return nil, err
	}
	p.Entry = binary.LittleEndian.Uint64(hdr[24:])
	if p.Version, err = f.goVersion(); err != nil {
		return nil, err
	}
	_, goBuildID := f.buildIDs()
	t, err := newGoTable(f, goBuildID, maxProgramFunctions*8)
	if err != nil {
		return p, err
	}
	if t == nil {
		return p, fmt.Errorf("%w: it has no table of functions", ErrNotGo)
	}
	if err := t.find(p, q); err != nil {
		return p, err
	}
	return p, f.findVariable(p, q)
}

// find looks through all functions.
func (t *goTable) find(p *GoProgram, q GoQuery) error {
	name := make([]byte, 0, 256)
	for i := range t.offsets {
		start, end := t.text+uint64(t.entries[i]), t.text+uint64(t.entries[i+1])
		if start == end {
			continue
		}
		var buf [8]byte
		off := t.functions + uint64(t.offsets[i])
		if off+uint64(len(buf)) > t.end || off < t.functions {
			return errors.New("a function's description is outside the pclntab")
		}
		if err := t.f.read(buf[:], off); err != nil {
			return err
		}
		var err error
		if name, err = t.shortName(name[:0], binary.LittleEndian.Uint32(buf[4:])); err != nil {
			return err
		}
		if p.Function == nil && string(name) == q.Function {
			if p.Function, err = t.f.code(start, end); err != nil {
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

// shortName appends the beginning of the name at an offset into the table of
// names: enough to know a function of the runtime by.
func (t *goTable) shortName(name []byte, offset uint32) ([]byte, error) {
	const most = 128
	off := t.names + uint64(offset)
	if off >= t.units {
		return name, errors.New("a function's name is outside the pclntab")
	}
	name = name[:min(most, t.units-off)]
	if err := t.f.read(name, off); err != nil {
		return name, err
	}
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	return name, nil
}

// code reads how a function begins.
func (f *elfFile) code(start, end uint64) (*GoCode, error) {
	off, avail, ok := f.fileOffset(start)
	if !ok || !f.executable(start) {
		return nil, fmt.Errorf("the code at %#x is not in the file", start)
	}
	c := &GoCode{Address: start, Offset: off}
	c.Length = int(min(uint64(len(c.Code)), avail, end-start))
	return c, f.read(c.Code[:c.Length], off)
}

// goVersion reads the linker's note of the release: a magic number, flags, and
// the length and text of the version. Other forms of it are older than Go 1.18.
func (f *elfFile) goVersion() (string, error) {
	const (
		magic       = "\xff Go buildinf:"
		flagsAt     = 15
		inline      = 2
		textAt      = 32
		align       = 16
		overlap     = 256
		unsupported = "the release of Go that it was built with is not known: its note is of a form older than Go 1.18"
	)
	look := func(off, size uint64) (string, bool, error) {
		buf := make([]byte, scanChunk+overlap)
		for done := uint64(0); done < size; done += scanChunk {
			b := buf[:min(uint64(len(buf)), size-done)]
			if err := f.read(b, off+done); err != nil {
				return "", false, err
			}
			for i := 0; i+textAt < len(b) && i < scanChunk; i += align {
				if string(b[i:i+len(magic)]) != magic {
					continue
				}
				if b[i+flagsAt]&inline == 0 {
					return "", true, errors.New(unsupported)
				}
				n, k := binary.Uvarint(b[i+textAt:])
				if k <= 0 || n == 0 || n > maxGoVersion || n > uint64(len(b)-i-textAt-k) {
					continue
				}
				return string(b[i+textAt+k:][:n]), true, nil
			}
		}
		return "", false, nil
	}
	if s, ok := f.section(".go.buildinfo"); ok && s.kind != elf.SHT_NOBITS && s.offset <= f.size {
		if v, found, err := look(s.offset, min(s.size, f.size-s.offset, maxBuildInfo)); found {
			return v, err
		}
	}
	for _, s := range f.segments {
		if s.kind != elf.PT_LOAD || s.flags&elf.PF_W == 0 || s.offset > f.size {
			continue
		}
		if v, found, err := look(s.offset, min(s.size, f.size-s.offset, maxBuildInfo)); found {
			return v, err
		}
	}
	return "", ErrNotGo
}

// findVariable looks the variable up in .symtab.
func (f *elfFile) findVariable(p *GoProgram, q GoQuery) error {
	if q.Variable == "" {
		return nil
	}
	for _, s := range f.sections {
		if s.kind != elf.SHT_SYMTAB || int(s.link) >= len(f.sections) || s.offset > f.size {
			continue
		}
		var err error
		p.Variable, err = f.variable(s, f.sections[s.link], q)
		return err
	}
	return nil
}

func (f *elfFile) variable(symbols, names section, q GoQuery) (uint64, error) {
	want := append([]byte(q.Variable), 0)
	got := make([]byte, len(want))
	left, off := min(symbols.size, f.size-symbols.offset), symbols.offset
	buf := make([]byte, scanChunk/symbolSize*symbolSize)
	le := binary.LittleEndian
	for left >= symbolSize {
		b := buf[:min(uint64(len(buf)), left/symbolSize*symbolSize)]
		if err := f.read(b, off); err != nil {
			return 0, fmt.Errorf("read the symbol table: %w", err)
		}
		off += uint64(len(b))
		left -= uint64(len(b))
		for ; len(b) > 0; b = b[symbolSize:] {
			if elf.ST_TYPE(b[4]) != elf.STT_OBJECT || le.Uint64(b[16:]) != q.Size {
				continue
			}
			name := uint64(le.Uint32(b))
			if name >= names.size || names.size-name < uint64(len(got)) || f.read(got, names.offset+name) != nil {
				continue
			}
			if bytes.Equal(got, want) {
				return le.Uint64(b[8:]), nil
			}
		}
	}
	return 0, nil
}
