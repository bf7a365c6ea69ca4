// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package symbolizer

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/test/goprogramtest"
)

func memory(o *object) int64 {
	bytes, _ := o.uses()
	return bytes
}

func indexed(t testing.TB, file []byte) *object {
	t.Helper()
	o, err := newObject(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	require.NoError(t, o.index(1<<20))
	return o
}

func TestLayoutsOfGoTables(t *testing.T) {
	for _, version := range []int{118, 120} {
		first, inner, last := int64(9), int64(19), int64(29)
		if version < 120 { // older versions do not record the first lines
			first, inner, last = 0, 0, 0
		}
		o := indexed(t, goprogramtest.Program(version))
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
			a, _, err := o.lookup(goprogramtest.Text + pc)
			require.NoError(t, err)
			require.Equal(t, want, a.lines, "version %d, pc %d", version, pc)
		}
	}
}

func TestGoTablesWithoutAModuleHaveNoInlinedCalls(t *testing.T) {
	file := goprogramtest.Program(120)
	binary.LittleEndian.PutUint64(file[len(file)-goprogramtest.ModuleSize:], 0)
	o, err := newObject(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	require.ErrorContains(t, o.index(1<<20), "moduledata", "the start of the text is unknown")

	// Up to Go 1.25, the header contains the start of the text.
	pclntab := bytes.Index(file, []byte{0xf1, 0xff, 0xff, 0xff})
	binary.LittleEndian.PutUint64(file[pclntab+24:], goprogramtest.Text)
	a, _, err := indexed(t, file).lookup(goprogramtest.Text + 8)
	require.NoError(t, err)
	require.Len(t, a.lines, 1)
	require.Equal(t, "main.outer", a.lines[0].Function)
}

func TestSymbolSizes(t *testing.T) {
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
	f := elffile.New(bytes.NewReader(append([]byte(strings), table...)), 1<<20)
	f.Segments = []elffile.Segment{{Kind: elf.PT_LOAD, Flags: elf.PF_X, Address: 0x1000, Size: 0x1000}}
	f.Sections = []elffile.Section{
		{Kind: elf.SHT_SYMTAB, Offset: uint64(len(strings)), Size: uint64(len(table)), Link: 1},
		{Kind: elf.SHT_STRTAB, Size: uint64(len(strings))},
		{},
		{Address: 0x1000, Size: 0xf80},
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
	_, err = readKernelSymbols(bytes.NewReader(bytes.Repeat([]byte("f"), 2*elffile.ChunkSize)))
	require.Error(t, err)
}

func FuzzObject(f *testing.F) {
	for _, version := range []int{118, 120} {
		f.Add(goprogramtest.Program(version), uint64(goprogramtest.Text+8))
	}
	if image, err := mappedfile.VDSO(); err == nil {
		f.Add(image, uint64(0xa00))
	}
	f.Fuzz(func(t *testing.T, file []byte, pc uint64) {
		o, err := newObject(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			return
		}
		const limit = 1 << 20
		_ = o.index(limit)
		for _, pc := range []uint64{pc, goprogramtest.Text, goprogramtest.Text + 8, goprogramtest.Text + 32} {
			a, _, err := o.lookup(pc)
			if err == nil && len(a.lines) > 257 {
				t.Errorf("%d lines", len(a.lines))
			}
		}
		if memory(o) > 2*limit {
			t.Errorf("%d bytes held with a limit of %d", memory(o), limit)
		}
		_, _ = o.f.Address(pc)
	})
}

// TestBulkSymbolsOfTheKernelTakeNoMoreThanTheyNeed checks the memory of the kernel's symbols,
// because the symbols are kept until the process ends.
func TestBulkSymbolsOfTheKernelTakeNoMoreThanTheyNeed(t *testing.T) {
	var kallsyms bytes.Buffer
	const n = 100_000
	for i := range n {
		fmt.Fprintf(&kallsyms, "%016x t a_function_of_the_kernel_%d\n", 0xffffffff81000000+64*uint64(i), i)
	}
	k, err := readKernelSymbols(&kallsyms)
	require.NoError(t, err)
	needed := len(k.text) + (8+4)*n
	require.LessOrEqual(t, k.bytes(), int64(needed+needed/50))
	require.Equal(t, "a_function_of_the_kernel_7", k.lines(0xffffffff81000000 + 64*7 + 3)[0].Function)
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

func TestReleaseKeepsNamesThatAreNotResolved(t *testing.T) {
	frame := &samples.Location{Type: samples.FrameNative, Resolved: true, Lines: []samples.Line{{Function: "[no stack]"}}}
	Release(frame)
	require.True(t, frame.Resolved)
	require.Len(t, frame.Lines, 1, "of a second batch too")
}
