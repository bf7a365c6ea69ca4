// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// Bounds on what a file may make us read. Files are whatever somebody mapped
// executable, so every count and size in them is a claim.
const (
	maxSegments    = 512
	maxSections    = 1 << 14
	maxNameTable   = 1 << 20
	maxNotes       = 64 << 10
	maxDynamic     = 64 << 10
	maxBuildID     = 64
	maxGoBuildID   = 256
	maxSymbolName  = 8 << 10
	maxFileName    = 4 << 10
	scanChunk      = 64 << 10
	ehdrSize       = 64
	phdrSize       = 56
	shdrSize       = 64
	symbolSize     = 24
	relaSize       = 24
	relativeAMD64  = 8
	relativeARM64  = 1027
	dynEntrySize   = 16
	noteHeaderSize = 12
	// maxIndexBytes bounds what is read of a file to index it, maxLookupBytes
	// what is read to answer for one address: a sparse file has any size at no
	// cost to whoever made it. The longest tables of one Go function are those
	// of generated parsers, with some 100 KiB.
	maxIndexBytes  = 1 << 30
	maxLookupBytes = 4 << 20
)

var (
	errTooLarge = errors.New("its symbols do not fit the symbol cache")
	errNotELF   = errors.New("not an ELF file")
	errBudget   = errors.New("there is too much to read")
)

// segment is one PT_LOAD, or the PT_DYNAMIC or a PT_NOTE.
type segment struct {
	kind                      elf.ProgType
	flags                     elf.ProgFlag
	offset, vaddr, size, msiz uint64
}

type section struct {
	name               string
	kind               elf.SectionType
	flags              elf.SectionFlag
	addr, offset, size uint64
	link               uint32
}

// elfFile is the headers of a 64-bit little-endian ELF file. It differs from
// debug/elf in that what it allocates does not depend on what the file claims.
type elfFile struct {
	r        io.ReaderAt
	size     uint64
	machine  elf.Machine
	segments []segment
	// sections is empty where the file has no section headers, or too many.
	sections []section
	// budget is how much more may be read.
	budget uint64
}

func parseELF(r io.ReaderAt, size int64) (*elfFile, error) {
	f := &elfFile{r: r, size: uint64(max(size, 0)), budget: maxIndexBytes}
	var hdr [ehdrSize]byte
	if err := f.read(hdr[:], 0); err != nil {
		return nil, fmt.Errorf("read the ELF header: %w", err)
	}
	if string(hdr[:4]) != elf.ELFMAG {
		return nil, errNotELF
	}
	if elf.Class(hdr[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(hdr[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, errors.New("not a 64-bit little-endian ELF file, and no other is read")
	}
	le := binary.LittleEndian
	f.machine = elf.Machine(le.Uint16(hdr[18:]))
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
	if err := f.read(buf, phoff); err != nil {
		return nil, fmt.Errorf("read the program headers: %w", err)
	}
	for ; len(buf) > 0; buf = buf[phdrSize:] {
		s := segment{
			kind: elf.ProgType(le.Uint32(buf)), flags: elf.ProgFlag(le.Uint32(buf[4:])),
			offset: le.Uint64(buf[8:]), vaddr: le.Uint64(buf[16:]),
			size: le.Uint64(buf[32:]), msiz: le.Uint64(buf[40:]),
		}
		if s.offset+s.size < s.offset || s.vaddr+s.size < s.vaddr {
			continue // wraps around: no such part of a file or of memory
		}
		switch s.kind {
		case elf.PT_LOAD, elf.PT_DYNAMIC, elf.PT_NOTE:
			f.segments = append(f.segments, s)
		}
	}
	if shnum > 0 && shnum <= maxSections && shentsize == shdrSize {
		f.readSections(shoff, shnum, shstrndx)
	}
	return f, nil
}

// readSections fills in f.sections. Section headers only help: a file whose
// headers make no sense is read without them.
func (f *elfFile) readSections(shoff uint64, shnum, shstrndx int) {
	if shoff > f.size || uint64(shnum*shdrSize) > f.size-shoff {
		return
	}
	buf := make([]byte, shnum*shdrSize)
	if f.read(buf, shoff) != nil {
		return
	}
	le := binary.LittleEndian
	sections := make([]section, shnum)
	nameOffsets := make([]uint32, shnum)
	for i := range sections {
		b := buf[i*shdrSize:]
		nameOffsets[i] = le.Uint32(b)
		sections[i] = section{
			kind: elf.SectionType(le.Uint32(b[4:])), flags: elf.SectionFlag(le.Uint64(b[8:])),
			addr: le.Uint64(b[16:]), offset: le.Uint64(b[24:]), size: le.Uint64(b[32:]), link: le.Uint32(b[40:]),
		}
	}
	if shstrndx >= shnum {
		return
	}
	names, ok := f.contents(sections[shstrndx], maxNameTable)
	if !ok {
		return
	}
	for i, off := range nameOffsets {
		if uint64(off) < uint64(len(names)) {
			rest := names[off:]
			if end := bytes.IndexByte(rest[:min(len(rest), 64)], 0); end > 0 {
				sections[i].name = string(rest[:end])
			}
		}
	}
	f.sections = sections
}

// read fills buf from offset off.
func (f *elfFile) read(buf []byte, off uint64) error {
	if off > f.size || uint64(len(buf)) > f.size-off {
		return fmt.Errorf("%d bytes at offset %#x are beyond the end of the file: %w", len(buf), off, io.ErrUnexpectedEOF)
	}
	if len(buf) == 0 {
		return nil
	}
	if uint64(len(buf)) > f.budget {
		return errBudget
	}
	f.budget -= uint64(len(buf))
	n, err := f.r.ReadAt(buf, int64(off))
	if n == len(buf) {
		return nil
	}
	return err
}

// contents reads a section of at most limit bytes.
func (f *elfFile) contents(s section, limit uint64) ([]byte, bool) {
	if s.kind == elf.SHT_NOBITS || s.size > limit || s.offset > f.size || s.size > f.size-s.offset {
		return nil, false
	}
	buf := make([]byte, s.size)
	return buf, f.read(buf, s.offset) == nil
}

func (f *elfFile) section(name string) (section, bool) {
	for _, s := range f.sections {
		if s.name == name {
			return s, true
		}
	}
	return section{}, false
}

// fileOffset is where the memory at vaddr comes from, and how many bytes follow
// in the same segment.
func (f *elfFile) fileOffset(vaddr uint64) (off, avail uint64, ok bool) {
	for _, s := range f.segments {
		if s.kind == elf.PT_LOAD && vaddr >= s.vaddr && vaddr-s.vaddr < s.size {
			d := vaddr - s.vaddr
			off = s.offset + d
			if off >= f.size {
				return 0, 0, false
			}
			return off, min(s.size-d, f.size-off), true
		}
	}
	return 0, 0, false
}

// vaddr is the link-time address of the code at a file offset. A page may
// belong to two segments, so an executable one is preferred.
func (f *elfFile) vaddr(off uint64) (uint64, bool) {
	var addr uint64
	found := false
	for _, s := range f.segments {
		if s.kind != elf.PT_LOAD || off < s.offset || off-s.offset >= s.size {
			continue
		}
		if s.flags&elf.PF_X != 0 {
			return s.vaddr + off - s.offset, true
		}
		if !found {
			addr, found = s.vaddr+off-s.offset, true
		}
	}
	return addr, found
}

// executable says whether code can be at vaddr.
func (f *elfFile) executable(vaddr uint64) bool {
	for _, s := range f.segments {
		if s.kind == elf.PT_LOAD && s.flags&elf.PF_X != 0 && vaddr >= s.vaddr && vaddr-s.vaddr < s.size {
			return true
		}
	}
	return false
}

// buildIDs reads the GNU build id, in hex, and Go's. They are looked for in
// sections as well as segments, since Go's linker leaves the GNU note out of
// PT_NOTE.
func (f *elfFile) buildIDs() (gnu, golang string) {
	notes := func(off, size uint64) {
		if size > maxNotes || off > f.size || size > f.size-off {
			return
		}
		buf := make([]byte, size)
		if f.read(buf, off) != nil {
			return
		}
		g, l := parseNotes(buf)
		if gnu == "" {
			gnu = g
		}
		if golang == "" {
			golang = l
		}
	}
	for _, s := range f.segments {
		if s.kind == elf.PT_NOTE {
			notes(s.offset, s.size)
		}
	}
	if gnu == "" || golang == "" {
		for _, s := range f.sections {
			if s.kind == elf.SHT_NOTE {
				notes(s.offset, s.size)
			}
		}
	}
	return gnu, golang
}

// parseNotes finds the build ids in a run of ELF notes.
func parseNotes(b []byte) (gnu, golang string) {
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

// eachRelative calls fn with every relative relocation, until fn returns false.
// The words it covers hold nothing useful in the file of a position-independent
// program.
func (f *elfFile) eachRelative(fn func(at, addend uint64) bool) {
	var relative uint32
	switch f.machine {
	case elf.EM_X86_64:
		relative = relativeAMD64
	case elf.EM_AARCH64:
		relative = relativeARM64
	default:
		return
	}
	le := binary.LittleEndian
	addr, size := f.relocations()
	off, avail, ok := f.fileOffset(addr)
	if !ok {
		return
	}
	size = min(size, avail)
	buf := make([]byte, scanChunk/relaSize*relaSize)
	for size >= relaSize {
		b := buf[:min(uint64(len(buf)), size/relaSize*relaSize)]
		if f.read(b, off) != nil {
			return
		}
		off += uint64(len(b))
		size -= uint64(len(b))
		for ; len(b) > 0; b = b[relaSize:] {
			if le.Uint32(b[8:]) == relative && !fn(le.Uint64(b), le.Uint64(b[16:])) {
				return
			}
		}
	}
}

// relocations is where the dynamic section says that the relocations with addends are.
func (f *elfFile) relocations() (addr, size uint64) {
	for _, s := range f.segments {
		if s.kind != elf.PT_DYNAMIC || s.size > maxDynamic {
			continue
		}
		buf := make([]byte, s.size)
		if f.read(buf, s.offset) != nil {
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

// cstring reads the string at offset off, which ends before end and is at most
// limit bytes long; longer ones are cut.
func cstring(f *elfFile, off, end uint64, limit int) (string, error) {
	end = min(end, f.size)
	if off >= end {
		return "", fmt.Errorf("a string at offset %#x is outside its table", off)
	}
	var out []byte
	var buf [128]byte
	for off < end && len(out) < limit {
		b := buf[:min(uint64(len(buf)), end-off)]
		if err := f.read(b, off); err != nil {
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
