// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
)

// These limits apply to the parts of a file that are read, because
// the sizes in a file may be wrong.
const (
	// maxFrames is the maximum size of .eh_frame. Browsers
	// and databases have about 20 MiB.
	maxFrames = 64 << 20
	maxLoads  = 64
)

// errNoCode means that a file has no code that can be unwound.
var errNoCode = errors.New("no executable segment, or one of more than 4 GiB")

// readTable makes a table from an object file of size bytes. The table uses at most
// about maxBytes, and rules that do not fit are omitted. If a part of the file is
// corrupt, readTable skips this part, and may return both a table and an error.
// maxRead limits the size of .eh_frame.
func readTable(r io.ReaderAt, size, maxBytes int64, maxRead uint64) (t *Table, err error) {
	f, err := elffile.Parse(r, size)
	if err != nil {
		return nil, err
	}
	regs, err := registersOf(f.Machine)
	if err != nil {
		return nil, err
	}
	b := newTableBuilder(executable(f), maxBytes)
	if b == nil {
		return nil, errNoCode
	}
	b.entry = f.Entry
	framesErr := readFrames(f, regs, b, maxRead)
	b.addLinkage(f, regs)
	goErr := readGo(r, size, regs, b)
	codeErr := b.addCode(f)
	b.guessEntry()
	return b.finish(), errors.Join(framesErr, goErr, codeErr)
}

// executable returns the executable segments of a file.
func executable(f *elffile.File) []segment {
	var segments []segment
	for _, s := range f.Segments {
		if s.Kind == elf.PT_LOAD && s.Flags&elf.PF_X != 0 && s.Size > 0 && len(segments) < maxLoads {
			segments = append(segments, segment{s.Offset, s.Address, s.Size})
		}
	}
	return segments
}

// readFrames adds the rules of .eh_frame, if the file has one.
func readFrames(f *elffile.File, regs registers, b *tableBuilder, most uint64) error {
	f.SetBudget(most + elffile.ChunkSize)
	section, addr, named, err := frameSection(f, most)
	if err == nil {
		reader := frames{regs: regs, addr: addr, to: b, entry: f.Entry, terminated: !named}
		err = reader.read(section)
	}
	if err != nil {
		return fmt.Errorf("reading .eh_frame: %w", err)
	}
	return nil
}

// frameSection reads .eh_frame. In a file without section headers, it finds .eh_frame
// through .eh_frame_hdr. named is then false, and other data may follow .eh_frame in
// section.
func frameSection(f *elffile.File, most uint64) (section []byte, addr uint64, named bool, err error) {
	if s, ok := f.Section(".eh_frame"); ok && s.Kind != elf.SHT_NOBITS {
		if s.Flags&elf.SHF_COMPRESSED != 0 || s.Size > most || s.Size > f.Size {
			return nil, 0, false, fmt.Errorf("its %d bytes are compressed or too many", s.Size)
		}
		section = make([]byte, s.Size)
		return section, s.Address, true, f.Read(section, s.Offset)
	}
	for _, p := range f.Segments {
		if p.Kind != elf.PT_GNU_EH_FRAME || p.Size < 8 {
			continue
		}
		var head [16]byte
		if err := f.Read(head[:min(16, p.Size)], p.Offset); err != nil {
			return nil, 0, false, fmt.Errorf("its header: %w", err)
		}
		r := reader{data: head[:], pos: 4}
		addr, ok := r.pointer(head[1], p.Address)
		if head[0] != 1 || !ok {
			return nil, 0, false, errors.New("its .eh_frame_hdr makes no sense")
		}
		if off, avail, ok := f.Offset(addr); ok {
			section = make([]byte, min(avail, most))
			return section, addr, false, f.Read(section, off)
		}
	}
	return nil, 0, false, nil
}

// addLinkage adds rules for procedure linkage tables that .eh_frame does not cover. Such
// tables exist in static programs and on AArch64. The entries of a procedure linkage table
// are jumps that do not change the stack.
func (b *tableBuilder) addLinkage(f *elffile.File, regs registers) {
	entry := rule{cfa: cfaSP, cfaOff: 8, ra: locCFA, raOff: -8}
	if regs.leafRA {
		entry = rule{cfa: cfaSP}
	}
	for _, s := range f.Sections {
		switch s.Name {
		case ".plt", ".iplt", ".plt.got", ".plt.sec":
			// Rules of .eh_frame for the same addresses were added before, and take
			// precedence.
			if s.Flags&elf.SHF_EXECINSTR != 0 && b.begin(s.Address, s.Address+s.Size) {
				b.row(s.Address, entry)
			}
		}
	}
}

// readGo adds the rules of a Go program's tables. It adds no rules for other programs.
func readGo(r io.ReaderAt, size int64, regs registers, b *tableBuilder) error {
	err := goprogram.EachFunction(r, size, func(g *goprogram.Function) bool {
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
		return fmt.Errorf("reading the tables of Go: %w", err)
	}
	return nil
}

// goRule returns the rule for Go code at a stack depth. The depth is the number of bytes by
// which the stack pointer is below its value at the function's entry.
func goRule(depth int32, regs registers) rule {
	switch {
	case depth < 0 || depth > 1<<30:
		return rule{cfa: cfaBad, flags: flagGo}
	case !regs.leafRA:
		r := rule{cfa: cfaSP, cfaOff: depth + 8, ra: locCFA, raOff: -8, flags: flagGo}
		if depth >= 8 {
			r.fp, r.fpOff = locCFA, -16
		}
		return r
	case depth == 0:
		return rule{cfa: cfaSP, flags: flagGo}
	}
	// The return address is the lowest word of the frame. The caller's
	// frame pointer is stored just below.
	return rule{cfa: cfaSP, cfaOff: depth, ra: locSP, fp: locSP, fpOff: -8, flags: flagGo}
}

// goSpecial returns the rule for a function of Go's runtime that has no caller, or a caller
// on another stack. It returns false for other functions.
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

// signalAMD64 is the rule for the code that a signal handler returns to. The stack pointer
// points to the ucontext, in which the registers start at byte 40, with r8.
var signalAMD64 = rule{
	cfa: cfaSPDeref, cfaOff: 160,
	ra: locSP, raOff: 168,
	fp: locSP, fpOff: 120,
	flags: flagSignal,
}

// guessEntry adds a root function at the program's entry if the tables have no function
// there.
func (b *tableBuilder) guessEntry() {
	const size = 64 // larger than _start of any C library
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
