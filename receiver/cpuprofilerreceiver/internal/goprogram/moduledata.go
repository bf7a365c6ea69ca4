// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package goprogram

import (
	"debug/elf"
	"encoding/binary"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
)

// module holds the needed fields of runtime.moduledata.
type module struct {
	// text is the base of the addresses of functions.
	text uint64
	// gofunc lists the addresses at which funcdata may start. The
	// most likely address comes first.
	gofunc []uint64
}

// Most of these constants are indexes of words in runtime.moduledata. The first 23 words
// have been the same since Go 1.18.
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
	moduleGofunc120    = 40 // after two words of coverage counters
	moduleWords        = 46
	maxModuleCandidate = 8
)

// findModule finds runtime.moduledata. Stripped programs have no symbol for it, so
// findModule searches for a pointer to the pclntab, which is the first word of
// runtime.moduledata. It checks other words against the pclntab's header. In a
// position-independent program, the relocations contain the pointers.
func findModule(f *elffile.File, pclntab uint64, h pcHeader, first, last uint32) (module, bool) {
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
		for i := moduleGofunc118; i < moduleWords; i++ { // a later Go release may have moved gofunc
			if i != likely && words[i] != 0 {
				m.gofunc = append(m.gofunc, words[i])
			}
		}
		return m, true
	}
	var relocated []uint64
	f.EachRelative(func(at, addend uint64) bool {
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
		f.EachRelative(func(where, addend uint64) bool {
			if where >= at && where-at < moduleWords*pointerSize && (where-at)%pointerSize == 0 {
				words[(where-at)/pointerSize] = addend
			}
			return true
		})
		if m, ok := matches(&words); ok {
			return m, true
		}
	}
	for _, s := range f.Segments {
		if s.Kind != elf.PT_LOAD || s.Flags&elf.PF_W == 0 {
			continue
		}
		if m, ok := scanModule(f, s, pclntab, matches); ok {
			return m, true
		}
	}
	return module{}, false
}

// scanModule searches a segment for a pointer to the pclntab.
func scanModule(f *elffile.File, s elffile.Segment, pclntab uint64, matches func(*[moduleWords]uint64) (module, bool)) (m module, found bool) {
	first := min(-s.Address%pointerSize, s.Size) // the first aligned word
	candidates := 0
	// If the segment cannot be read, the rest is not searched.
	_ = f.Scan(s.Offset+first, s.Size-first, 0, func(b []byte, off uint64) bool {
		for i := 0; i+pointerSize <= len(b); i += pointerSize {
			if binary.LittleEndian.Uint64(b[i:]) != pclntab {
				continue
			}
			var words [moduleWords]uint64
			if readWords(f, s.Address+off-s.Offset+uint64(i), &words) {
				m, found = matches(&words)
			}
			if candidates++; found || candidates == maxModuleCandidate {
				return false
			}
		}
		return true
	})
	return m, found
}

func readWords(f *elffile.File, addr uint64, words *[moduleWords]uint64) bool {
	var buf [moduleWords * pointerSize]byte
	off, avail, ok := f.Offset(addr)
	if !ok || avail < uint64(len(buf)) || f.Read(buf[:], off) != nil {
		return false
	}
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(buf[i*pointerSize:])
	}
	return true
}
