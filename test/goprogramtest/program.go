// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package goprogramtest creates small Go programs for tests.
package goprogramtest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// HeaderSize and SectionHeaderSize are the sizes of structures in 64-bit ELF files.
const (
	HeaderSize        = 64
	SectionHeaderSize = 64
	programHeaderSize = 56
)

// These constants describe a pclntab, as in package goprogram.
const (
	magicGo118   = 0xfffffff0
	magicGo120   = 0xfffffff1
	pcHeaderSize = 8 + 8*8
	pointerSize  = 8
	noOffset     = 1<<32 - 1
)

// These are indices of words in runtime.moduledata, as in package goprogram.
const (
	modulePCHeader  = 0
	moduleNames     = 1
	moduleFunctions = 13
	moduleFtab      = 16
	moduleFtabLen   = 17
	moduleMinPC     = 20
	moduleMaxPC     = 21
	moduleText      = 22
	moduleGofunc118 = 38
	moduleGofunc120 = 40
	moduleWords     = 46
)

// CodeOffset is the file offset of a program's code.
const CodeOffset = HeaderSize + 3*programHeaderSize

// ModuleSize is the size in bytes of the moduledata at the end of the file.
const ModuleSize = moduleWords * pointerSize

// Segment is a PT_LOAD segment.
type Segment struct {
	Address uint64
	Flags   elf.ProgFlag
	Data    []byte
}

// ELF returns an x86-64 file that has segments but no section headers.
func ELF(segments ...Segment) []byte {
	le := binary.LittleEndian
	out := make([]byte, HeaderSize+len(segments)*programHeaderSize)
	copy(out, elf.ELFMAG)
	out[elf.EI_CLASS], out[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	le.PutUint16(out[18:], uint16(elf.EM_X86_64))
	le.PutUint64(out[32:], HeaderSize)
	le.PutUint16(out[54:], programHeaderSize)
	le.PutUint16(out[56:], uint16(len(segments)))
	for i, s := range segments {
		p := out[HeaderSize+i*programHeaderSize:]
		le.PutUint32(p, uint32(elf.PT_LOAD))
		le.PutUint32(p[4:], uint32(s.Flags))
		le.PutUint64(p[8:], uint64(len(out)))
		le.PutUint64(p[16:], s.Address)
		le.PutUint64(p[32:], uint64(len(s.Data)))
		le.PutUint64(p[40:], uint64(len(s.Data)))
		out = append(out, s.Data...)
	}
	return out
}

// These are the link-time addresses of a program's segments.
const (
	Text   = 0x1000
	Tables = 0x2000
	Data   = 0x4000
)

// Program returns a Go program with two functions, in the layout of
// version 118 or 120. At offset 8, main.outer has inlined main.inner
// (inner.go:20), which is called on line 12.
//
//	main.outer   [0, 32)  outer.go:10
//	main.last    [32, 64) outer.go:30
func Program(version int) []byte {
	le := binary.LittleEndian
	names := "main.inner\x00main.outer\x00main.last\x00"
	inner, outer, last := uint32(0), uint32(11), uint32(22) // linkers may begin with any name
	if version < 120 {
		names = "\x00" + names
		inner, outer, last = 1, 12, 23
	}
	files := "\x00outer.go\x00inner.go\x00"
	var units []byte
	for _, off := range []uint32{1, 10} {
		units = le.AppendUint32(units, off)
	}
	pair := func(b []byte, value, pc int) []byte {
		b = binary.AppendUvarint(b, uint64(uint32(value<<1^value>>31)))
		return binary.AppendUvarint(b, uint64(pc))
	}
	values := []byte{0} // offset 0 means that there is no table
	table := func(pairs ...int) uint32 {
		off := uint32(len(values))
		for i := 0; i < len(pairs); i += 2 {
			values = pair(values, pairs[i], pairs[i+1])
		}
		values = append(values, 0)
		return off
	}
	outerFile := table(1, 8, 1, 8, -1, 16)
	outerLine := table(11, 4, 2, 4, 8, 8, -8, 16) // lines 10, 12, 20, 12
	outerInline := table(0, 8, 1, 8, -1, 16)
	lastFile := table(1, 32)
	lastLine := table(31, 32)

	var functions []byte
	function := func(entry, name, file, line, startLine uint32, pcdata, funcdata []uint32) uint32 {
		off := uint32(len(functions))
		for _, v := range []uint32{entry, name, 0, 0, 0, file, line, uint32(len(pcdata)), 0} {
			functions = le.AppendUint32(functions, v)
		}
		if version >= 120 {
			functions = le.AppendUint32(functions, startLine)
		}
		functions = append(functions, 0, 0, 0, byte(len(funcdata)))
		for _, v := range append(pcdata, funcdata...) {
			functions = le.AppendUint32(functions, v)
		}
		return off
	}
	for _, v := range []uint32{0, 0, 32, 0, 64} { // the index, which is filled in below
		functions = le.AppendUint32(functions, v)
	}
	first := function(0, outer, outerFile, outerLine, 9, []uint32{0, 0, outerInline}, []uint32{noOffset, noOffset, noOffset, 0})
	second := function(32, last, lastFile, lastLine, 29, nil, nil)
	le.PutUint32(functions[4:], first)
	le.PutUint32(functions[12:], second)

	magic := uint32(magicGo120)
	if version < 120 {
		magic = magicGo118
	}
	header := le.AppendUint32(nil, magic)
	header = append(header, 0, 0, 1, pointerSize)
	offset := uint64(pcHeaderSize)
	words := []uint64{2, 2, 0}
	for _, part := range []string{names, string(units), files, string(values)} {
		words = append(words, offset)
		offset += uint64(len(part))
	}
	words = append(words, offset)
	for _, w := range words {
		header = le.AppendUint64(header, w)
	}
	pclntab := bytes.Join([][]byte{header, []byte(names), units, []byte(files), values, functions}, nil)

	gofunc := Tables + uint64(len(pclntab))
	if version < 120 {
		for _, v := range []uint32{0xffff, 0, 0, inner, 4} {
			pclntab = le.AppendUint32(pclntab, v)
		}
	} else {
		for _, v := range []uint32{0, inner, 4, 19} {
			pclntab = le.AppendUint32(pclntab, v)
		}
	}

	module := make([]uint64, moduleWords)
	module[modulePCHeader] = Tables
	module[moduleNames] = Tables + words[3]
	module[moduleFunctions] = Tables + words[7]
	module[moduleFtab] = Tables + words[7]
	module[moduleFtabLen] = 3
	module[moduleMinPC], module[moduleMaxPC] = Text, Text+64
	module[moduleText] = Text
	if version < 120 {
		module[moduleGofunc118] = gofunc
	} else {
		module[moduleGofunc120] = gofunc
	}
	memory := make([]byte, 24) // data before the moduledata
	for _, w := range module {
		memory = le.AppendUint64(memory, w)
	}
	return ELF(
		Segment{Text, elf.PF_R | elf.PF_X, make([]byte, 64)},
		Segment{Tables, elf.PF_R, pclntab},
		Segment{Data, elf.PF_R | elf.PF_W, memory},
	)
}
