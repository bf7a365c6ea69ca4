// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// syntheticSegment is a PT_LOAD of an ELF file without section headers.
type syntheticSegment struct {
	vaddr uint64
	flags elf.ProgFlag
	data  []byte
}

func syntheticELF(segments ...syntheticSegment) []byte {
	le := binary.LittleEndian
	out := make([]byte, ehdrSize+len(segments)*phdrSize)
	copy(out, elf.ELFMAG)
	out[elf.EI_CLASS], out[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	le.PutUint16(out[18:], uint16(elf.EM_X86_64))
	le.PutUint64(out[32:], ehdrSize)
	le.PutUint16(out[54:], phdrSize)
	le.PutUint16(out[56:], uint16(len(segments)))
	for i, s := range segments {
		p := out[ehdrSize+i*phdrSize:]
		le.PutUint32(p, uint32(elf.PT_LOAD))
		le.PutUint32(p[4:], uint32(s.flags))
		le.PutUint64(p[8:], uint64(len(out)))
		le.PutUint64(p[16:], s.vaddr)
		le.PutUint64(p[32:], uint64(len(s.data)))
		le.PutUint64(p[40:], uint64(len(s.data)))
		out = append(out, s.data...)
	}
	return out
}

const (
	syntheticText   = 0x1000
	syntheticTables = 0x2000
	syntheticData   = 0x4000
)

// syntheticGo is a Go program of two functions, in the layout of a version:
//
//	main.outer   [0, 32)  outer.go:10, at 8 the inlined main.inner, inner.go:20, called on line 12
//	main.last    [32, 64) outer.go:30
func syntheticGo(version int) []byte {
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
	values := []byte{0} // offset 0 is no table
	table := func(pairs ...int) uint32 {
		off := uint32(len(values))
		for i := 0; i < len(pairs); i += 2 {
			values = pair(values, pairs[i], pairs[i+1])
		}
		values = append(values, 0)
		return off
	}
	outerFile := table(1, 8, 1, 8, -1, 16)
	outerLine := table(11, 4, 2, 4, 8, 8, -8, 16) // 10, 12, 20, 12
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
	for _, v := range []uint32{0, 0, 32, 0, 64} { // the index, filled in below
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
	header = append(header, 0, 0, 1, goPointerSize)
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
	tables := bytes.Join([][]byte{header, []byte(names), units, []byte(files), values, functions}, nil)

	gofunc := syntheticTables + uint64(len(tables))
	if version < 120 {
		for _, v := range []uint32{0xffff, 0, 0, inner, 4} {
			tables = le.AppendUint32(tables, v)
		}
	} else {
		for _, v := range []uint32{0, inner, 4, 19} {
			tables = le.AppendUint32(tables, v)
		}
	}

	module := make([]uint64, moduleWords)
	module[modulePCHeader] = syntheticTables
	module[moduleNames] = syntheticTables + words[3]
	module[moduleFunctions] = syntheticTables + words[7]
	module[moduleFtab] = syntheticTables + words[7]
	module[moduleFtabLen] = 3
	module[moduleMinPC], module[moduleMaxPC] = syntheticText, syntheticText+64
	module[moduleText] = syntheticText
	if version < 120 {
		module[moduleGofunc118] = gofunc
	} else {
		module[moduleGofunc120] = gofunc
	}
	data := make([]byte, 24) // what is before it
	for _, w := range module {
		data = le.AppendUint64(data, w)
	}
	return syntheticELF(
		syntheticSegment{syntheticText, elf.PF_R | elf.PF_X, make([]byte, 64)},
		syntheticSegment{syntheticTables, elf.PF_R, tables},
		syntheticSegment{syntheticData, elf.PF_R | elf.PF_W, data},
	)
}

func indexed(t testing.TB, file []byte) *object {
	t.Helper()
	o, err := newObject(bytes.NewReader(file), int64(len(file)), nil)
	require.NoError(t, err)
	require.NoError(t, o.index(1<<20))
	return o
}

func TestLayoutsOfGoTables(t *testing.T) {
	for _, version := range []int{118, 120} {
		first, inner, last := int64(9), int64(19), int64(29)
		if version < 120 { // which did not record them
			first, inner, last = 0, 0, 0
		}
		o := indexed(t, syntheticGo(version))
		for pc, want := range map[uint64][]samples.Line{
			0:  {{Function: "main.outer", File: "outer.go", StartLine: first, Line: 10}},
			4:  {{Function: "main.outer", File: "outer.go", StartLine: first, Line: 12}},
			7:  {{Function: "main.outer", File: "outer.go", StartLine: first, Line: 12}},
			8:  {{Function: "main.inner", File: "inner.go", StartLine: inner, Line: 20}, {Function: "main.outer", File: "outer.go", StartLine: first, Line: 12}},
			15: {{Function: "main.inner", File: "inner.go", StartLine: inner, Line: 20}, {Function: "main.outer", File: "outer.go", StartLine: first, Line: 12}},
			16: {{Function: "main.outer", File: "outer.go", StartLine: first, Line: 12}},
			32: {{Function: "main.last", File: "outer.go", StartLine: last, Line: 30}},
			63: {{Function: "main.last", File: "outer.go", StartLine: last, Line: 30}},
			64: nil,
		} {
			a, err := o.lookup(syntheticText + pc)
			require.NoError(t, err)
			require.Equal(t, want, a.lines, "version %d, pc %d", version, pc)
		}
	}
}

func TestGoTablesWithoutAModuleHaveNoInlinedCalls(t *testing.T) {
	file := syntheticGo(120)
	binary.LittleEndian.PutUint64(file[len(file)-moduleWords*goPointerSize:], 0)
	o, err := newObject(bytes.NewReader(file), int64(len(file)), nil)
	require.NoError(t, err)
	require.ErrorContains(t, o.index(1<<20), "moduledata", "nothing says where the text starts")

	// Until Go 1.25 the header said so.
	pclntab := bytes.Index(file, []byte{0xf1, 0xff, 0xff, 0xff})
	binary.LittleEndian.PutUint64(file[pclntab+24:], syntheticText)
	a, err := indexed(t, file).lookup(syntheticText + 8)
	require.NoError(t, err)
	require.Len(t, a.lines, 1)
	require.Equal(t, "main.outer", a.lines[0].Function)
}

func TestSymbolSizes(t *testing.T) {
	f := &elfFile{size: 1 << 20, budget: maxIndexBytes}
	f.segments = []segment{{kind: elf.PT_LOAD, flags: elf.PF_X, vaddr: 0x1000, size: 0x1000, offset: 0}}
	strings := "\x00outer\x00nested\x00label\x00end\x00local\x00__global\x00global\x00"
	name := func(s string) uint32 { return uint32(bytes.Index([]byte(strings), []byte("\x00"+s+"\x00"))) + 1 }
	var table []byte
	add := func(n string, bind elf.SymBind, value, size uint64) {
		table = binary.LittleEndian.AppendUint32(table, name(n))
		table = append(table, elf.ST_INFO(bind, elf.STT_FUNC), 0)
		table = binary.LittleEndian.AppendUint16(table, 3)
		table = binary.LittleEndian.AppendUint64(table, value)
		table = binary.LittleEndian.AppendUint64(table, size)
	}
	add("label", elf.STB_GLOBAL, 0x1200, 0)
	add("outer", elf.STB_GLOBAL, 0x1000, 0x100)
	add("nested", elf.STB_LOCAL, 0x1020, 0x10)
	add("local", elf.STB_LOCAL, 0x1300, 0x10)
	add("__global", elf.STB_GLOBAL, 0x1300, 0x10)
	add("global", elf.STB_GLOBAL, 0x1300, 0x10)
	add("end", elf.STB_GLOBAL, 0x1f00, 0)
	f.r = bytes.NewReader(append([]byte(strings), table...))
	f.sections = []section{
		{kind: elf.SHT_SYMTAB, offset: uint64(len(strings)), size: uint64(len(table)), link: 1},
		{kind: elf.SHT_STRTAB, size: uint64(len(strings))},
		{},
		{addr: 0x1000, size: 0xf80},
	}
	symbols, err := newSymbolTable(f, nil, 1<<20, func(uint64) bool { return false })
	require.NoError(t, err)
	for pc, want := range map[uint64]string{
		0x0fff: "", 0x1000: "outer", 0x101f: "outer", 0x1020: "nested", 0x102f: "nested", 0x1030: "outer", 0x10ff: "outer",
		0x1100: "", 0x1200: "label", 0x12ff: "label", 0x1300: "global", 0x130f: "global", 0x1310: "",
		0x1f00: "end", 0x1f7f: "end", 0x1f80: "", 0x1 << 40: "",
	} {
		lines, err := symbols.lines(pc)
		require.NoError(t, err)
		got := ""
		if len(lines) > 0 {
			got = lines[0].Function
		}
		require.Equal(t, want, got, "%#x", pc)
	}
	_, err = newSymbolTable(f, nil, 3*buildingSymbolSize, func(uint64) bool { return false })
	require.ErrorIs(t, err, errTooLarge)
}

func TestParseNotes(t *testing.T) {
	note := func(name string, kind uint32, desc string) []byte {
		b := binary.LittleEndian.AppendUint32(nil, uint32(len(name)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(desc)))
		b = binary.LittleEndian.AppendUint32(b, kind)
		for _, s := range []string{name, desc} {
			b = append(b, s...)
			for len(b)%4 != 0 {
				b = append(b, 0)
			}
		}
		return b
	}
	gnu, golang := note("GNU\x00", 3, "\x01\x02\xab"), note("Go\x00\x00", 4, "abc/def")
	tests := map[string]struct {
		notes       []byte
		gnu, golang string
	}{
		"both":                     {append(bytes.Clone(gnu), golang...), "0102ab", "abc/def"},
		"after another":            {append(note("Linux\x00", 257, "12345"), gnu...), "0102ab", ""},
		"the first counts":         {append(bytes.Clone(gnu), note("GNU\x00", 3, "\x07")...), "0102ab", ""},
		"cut":                      {gnu[:len(gnu)-2], "", ""},
		"size that wraps around":   {append(note("GNU\x00", 3, "")[:4], 0xff, 0xff, 0xff, 0xff, 3, 0, 0, 0, 'G', 'N', 'U', 0), "", ""},
		"longer than any build id": {note("GNU\x00", 3, string(make([]byte, maxBuildID+1))), "", ""},
		"none":                     {nil, "", ""},
	}
	for name, test := range tests {
		g, l := parseNotes(test.notes)
		require.Equal(t, test.gnu, g, name)
		require.Equal(t, test.golang, l, name)
	}
}

func TestReadKernelSymbols(t *testing.T) {
	k, err := readKernelSymbols(bytes.NewReader([]byte(
		"ffffffff81000000 T _stext\n" +
			"ffffffff81000000 T _text\n" +
			"ffffffff81000100 t local\n" +
			"ffffffff81000100 T __do\n" +
			"ffffffff81000100 T do\n" +
			"ffffffff81000200 D data\n" +
			"ffffffff81000300 B more\n" +
			"not a symbol\n" +
			"ffffffffc0000000 t probe\t[driver]\n" +
			"ffffffff81000180 W weak")))
	require.NoError(t, err)
	for pc, want := range map[uint64]string{
		0xffffffff80ffffff: "", 0xffffffff81000000: "_text", 0xffffffff810000ff: "_text",
		0xffffffff81000100: "do", 0xffffffff81000180: "weak", 0xffffffff81000200: "", 0xffffffff81000400: "",
		0xffffffffc0000010: "probe [driver]", 0xffffffffc0000000 + maxKernelFunction: "",
	} {
		lines, got := k.lines(pc), ""
		if len(lines) > 0 {
			got = lines[0].Function
		}
		require.Equal(t, want, got, "%#x", pc)
	}
	require.Equal(t, "probe", k.lines(0xffffffffc0000010)[0].SystemName)

	_, err = readKernelSymbols(bytes.NewReader([]byte("0000000000000000 T _text\n0000000000000000 t local\n")))
	require.ErrorIs(t, err, errHidden)
	_, err = readKernelSymbols(bytes.NewReader(bytes.Repeat([]byte("f"), 2*scanChunk)))
	require.Error(t, err)
}

func FuzzObject(f *testing.F) {
	for _, version := range []int{118, 120} {
		f.Add(syntheticGo(version), uint64(syntheticText+8))
	}
	if image, err := vdsoImage(); err == nil {
		f.Add(image, uint64(0xa00))
	}
	f.Fuzz(func(t *testing.T, file []byte, pc uint64) {
		o, err := newObject(bytes.NewReader(file), int64(len(file)), nil)
		if err != nil {
			return
		}
		const limit = 1 << 20
		_ = o.index(limit)
		for _, pc := range []uint64{pc, syntheticText, syntheticText + 8, syntheticText + 32} {
			a, err := o.lookup(pc)
			if err == nil && len(a.lines) > maxInlineDepth+1 {
				t.Errorf("%d lines", len(a.lines))
			}
		}
		if o.bytes() > 2*limit {
			t.Errorf("%d bytes held with a limit of %d", o.bytes(), limit)
		}
		_, _ = o.f.vaddr(pc)
	})
}

func FuzzKernelSymbols(f *testing.F) {
	f.Add([]byte("ffffffff81000000 T _stext\nffffffff81000100 t probe\t[driver]\n"), uint64(0xffffffff81000001))
	f.Add([]byte("0000000000000000 T _text\n"), uint64(0))
	f.Fuzz(func(t *testing.T, kallsyms []byte, pc uint64) {
		if k, err := readKernelSymbols(bytes.NewReader(kallsyms)); err == nil {
			k.lines(pc)
		}
	})
}
