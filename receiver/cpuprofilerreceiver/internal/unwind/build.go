// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
)

// Bounds on what a file may make us read: every size in it is a claim.
const (
	// maxFrames bounds .eh_frame. That of a browser or a database has some 20 MiB.
	maxFrames = 64 << 20
	// maxHeaders bounds what is read of everything else.
	maxHeaders = 16 << 20
	maxBuildID = 64
	maxLoads   = 64
)

// ErrNoCode says that a file has nothing in it that could be unwound.
var ErrNoCode = errors.New("no executable segment, or one of more than 4 GiB")

// budget reads a file until a bound is hit.
type budget struct {
	r    io.ReaderAt
	left int64
}

var errBudget = errors.New("there is too much to read")

func (b *budget) ReadAt(p []byte, off int64) (int, error) {
	if int64(len(p)) > b.left {
		return 0, errBudget
	}
	b.left -= int64(len(p))
	return b.r.ReadAt(p, off)
}

// NewTable reads a table from an object file of size bytes. It holds at most
// about maxBytes; what does not fit is left out. Parts of the file that make no
// sense are left out too, and the error says so: there may be a table beside it.
func NewTable(r io.ReaderAt, size, maxBytes int64) (t *Table, err error) {
	return readTable(r, size, maxBytes, false)
}

// readTable reads a whole table, or of the roots alone those that have no name in
// a stripped file: Go's always have theirs.
func readTable(r io.ReaderAt, size, maxBytes int64, rootsOnly bool) (t *Table, err error) {
	limited := &budget{r: r}
	f, err := openELF(limited)
	if err != nil {
		return nil, err
	}
	regs, err := registersOf(f.Machine)
	if err != nil {
		return nil, err
	}
	b := newTableBuilder(executable(f), maxBytes)
	if b == nil {
		return nil, ErrNoCode
	}
	b.t.buildID, b.entry, b.rootsOnly = buildID(f), f.Entry, rootsOnly
	limited.left = maxFrames
	framesErr := readFrames(f, regs, b)
	var goErr error
	if !rootsOnly {
		b.addLinkage(f, regs)
		goErr = readGo(r, size, regs, b)
	}
	b.guessEntry()
	return b.finish(), errors.Join(framesErr, goErr)
}

// openELF reads the headers of an object file.
func openELF(r *budget) (*elf.File, error) {
	r.left = maxHeaders
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, fmt.Errorf("read the ELF headers: %w", err)
	}
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return nil, errors.New("not a 64-bit little-endian ELF file, and no other is read")
	}
	return f, nil
}

// readBuildID reads the GNU build id alone.
func readBuildID(r io.ReaderAt) string {
	f, err := openELF(&budget{r: r})
	if err != nil {
		return ""
	}
	return buildID(f)
}

// executable lists the parts of the file that are mapped to be executed.
func executable(f *elf.File) []segment {
	var segments []segment
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && p.Filesz > 0 && len(segments) < maxLoads &&
			p.Vaddr+p.Filesz > p.Vaddr && p.Off+p.Filesz > p.Off {
			segments = append(segments, segment{p.Off, p.Vaddr, p.Filesz})
		}
	}
	return segments
}

// buildID is the GNU build id in hex.
func buildID(f *elf.File) string {
	const gnuBuildID = 3
	for _, s := range f.Sections {
		if s.Type != elf.SHT_NOTE || s.Name != ".note.gnu.build-id" || s.Size > 1024 {
			continue
		}
		b, err := s.Data()
		if err != nil {
			continue
		}
		r := reader{data: b}
		name, desc, kind := r.u32(), r.u32(), r.u32()
		r.take(uint64(name+3) &^ 3)
		if id := r.take(uint64(desc)); kind == gnuBuildID && len(id) > 0 && len(id) <= maxBuildID {
			return hex.EncodeToString(id)
		}
	}
	return ""
}

// readFrames reads .eh_frame, if there is one.
func readFrames(f *elf.File, regs registers, b *tableBuilder) error {
	section, addr, named, err := frameSection(f)
	if err != nil || section == nil {
		return err
	}
	reader := frames{regs: regs, addr: addr, to: b, entry: f.Entry, terminated: !named}
	if err := reader.read(section); err != nil {
		return fmt.Errorf("read .eh_frame: %w", err)
	}
	return nil
}

// frameSection finds .eh_frame by its name, or, in files without section
// headers, from the index of it that the dynamic linker uses; then more follows
// it.
func frameSection(f *elf.File) (section []byte, addr uint64, named bool, err error) {
	if s := f.Section(".eh_frame"); s != nil && s.Type != elf.SHT_NOBITS {
		if s.Flags&elf.SHF_COMPRESSED != 0 || s.Size > maxFrames {
			return nil, 0, false, fmt.Errorf("an .eh_frame of %d bytes is not read", s.Size)
		}
		section = make([]byte, min(s.Size, maxFrames))
		n, err := s.ReadAt(section, 0)
		if n < len(section) && err != nil {
			return nil, 0, false, fmt.Errorf("read .eh_frame: %w", err)
		}
		return section, s.Addr, true, nil
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_GNU_EH_FRAME || p.Filesz < 8 {
			continue
		}
		var head [16]byte
		if n, err := p.ReadAt(head[:min(16, p.Filesz)], 0); err != nil && n < 8 {
			return nil, 0, false, fmt.Errorf("read .eh_frame_hdr: %w", err)
		}
		r := reader{data: head[:], pos: 4}
		addr, ok := r.pointer(head[1], p.Vaddr)
		if head[0] != 1 || !ok {
			return nil, 0, false, errors.New("an .eh_frame_hdr that makes no sense")
		}
		for _, load := range f.Progs {
			if load.Type == elf.PT_LOAD && addr-load.Vaddr < load.Filesz {
				off := addr - load.Vaddr
				section = make([]byte, min(load.Filesz-off, maxFrames))
				n, err := load.ReadAt(section, int64(off))
				if n == 0 && err != nil {
					return nil, 0, false, fmt.Errorf("read .eh_frame: %w", err)
				}
				return section[:n], addr, false, nil
			}
		}
	}
	return nil, 0, false, nil
}

// addLinkage adds the procedure linkage tables that .eh_frame says nothing of,
// as in static programs and on AArch64: their entries jump and touch no stack.
func (b *tableBuilder) addLinkage(f *elf.File, regs registers) {
	entry := rule{cfa: cfaSP, cfaOff: 8, ra: whereCFA, raOff: -8}
	if regs.leafRA {
		entry = rule{cfa: cfaSP}
	}
	for _, s := range f.Sections {
		switch s.Name {
		case ".plt", ".iplt", ".plt.got", ".plt.sec":
			// Where there are frames of the same addresses, those came first.
			if s.Flags&elf.SHF_EXECINSTR != 0 && b.begin(s.Addr, s.Addr+s.Size) {
				b.row(s.Addr, entry)
			}
		}
	}
}

// readGo reads the tables of a Go program, if it is one.
func readGo(r io.ReaderAt, size int64, regs registers, b *tableBuilder) error {
	_, err := symbolizer.EachGoFunction(r, size, func(g *symbolizer.GoFunction) bool {
		if !b.begin(g.Start, g.End) {
			return !b.t.incomplete
		}
		special, isSpecial := goSpecial(g.Name, regs)
		b.t.code.golang += g.End - g.Start
		for i := range g.Depths {
			r := special
			if !isSpecial {
				r = goRule(g.Depths[i].Depth, regs)
			}
			if !b.row(g.Depths[i].From, r) {
				return false
			}
		}
		if len(g.Depths) == 0 {
			if !isSpecial {
				special = rule{cfa: cfaBad, flags: flagGo}
			}
			return b.row(g.Start, special)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("read Go's tables: %w", err)
	}
	return nil
}

// goRule is what follows from how far the stack pointer is below where it was
// at a Go function's entry.
func goRule(depth int32, regs registers) rule {
	switch {
	case depth < 0 || depth > 1<<30:
		return rule{cfa: cfaBad, flags: flagGo}
	case !regs.leafRA:
		r := rule{cfa: cfaSP, cfaOff: depth + 8, ra: whereCFA, raOff: -8, flags: flagGo}
		if depth >= 8 {
			r.fp, r.fpOff = whereCFA, -16
		}
		return r
	case depth == 0:
		return rule{cfa: cfaSP, flags: flagGo}
	}
	// The return address is the frame's lowest word, and below it the pointer to
	// the caller's frame.
	return rule{cfa: cfaSP, cfaOff: depth, ra: whereSP, fp: whereSP, fpOff: -8, flags: flagGo}
}

// goSpecial knows the functions of the runtime that have no caller, and those
// that run on another stack than their caller.
func goSpecial(name string, regs registers) (rule, bool) {
	short, ok := strings.CutPrefix(strings.TrimSuffix(name, ".abi0"), "runtime.")
	if !ok {
		if strings.HasPrefix(name, "_rt0_") {
			return rule{cfa: cfaBad, flags: flagGo | flagRoot}, true
		}
		return rule{}, false
	}
	switch short {
	case "goexit", "mstart", "rt0_go":
		return rule{cfa: cfaBad, flags: flagGo | flagRoot}, true
	case "systemstack", "mcall", "gogo", "asmcgocall", "asmcgocall_no_g", "asmcgocall_landingpad",
		"cgocallback", "morestack":
		return rule{cfa: cfaBad, flags: flagGo}, true
	case "sigreturn__sigaction":
		if regs.leafRA {
			return signalARM64, true
		}
		return signalAMD64, true
	}
	return rule{}, false
}

// signalAMD64 is the rule of the code that a signal handler returns to. The
// stack pointer is at the ucontext, whose registers from r8 on begin at 40.
var signalAMD64 = rule{
	cfa: cfaSPDeref, cfaOff: 160,
	ra: whereSP, raOff: 168,
	fp: whereSP, fpOff: 120,
	flags: flagSignal,
}

// guessEntry marks the entry of a program that says nothing of its code there.
func (b *tableBuilder) guessEntry() {
	const size = 64 // more than any C library's _start has
	if b.entry == 0 || b.entryKnown {
		return
	}
	end := min(b.entry+size, b.t.base+b.limit)
	if b.afterEntry != 0 {
		end = min(end, b.afterEntry)
	}
	if b.begin(b.entry, end) {
		b.row(b.entry, rule{cfa: cfaBad, flags: flagRoot})
	}
}
