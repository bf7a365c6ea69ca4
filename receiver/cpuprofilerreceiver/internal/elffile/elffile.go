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

// These constants are the sizes of structures.
const (
	phdrSize       = 56
	shdrSize       = 64
	relaSize       = 24
	dynEntrySize   = 16
	noteHeaderSize = 12
)

var (
	// ErrNotELF means that a file does not start with ELF's magic number.
	ErrNotELF = errors.New("not an ELF file")

	// ErrBudget means that reading would exceed the budget.
	ErrBudget = errors.New("there is too much to read")
)

// Segment is a PT_LOAD, PT_DYNAMIC, PT_NOTE or PT_GNU_EH_FRAME segment.
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
	var h elf.Header64
	if err := f.decode(&h, 0); err != nil {
		return nil, fmt.Errorf("reading the ELF header: %w", err)
	}
	if string(h.Ident[:4]) != elf.ELFMAG {
		return nil, ErrNotELF
	}
	if elf.Class(h.Ident[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(h.Ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, errors.New("not a 64-bit little-endian ELF file, and no other is read")
	}
	f.Machine, f.Entry = elf.Machine(h.Machine), h.Entry
	if h.Phnum > maxSegments {
		return nil, fmt.Errorf("%d program headers, more than %d", h.Phnum, maxSegments)
	}
	if h.Phnum > 0 && h.Phentsize != phdrSize {
		return nil, fmt.Errorf("program headers of %d bytes, not %d", h.Phentsize, phdrSize)
	}
	headers := make([]elf.Prog64, h.Phnum)
	if err := f.decode(headers, h.Phoff); err != nil {
		return nil, fmt.Errorf("reading the program headers: %w", err)
	}
	for _, p := range headers {
		s := Segment{Kind: elf.ProgType(p.Type), Flags: elf.ProgFlag(p.Flags), Offset: p.Off, Address: p.Vaddr, Size: p.Filesz}
		if s.Offset+s.Size < s.Offset || s.Address+s.Size < s.Address {
			continue // the end overflows
		}
		switch s.Kind {
		case elf.PT_LOAD, elf.PT_DYNAMIC, elf.PT_NOTE, elf.PT_GNU_EH_FRAME:
			f.Segments = append(f.Segments, s)
		}
	}
	if h.Shnum > 0 && h.Shnum <= maxSections && h.Shentsize == shdrSize {
		f.readSections(&h)
	}
	return f, nil
}

// decode reads a structure or a slice of structures from offset off.
func (f *File) decode(to any, off uint64) error {
	buf := make([]byte, binary.Size(to))
	if err := f.Read(buf, off); err != nil {
		return err
	}
	_, err := binary.Decode(buf, binary.LittleEndian, to)
	return err
}

// New returns a File without reading any headers.
func New(r io.ReaderAt, size int64) *File {
	return &File{r: r, Size: uint64(max(size, 0)), budget: IndexBudget}
}

// SetBudget sets the number of bytes that may be read from now on.
func (f *File) SetBudget(n uint64) { f.budget = n }

// readSections reads the section headers. Section headers are optional, so the file has
// no sections if the headers are invalid.
func (f *File) readSections(h *elf.Header64) {
	headers := make([]elf.Section64, h.Shnum)
	if f.decode(headers, h.Shoff) != nil || h.Shstrndx >= h.Shnum {
		return
	}
	sections := make([]Section, len(headers))
	for i, s := range headers {
		sections[i] = Section{
			Kind: elf.SectionType(s.Type), Flags: elf.SectionFlag(s.Flags),
			Address: s.Addr, Offset: s.Off, Size: s.Size, Link: s.Link,
		}
	}
	names, ok := f.Contents(sections[h.Shstrndx], maxNameTable)
	if !ok {
		return
	}
	for i, s := range headers {
		if uint64(s.Name) < uint64(len(names)) {
			rest := names[s.Name:]
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

// Scan calls fn with consecutive parts of the file until fn returns false. The parts are in
// the size bytes from offset off on. Each part begins ChunkSize bytes after the previous
// part, and contains the first overlap bytes of the next part. A part is valid until fn
// returns.
func (f *File) Scan(off, size, overlap uint64, fn func(part []byte, off uint64) bool) error {
	buf := make([]byte, ChunkSize+overlap)
	for end := off + size; off < end; off += ChunkSize {
		b := buf[:min(uint64(len(buf)), end-off)]
		if err := f.Read(b, off); err != nil {
			return err
		}
		if !fn(b, off) {
			return nil
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

// loaded returns the first loaded segment that contains a link-time address and has the
// flags. It returns nil if there is no such segment.
func (f *File) loaded(address uint64, flags elf.ProgFlag) *Segment {
	for i := range f.Segments {
		s := &f.Segments[i]
		if s.Kind == elf.PT_LOAD && s.Flags&flags == flags && address >= s.Address && address-s.Address < s.Size {
			return s
		}
	}
	return nil
}

// Offset returns the file offset of a link-time address, and the number of bytes from there
// to the end of the segment.
func (f *File) Offset(address uint64) (off, avail uint64, ok bool) {
	s := f.loaded(address, 0)
	if s == nil || s.Offset+address-s.Address >= f.Size {
		return 0, 0, false
	}
	d := address - s.Address
	return s.Offset + d, min(s.Size-d, f.Size-s.Offset-d), true
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
func (f *File) Executable(address uint64) bool { return f.loaded(address, elf.PF_X) != nil }

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
	relative := map[elf.Machine]uint32{elf.EM_X86_64: uint32(elf.R_X86_64_RELATIVE), elf.EM_AARCH64: uint32(elf.R_AARCH64_RELATIVE)}[f.Machine]
	le := binary.LittleEndian
	addr, size := f.relocations()
	off, avail, ok := f.Offset(addr)
	if !ok || relative == 0 {
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
		buf, _ := f.Contents(Section{Offset: s.Offset, Size: s.Size}, maxDynamic) // empty if it is too large
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
