// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"debug/elf"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// assembler assembles an .eh_frame section at the address sectionAt.
type assembler struct{ b []byte }

const sectionAt = codeAt + codeSize

// entry appends an entry with the given body and padding.
func (a *assembler) entry(body []byte) (at int) {
	at = len(a.b)
	for len(body)%8 != 4 {
		body = append(body, cfaNop)
	}
	a.b = binary.LittleEndian.AppendUint32(a.b, uint32(len(body)))
	a.b = append(a.b, body...)
	return at
}

// cie appends a common information entry with relative pointers, as compilers for x86-64
// do. The CFA at the entry of a function is rsp+8.
func (a *assembler) cie(augmentation string, data ...byte) int {
	return a.cieOf(16, augmentation, data, 0x0c, 7, 8, 0x90, 1)
}

func (a *assembler) cieOf(ra byte, augmentation string, data []byte, initial ...byte) int {
	body := append([]byte{0, 0, 0, 0, 1}, augmentation...)
	body = append(body, 0, 1, 0x78, ra)
	if augmentation != "" {
		body = append(body, byte(len(data)))
		body = append(body, data...)
	}
	return a.entry(append(body, initial...))
}

// fde appends the entry of a function.
func (a *assembler) fde(cie int, start uint64, size uint32, instructions ...byte) {
	at := len(a.b) + 4
	body := binary.LittleEndian.AppendUint32(nil, uint32(at-cie))
	body = binary.LittleEndian.AppendUint32(body, uint32(start-(sectionAt+uint64(at)+4)))
	body = binary.LittleEndian.AppendUint32(body, size)
	body = append(body, 0)
	a.entry(append(body, instructions...))
}

func read(t testing.TB, machine elf.Machine, section []byte, entry uint64) (*Table, *frames, error) {
	t.Helper()
	regs, err := registersOf(machine)
	require.NoError(t, err)
	b := newTableBuilder([]segment{{0, codeAt, codeSize}}, 1<<20)
	f := &frames{regs: regs, addr: sectionAt, to: b, entry: entry}
	err = f.read(section)
	return b.finish(), f, err
}

// block returns an expression as an operand.
func block(ops ...byte) []byte { return append([]byte{byte(len(ops))}, ops...) }

func TestCallFrameInstructions(t *testing.T) {
	atEntry := rule{cfa: cfaSP, cfaOff: 8, ra: locCFA, raOff: -8}
	pushed := rule{cfa: cfaSP, cfaOff: 16, ra: locCFA, raOff: -8, fp: locCFA, fpOff: -16}
	inFrame := rule{cfa: cfaFP, cfaOff: 16, ra: locCFA, raOff: -8, fp: locCFA, fpOff: -16}
	bad := rule{cfa: cfaBad}
	type row struct {
		at   uint64 // the offset from the start of the function
		want rule
	}
	for name, c := range map[string]struct {
		instructions []byte
		want         []row
	}{
		"none": {nil, []row{{0, atEntry}, {99, atEntry}, {100, rule{}}}},
		"push and move": {
			[]byte{0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6},
			[]row{{0, atEntry}, {1, pushed}, {3, pushed}, {4, inFrame}, {99, inFrame}},
		},
		"remembered for an early return": {
			[]byte{0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x42, 0x0a, 0x0c, 7, 8, 0xc6, 0x41, 0x0b, 0x4a, 0x0c, 7, 8},
			[]row{{6, atEntry}, {7, inFrame}, {17, rule{cfa: cfaSP, cfaOff: 8, ra: locCFA, raOff: -8, fp: locCFA, fpOff: -16}}},
		},
		"advances of all sizes": {
			slices.Concat([]byte{0x02, 10, 0x0e, 16}, []byte{0x03, 20, 0, 0x0e, 24}, []byte{0x04, 30, 0, 0, 0, 0x0e, 32}),
			[]row{
				{9, atEntry},
				{10, rule{cfa: cfaSP, cfaOff: 16, ra: locCFA, raOff: -8}},
				{30, rule{cfa: cfaSP, cfaOff: 24, ra: locCFA, raOff: -8}},
				{60, rule{cfa: cfaSP, cfaOff: 32, ra: locCFA, raOff: -8}},
			},
		},
		"long forms": {
			[]byte{0x12, 7, 0x7e, 0x05, 6, 2, 0x05, 16, 1, 0x41, 0x13, 0x7d, 0x11, 6, 3, 0x2f, 16, 1, 0x41, 0x06, 16, 0x06, 6},
			[]row{
				{0, pushed},
				{1, rule{cfa: cfaSP, cfaOff: 24, ra: locCFA, raOff: 8, fp: locCFA, fpOff: -24}},
				{2, rule{cfa: cfaSP, cfaOff: 24, ra: locCFA, raOff: -8}},
			},
		},
		"others are skipped": {
			[]byte{0x83, 3, 0x0a, 0x0b, 0x07, 3, 0x08, 3, 0x09, 3, 3, 0x14, 3, 1, 0x15, 3, 1, 0x10, 3, 1, 0, 0x16, 3, 1, 0, 0x2e, 16, 0x2d, 0, 0xc3},
			[]row{{0, atEntry}},
		},
		"an undefined return address is a root": {
			[]byte{0x41, 0x07, 16},
			[]row{{0, atEntry}, {1, rule{cfa: cfaBad, ra: locNone, flags: flagRoot}}},
		},
		"a frame pointer that has no value": {
			[]byte{0x07, 6},
			[]row{{0, rule{cfa: cfaSP, cfaOff: 8, ra: locCFA, raOff: -8, fp: locNone}}},
		},
		"a frame pointer in another register": {
			[]byte{0x09, 6, 3},
			[]row{{0, rule{cfa: cfaSP, cfaOff: 8, ra: locCFA, raOff: -8, fp: locUnknown}}},
		},
		"a return address in another register":      {[]byte{0x09, 16, 3}, []row{{0, bad}}},
		"a return address by an expression's value": {[]byte{0x16, 16, 2, 0x77, 8}, []row{{0, bad}}},
		"a frame found through another register":    {[]byte{0x0c, 10, 0}, []row{{0, bad}}},
		"an aligned frame": {
			slices.Concat([]byte{0x0c, 10, 0, 0x41, 0x0f}, block(0x76, 0x78, 0x06), []byte{0x10, 6}, block(0x76, 0)),
			[]row{{0, bad}, {1, rule{cfa: cfaFPDeref, cfaOff: -8, ra: locCFA, raOff: -8, fp: locFP}}},
		},
		"a signal frame's places": {
			slices.Concat([]byte{0x0f}, block(0x77, 0xa0, 0x01, 0x06), []byte{0x10, 16}, block(0x77, 0xa8, 0x01), []byte{0x10, 6}, block(0x77, 0xf8, 0)),
			[]row{{0, rule{cfa: cfaSPDeref, cfaOff: 160, ra: locSP, raOff: 168, fp: locSP, fpOff: 120}}},
		},
		"an offset added in an expression": {
			slices.Concat([]byte{0x0f}, block(0x76, 8, 0x23, 8)),
			[]row{{0, rule{cfa: cfaFP, cfaOff: 16, ra: locCFA, raOff: -8}}},
		},
		"a procedure linkage table": {
			slices.Concat([]byte{0x0f}, block(0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22)),
			[]row{{0, rule{cfa: cfaPLT, cfaOff: 11, ra: locCFA, raOff: -8}}},
		},
		"a longer expression": {slices.Concat([]byte{0x0f}, block(0x77, 8, 0x06, 0x06)), []row{{0, bad}}},
		"an offset of more than 32 bits": {
			[]byte{0x0e, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}, []row{{0, bad}},
		},
		"an unknown instruction ends what is known": {
			[]byte{0x41, 0x0e, 16, 0x86, 2, 0x41, 0x3f, 0x41, 0x0e, 24},
			[]row{{0, atEntry}, {1, pushed}, {2, bad}, {50, bad}},
		},
		"too many remembered": {
			slices.Concat([]byte{0x41}, slices.Repeat([]byte{0x0a}, maxRemembered+1)), []row{{0, atEntry}, {1, bad}},
		},
		"nothing remembered": {[]byte{0x41, 0x0b}, []row{{0, atEntry}, {1, bad}}},
		"beyond the function's end": {
			[]byte{0x02, 200, 0x0e, 16}, []row{{99, atEntry}, {100, rule{}}, {200, rule{}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var a assembler
			cie := a.cie("zR", 0x1b)
			a.fde(cie, codeAt+64, 100, c.instructions...)
			table, f, err := read(t, elf.EM_X86_64, a.b, 0)
			require.NoError(t, err)
			require.Zero(t, f.skipped)
			for _, r := range c.want {
				require.Equal(t, r.want, *table.at(codeAt + 64 + r.at), "at +%d", r.at)
			}
			require.Equal(t, rule{}, *table.at(codeAt + 63))
		})
	}
}

func TestAArch64KeepsTheReturnAddressInARegister(t *testing.T) {
	var a assembler
	cie := a.cieOf(30, "zRB", []byte{0x1b}, 0x0c, 31, 0)
	// These call frame instructions describe the code "stp x29, x30, [sp, #-32]!; mov x29,
	// sp" with a signed return address.
	a.fde(cie, codeAt, 100, 0x44, 0x2d, 0x44, 0x0e, 32, 0x9d, 4, 0x9e, 3, 0x44, 0x0d, 29)
	signal := a.cieOf(30, "zRS", []byte{0x1b}, 0x0c, 31, 0)
	a.fde(signal, codeAt+100, 100)
	table, f, err := read(t, elf.EM_AARCH64, a.b, 0)
	require.NoError(t, err)
	require.Zero(t, f.skipped)
	for at, want := range map[uint64]rule{
		0:   {cfa: cfaSP},
		4:   {cfa: cfaSP},
		8:   {cfa: cfaSP, cfaOff: 32, ra: locCFA, raOff: -24, fp: locCFA, fpOff: -32},
		12:  {cfa: cfaFP, cfaOff: 32, ra: locCFA, raOff: -24, fp: locCFA, fpOff: -32},
		100: signalARM64,
	} {
		require.Equal(t, want, *table.at(codeAt + at), "at +%d", at)
	}
}

func TestEntryOfTheHeaderIsARoot(t *testing.T) {
	var a assembler
	cie := a.cie("zR", 0x1b)
	a.fde(cie, codeAt, 100)
	a.fde(cie, codeAt+100, 100)
	table, _, err := read(t, elf.EM_X86_64, a.b, codeAt+100)
	require.NoError(t, err)
	require.Zero(t, table.at(codeAt+99).flags)
	require.EqualValues(t, flagRoot, table.at(codeAt+100).flags)
	require.EqualValues(t, flagRoot, table.at(codeAt+199).flags)
}

func TestKindsOfEntries(t *testing.T) {
	var a assembler
	plain := a.cieOf(16, "", nil, 0x0c, 7, 8, 0x90, 1) // with absolute addresses of 8 bytes
	at := len(a.b) + 4
	body := binary.LittleEndian.AppendUint32(nil, uint32(at-plain))
	body = binary.LittleEndian.AppendUint64(body, codeAt)
	a.entry(binary.LittleEndian.AppendUint64(body, 100))

	personal := a.cie("zPLRS", 0x9b, 1, 2, 3, 4, 0x1b, 0x1b)
	a.b = append(a.b, 0, 0, 0, 0) // the end marker of an object file
	a.fde(personal, codeAt+100, 100)
	for _, bad := range []int{
		a.cieOf(16, "eh", nil), a.cieOf(16, "zR?", []byte{0x1b}), a.cieOf(17, "zR", []byte{0x1b}),
		a.cieOf(16, "zR", []byte{0x1b}, 0x0b), a.cieOf(16, "zR", []byte{0x1d}), a.cieOf(16, "zR", []byte{0x9b}),
		a.cieOf(16, "zR", []byte{0x4b}), 3,
	} {
		a.fde(bad, codeAt+200, 100)
	}
	good := a.cie("zR", 0x1b)
	a.fde(good, codeAt-4096, 100)      // there is no code at this address
	a.fde(good, codeAt+codeSize-1, 10) // there is no code at the end of this range
	a.fde(good, codeAt+300, 0)
	a.fde(good, codeAt+400, 100)
	a.fde(good, codeAt+450, 100) // overlaps with the previous function

	table, f, err := read(t, elf.EM_X86_64, a.b, 0)
	require.NoError(t, err)
	require.Equal(t, 11, f.skipped)
	require.Equal(t, cfaSP, table.at(codeAt).cfa)
	require.EqualValues(t, flagSignal, table.at(codeAt+100).flags)
	require.Equal(t, cfaNone, table.at(codeAt+200).cfa)
	require.Equal(t, cfaNone, table.at(codeAt+300).cfa)
	require.Equal(t, cfaSP, table.at(codeAt+499).cfa)
	require.Equal(t, cfaNone, table.at(codeAt+500).cfa)

	cut := a.b[:len(a.b)-3]
	table, _, err = read(t, elf.EM_X86_64, cut, 0)
	require.ErrorIs(t, err, errCut)
	require.Equal(t, cfaSP, table.at(codeAt+400).cfa, "what is before the cut counts")
}

func TestFramePointersAreCountedAfterThePrologue(t *testing.T) {
	framePointer := []byte{0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6}
	withEpilogue := append(slices.Clone(framePointer), 0x02, 90, 0x0c, 7, 8)
	for name, c := range map[string]struct {
		with, without int
		want          bool
	}{
		"none at all": {0, 0, false},
		"all":         {10, 0, true},
		"nine tenths": {9, 1, true},
		"less":        {8, 2, false},
		"no one":      {0, 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			var a assembler
			cie := a.cie("zR", 0x1b)
			at := uint64(codeAt)
			for i := range c.with + c.without {
				switch {
				case i >= c.with:
					a.fde(cie, at, 90)
				default:
					a.fde(cie, at, 100, withEpilogue...)
				}
				at += 100
			}
			table, _, err := read(t, elf.EM_X86_64, a.b, 0)
			require.NoError(t, err)
			require.Equal(t, c.want, table.FramePointers())
		})
	}
}

// FuzzFrames checks that reading arbitrary sections stays within the limits.
func FuzzFrames(f *testing.F) {
	var a assembler
	cie := a.cie("zPLRS", 0x9b, 1, 2, 3, 4, 0x1b, 0x1b)
	a.fde(cie, codeAt, 100, 0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x0a, 0x0b, 0x0f, 2, 0x77, 8)
	f.Add(a.b, true)
	f.Add(a.b, false)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, true)
	f.Fuzz(func(t *testing.T, section []byte, amd64 bool) {
		machine := elf.EM_AARCH64
		if amd64 {
			machine = elf.EM_X86_64
		}
		table, _, _ := read(t, machine, section, codeAt)
		require.True(t, slices.IsSorted(table.pcs))
		require.Equal(t, len(table.pcs), len(table.rows))
		for i, pc := range table.pcs {
			require.Equal(t, table.rules[table.rows[i]], *table.at(table.base + uint64(pc)))
		}
	})
}

// FuzzUnwind unwinds arbitrary stacks with arbitrary rules.
func FuzzUnwind(f *testing.F) {
	var a assembler
	cie := a.cie("zR", 0x1b)
	a.fde(cie, codeAt, 100, 0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6)
	f.Add(a.b, words(0, codeAt+10, 0, codeAt+20), uint64(codeAt+1), uint64(stackAt), uint64(stackAt+8), uint64(0), uint16(0))
	f.Add(a.b, words(0, codeAt+10, 0, codeAt+20), uint64(codeAt+1), ^uint64(7), ^uint64(0), uint64(0), uint16(1))
	f.Fuzz(func(t *testing.T, section, stack []byte, pc, sp, fp, lr uint64, how uint16) {
		machine := elf.EM_AARCH64
		if how&1 == 0 {
			machine = elf.EM_X86_64
		}
		table, _, _ := read(t, machine, section, codeAt)
		o := onlyOf(table)
		var chain []uint64
		for b := stack; how&2 != 0 && len(b) >= 8; b = b[8:] {
			chain = append(chain, binary.LittleEndian.Uint64(b))
		}
		in := perfevent.Sample{Registers: Registers{PC: pc, SP: sp, FP: fp, LR: lr}, Stack: stack, User: chain}
		got, end := newUnwinder(o).Unwind(&in, nil, o)
		require.NotEmpty(t, got)
		require.LessOrEqual(t, len(got), MaxDepth)
		require.Less(t, end, endKinds)
	})
}
