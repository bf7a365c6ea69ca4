// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"debug/elf"
	"encoding/binary"
)

// module is what runtime.moduledata says beyond the pclntab.
type module struct {
	// text is the address that functions' entries are relative to.
	text uint64
	// gofunc lists where function data may start, the likeliest first.
	gofunc []uint64
}

// Words of runtime.moduledata. The first 23 are the same since Go 1.18.
const (
	modulePCHeader     = 0
	moduleNames        = 1
	moduleFunctions    = 13
	moduleFtab         = 16
	moduleFtabLen      = 17
	moduleMinPC        = 20
	moduleMaxPC        = 21
	moduleText         = 22
	moduleGofunc118    = 38
	moduleGofunc120    = 40 // two words of coverage counters came before it
	moduleWords        = 46
	maxModuleCandidate = 8
)

// findModule finds runtime.moduledata, which a stripped program has no symbol
// for: it starts with a pointer to the pclntab, and much of what follows can be
// checked against the pclntab's own header. In position-independent programs
// the pointers are in the relocations instead.
func findModule(f *elfFile, pclntab uint64, h pcHeader, first, last uint32) (module, bool) {
	matches := func(words *[moduleWords]uint64) (module, bool) {
		text := words[moduleText]
		if words[modulePCHeader] != pclntab || words[moduleNames] != pclntab+h.names ||
			words[moduleFunctions] != pclntab+h.functionsTable || words[moduleFtab] != pclntab+h.functionsTable ||
			words[moduleFtabLen] != h.functions+1 ||
			words[moduleMinPC] != text+uint64(first) || words[moduleMaxPC] != text+uint64(last) {
			return module{}, false
		}
		m := module{text: text}
		likely := moduleGofunc120
		if h.version < 120 {
			likely = moduleGofunc118
		}
		m.gofunc = append(m.gofunc, words[likely])
		for i := moduleGofunc118; i < moduleWords; i++ { // a later release may have moved it
			if i != likely && words[i] != 0 {
				m.gofunc = append(m.gofunc, words[i])
			}
		}
		return m, true
	}
	var relocated []uint64
	f.eachRelative(func(at, addend uint64) bool {
		if addend == pclntab {
			relocated = append(relocated, at)
		}
		return len(relocated) < maxModuleCandidate
	})
	for _, at := range relocated {
		var words [moduleWords]uint64
		if !readWords(f, at, &words) {
			continue
		}
		f.eachRelative(func(where, addend uint64) bool {
			if where >= at && where-at < moduleWords*goPointerSize && (where-at)%goPointerSize == 0 {
				words[(where-at)/goPointerSize] = addend
			}
			return true
		})
		if m, ok := matches(&words); ok {
			return m, true
		}
	}
	for _, s := range f.segments {
		if s.kind != elf.PT_LOAD || s.flags&elf.PF_W == 0 {
			continue
		}
		if m, ok := scanModule(f, s, pclntab, matches); ok {
			return m, true
		}
	}
	return module{}, false
}

// scanModule looks for a pointer to the pclntab in writable memory.
func scanModule(f *elfFile, s segment, pclntab uint64, matches func(*[moduleWords]uint64) (module, bool)) (module, bool) {
	off := -s.vaddr % goPointerSize // the first aligned word
	buf := make([]byte, scanChunk)
	candidates := 0
	for off+goPointerSize <= s.size {
		b := buf[:min(uint64(len(buf)), (s.size-off)&^(goPointerSize-1))]
		if f.read(b, s.offset+off) != nil {
			break
		}
		for i := 0; i < len(b); i += goPointerSize {
			if binary.LittleEndian.Uint64(b[i:]) != pclntab {
				continue
			}
			if candidates++; candidates > maxModuleCandidate {
				return module{}, false
			}
			var words [moduleWords]uint64
			if !readWords(f, s.vaddr+off+uint64(i), &words) {
				continue
			}
			if m, ok := matches(&words); ok {
				return m, true
			}
		}
		off += uint64(len(b))
	}
	return module{}, false
}

func readWords(f *elfFile, addr uint64, words *[moduleWords]uint64) bool {
	var buf [moduleWords * goPointerSize]byte
	off, avail, ok := f.fileOffset(addr)
	if !ok || avail < uint64(len(buf)) || f.read(buf[:], off) != nil {
		return false
	}
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(buf[i*goPointerSize:])
	}
	return true
}
