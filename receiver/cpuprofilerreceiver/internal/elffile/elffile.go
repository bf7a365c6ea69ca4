// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package elffile reads the headers, notes and relocations of ELF files. Unlike
// debug/elf, it does not trust the sizes in a file. It limits the memory that it uses and
// the number of bytes that it reads.
package elffile

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// These limits apply to the parts that are read. Any process can map any file as
// executable, so counts and sizes in a file may be wrong.
const (
	maxSegments  = 512
	maxSections  = 1 << 14
	maxNameTable = 1 << 20
	maxDynamic   = 64 << 10
	// MaxNotes is the maximum size in bytes of the notes in one segment or section.
	MaxNotes     = 64 << 10
	maxBuildID   = 64
	maxGoBuildID = 256
	// ChunkSize is the number of bytes that a search reads at once.
	ChunkSize = 64 << 10
	// IndexBudget is the maximum number of bytes that are read to index a file. A
	// malicious sparse file may be huge without using disk space.
	IndexBudget = 256 << 20
)

// These constants are the sizes of structures and the types of relative relocations.
const (
	ehdrSize       = 64
	phdrSize       = 56
	shdrSize       = 64
	relaSize       = 24
	dynEntrySize   = 16
	noteHeaderSize = 12
	relativeAMD64  = 8    // R_X86_64_RELATIVE
	relativeARM64  = 1027 // R_AARCH64_RELATIVE
)

var (
	// ErrNotELF means that a file does not start with ELF's magic number.
	ErrNotELF = errors.New("not an ELF file")

	// ErrBudget means that reading would exceed the budget.
	ErrBudget = errors.New("there is too much to read")
)

// Segment is a PT_LOAD, PT_DYNAMIC, PT_NOTE or PT_GNU_EH_FRAME.
type Segment struct {
	Kind                  elf.ProgType
	Flags                 elf.ProgFlag
	Offset, Address, Size uint64 // Size is the size in the file
}

// Section is a section header.
type Section struct {
	Name                  string
	Kind                  elf.SectionType
	Flags                 elf.SectionFlag
	Address, Offset, Size uint64
	Link                  uint32
}

// File is a 64-bit little-endian ELF file.
type File struct {
	// Size is the size of the file in bytes.
	Size    uint64
	Machine elf.Machine
	// Entry is the address at which the program starts.
	Entry    uint64
	Segments []Segment
	// Sections is empty if the section headers are missing, too many or invalid.
	Sections []Section

	r      io.ReaderAt
	budget uint64 // the number of bytes that may still be read
}

// Parse reads the headers of a file.
func Parse(r io.ReaderAt, size int64) (*File, error) {
	f := New(r, size)
	var hdr [ehdrSize]byte
	if err := f.Read(hdr[:], 0); err != nil {
		return nil, fmt.Errorf("reading the ELF header: %w", err)
	}
	if string(hdr[:4]) != elf.ELFMAG {
		return nil, ErrNotELF
	}
	if elf.Class(hdr[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(hdr[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, errors.New("not a 64-bit little-endian ELF file, and no other is read")
	}
	le := binary.LittleEndian
	f.Machine, f.Entry = elf.Machine(le.Uint16(hdr[18:])), le.Uint64(hdr[24:])
	phoff, shoff := le.Uint64(hdr[32:]), le.Uint64(hdr[40:])
	phentsize, phnum := le.Uint16(hdr[54:]), int(le.Uint16(hdr[56:]))
	shentsize, shnum, shstrndx := le.Uint16(hdr[58:]), int(le.Uint16(hdr[60:])), int(le.Uint16(hdr[62:]))
	if phnum > maxSegments {
		return nil, fmt.Errorf("%d program headers, more than %d", phnum, maxSegments)
	}
	if phnum > 0 && phentsize != phdrSize {
		return nil, fmt.Errorf("program headers of %d bytes, not %d", phentsize, phdrSize)
	}
	buf := make([]byte, phnum*phdrSize)
	if err := f.Read(buf, phoff); err != nil {
		return nil, fmt.Errorf("reading the program headers: %w", err)
	}
	for ; len(buf) > 0; buf = buf[phdrSize:] {
		s := Segment{
			Kind: elf.ProgType(le.Uint32(buf)), Flags: elf.ProgFlag(le.Uint32(buf[4:])),
			Offset: le.Uint64(buf[8:]), Address: le.Uint64(buf[16:]), Size: le.Uint64(buf[32:]),
		}
		if s.Offset+s.Size < s.Offset || s.Address+s.Size < s.Address {
			continue // the end overflows
		}
		switch s.Kind {
		case elf.PT_LOAD, elf.PT_DYNAMIC, elf.PT_NOTE, elf.PT_GNU_EH_FRAME:
			f.Segments = append(f.Segments, s)
		}
	}
	if shnum > 0 && shnum <= maxSections && shentsize == shdrSize {
		f.readSections(shoff, shnum, shstrndx)
	}
	return f, nil
}

// New returns a File without reading any headers.
func New(r io.ReaderAt, size int64) *File {
	return &File{r: r, Size: uint64(max(size, 0)), budget: IndexBudget}
}

// SetBudget sets the number of bytes that may be read from now on.
func (f *File) SetBudget(n uint64) { f.budget = n }

// readSections reads the section headers. Section headers are optional, so the file has
// no sections if the headers are invalid.
func (f *File) readSections(shoff uint64, shnum, shstrndx int) {
	if shoff > f.Size || uint64(shnum*shdrSize) > f.Size-shoff {
		return
	}
	buf := make([]byte, shnum*shdrSize)
	if f.Read(buf, shoff) != nil {
		return
	}
	le := binary.LittleEndian
	sections := make([]Section, shnum)
	nameOffsets := make([]uint32, shnum)
	for i := range sections {
		b := buf[i*shdrSize:]
		nameOffsets[i] = le.Uint32(b)
		sections[i] = Section{
			Kind: elf.SectionType(le.Uint32(b[4:])), Flags: elf.SectionFlag(le.Uint64(b[8:])),
			Address: le.Uint64(b[16:]), Offset: le.Uint64(b[24:]), Size: le.Uint64(b[32:]), Link: le.Uint32(b[40:]),
		}
	}
	if shstrndx >= shnum {
		return
	}
	names, ok := f.Contents(sections[shstrndx], maxNameTable)
	if !ok {
		return
	}
	for i, off := range nameOffsets {
		if uint64(off) < uint64(len(names)) {
			rest := names[off:]
			if end := bytes.IndexByte(rest[:min(len(rest), 64)], 0); end > 0 {
				sections[i].Name = string(rest[:end])
			}
		}
	}
	f.Sections = sections
}

// Read fills buf from offset off.
func (f *File) Read(buf []byte, off uint64) error {
	if off > f.Size || uint64(len(buf)) > f.Size-off {
		return fmt.Errorf("%d bytes at offset %#x are beyond the end of the file: %w", len(buf), off, io.ErrUnexpectedEOF)
	}
	if len(buf) == 0 {
		return nil
	}
	if uint64(len(buf)) > f.budget {
		return ErrBudget
	}
	f.budget -= uint64(len(buf))
	n, err := f.r.ReadAt(buf, int64(off))
	if n == len(buf) {
		return nil
	}
	return err
}

// EachEntry calls fn with each entry of a table until fn returns false. The table is at
// offset off and has size bytes. An entry is valid until fn returns.
func (f *File) EachEntry(off, size uint64, entrySize int, fn func(entry []byte) bool) error {
	buf := make([]byte, ChunkSize/entrySize*entrySize)
	for size -= size % uint64(entrySize); size > 0; {
		b := buf[:min(uint64(len(buf)), size)]
		if err := f.Read(b, off); err != nil {
			return err
		}
		off += uint64(len(b))
		size -= uint64(len(b))
		for ; len(b) > 0; b = b[entrySize:] {
			if !fn(b[:entrySize]) {
				return nil
			}
		}
	}
	return nil
}

// Contents reads a section. It returns false if the section exceeds limit or cannot be
// read.
func (f *File) Contents(s Section, limit uint64) ([]byte, bool) {
	if s.Kind == elf.SHT_NOBITS || s.Size > limit || s.Offset > f.Size || s.Size > f.Size-s.Offset {
		return nil, false
	}
	buf := make([]byte, s.Size)
	return buf, f.Read(buf, s.Offset) == nil
}

// Section returns the first section with a name.
func (f *File) Section(name string) (Section, bool) {
	for _, s := range f.Sections {
		if s.Name == name {
			return s, true
		}
	}
	return Section{}, false
}

// Offset returns the file offset of a link-time address, and the number of bytes from there
// to the end of the segment.
func (f *File) Offset(address uint64) (off, avail uint64, ok bool) {
	for _, s := range f.Segments {
		if s.Kind == elf.PT_LOAD && address >= s.Address && address-s.Address < s.Size {
			d := address - s.Address
			off = s.Offset + d
			if off >= f.Size {
				return 0, 0, false
			}
			return off, min(s.Size-d, f.Size-off), true
		}
	}
	return 0, 0, false
}

// Address returns the link-time address of the code at a file offset. If several segments
// contain the offset, it prefers an executable segment.
func (f *File) Address(off uint64) (uint64, bool) {
	var addr uint64
	found := false
	for _, s := range f.Segments {
		if s.Kind != elf.PT_LOAD || off < s.Offset || off-s.Offset >= s.Size {
			continue
		}
		if s.Flags&elf.PF_X != 0 {
			return s.Address + off - s.Offset, true
		}
		if !found {
			addr, found = s.Address+off-s.Offset, true
		}
	}
	return addr, found
}

// Executable reports whether a link-time address is in an executable segment.
func (f *File) Executable(address uint64) bool {
	for _, s := range f.Segments {
		if s.Kind == elf.PT_LOAD && s.Flags&elf.PF_X != 0 && address >= s.Address && address-s.Address < s.Size {
			return true
		}
	}
	return false
}

// BuildIDs returns the GNU build id in hex, and Go's build id. It also searches sections,
// because Go's linker creates no PT_NOTE segment for the GNU note.
func (f *File) BuildIDs() (gnu, golang string) {
	notes := func(s Section) {
		if buf, ok := f.Contents(s, MaxNotes); ok {
			g, l := ParseNotes(buf)
			gnu, golang = cmp.Or(gnu, g), cmp.Or(golang, l)
		}
	}
	for _, s := range f.Segments {
		if s.Kind == elf.PT_NOTE {
			notes(Section{Offset: s.Offset, Size: s.Size})
		}
	}
	if gnu == "" || golang == "" {
		for _, s := range f.Sections {
			if s.Kind == elf.SHT_NOTE {
				notes(s)
			}
		}
	}
	return gnu, golang
}

// ParseNotes returns the GNU build id in hex, and Go's build id, from a sequence of ELF
// notes.
func ParseNotes(b []byte) (gnu, golang string) {
	const typeGNUBuildID, typeGoBuildID = 3, 4
	le := binary.LittleEndian
	for len(b) >= noteHeaderSize {
		namesz, descsz, kind := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
		b = b[noteHeaderSize:]
		nameEnd := (namesz + 3) &^ 3
		descEnd := nameEnd + (descsz+3)&^3
		if nameEnd > uint64(len(b)) || nameEnd+descsz > uint64(len(b)) {
			return gnu, golang
		}
		name, desc := b[:namesz], b[nameEnd:nameEnd+descsz]
		switch {
		case string(name) == "GNU\x00" && kind == typeGNUBuildID && len(desc) <= maxBuildID && gnu == "":
			gnu = hex.EncodeToString(desc)
		case string(name) == "Go\x00\x00" && kind == typeGoBuildID && len(desc) <= maxGoBuildID && golang == "":
			golang = string(bytes.TrimRight(desc, "\x00"))
		}
		b = b[min(descEnd, uint64(len(b))):]
	}
	return gnu, golang
}

// EachRelative calls fn with each relative relocation until fn returns false.
// Position-independent programs have pointers only in relocations, not in the words of the
// file.
func (f *File) EachRelative(fn func(at, addend uint64) bool) {
	var relative uint32
	switch f.Machine {
	case elf.EM_X86_64:
		relative = relativeAMD64
	case elf.EM_AARCH64:
		relative = relativeARM64
	default:
		return
	}
	le := binary.LittleEndian
	addr, size := f.relocations()
	off, avail, ok := f.Offset(addr)
	if !ok {
		return
	}
	_ = f.EachEntry(off, min(size, avail), relaSize, func(b []byte) bool {
		return le.Uint32(b[8:]) != relative || fn(le.Uint64(b), le.Uint64(b[16:]))
	})
}

// relocations returns the address and size of the table of relocations with addends,
// according to the dynamic section.
func (f *File) relocations() (addr, size uint64) {
	for _, s := range f.Segments {
		if s.Kind != elf.PT_DYNAMIC {
			continue
		}
		buf, ok := f.Contents(Section{Offset: s.Offset, Size: s.Size}, maxDynamic)
		if !ok {
			continue
		}
		for ; len(buf) >= dynEntrySize; buf = buf[dynEntrySize:] {
			value := binary.LittleEndian.Uint64(buf[8:])
			switch elf.DynTag(binary.LittleEndian.Uint64(buf)) {
			case elf.DT_RELA: //nolint:misspell // as ELF spells it
				addr = value
			case elf.DT_RELASZ:
				size = value
			case elf.DT_NULL:
				return addr, size
			}
		}
	}
	return addr, size
}

// CString reads a zero-terminated string at offset off. It cuts the string at offset end,
// and after limit bytes. off must be less than end.
func (f *File) CString(off, end uint64, limit int) (string, error) {
	end = min(end, f.Size)
	if off >= end {
		return "", fmt.Errorf("a string at offset %#x is outside its table", off)
	}
	var out []byte
	var buf [128]byte
	for off < end && len(out) < limit {
		b := buf[:min(uint64(len(buf)), end-off)]
		if err := f.Read(b, off); err != nil {
			return "", err
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			return string(append(out, b[:i]...)), nil
		}
		out = append(out, b...)
		off += uint64(len(b))
	}
	return string(out[:min(len(out), limit)]), nil
}
