// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// asm is code without tables. The function at 00 has a loop. The function at 20 has a frame
// pointer and calls the function at 00. The function at 30 ends with a call that does not
// return. A signal handler returns to the code at 40. The code at 4a is the entry point of
// a program.
var asm = []byte{
	/* 00 */ 0x41, 0x57, // push %r15
	/* 02 */ 0x55, // push %rbp
	/* 03 */ 0x48, 0x83, 0xec, 0x18, // sub $24,%rsp
	/* 07 */ 0xeb, 0x07, // jmp 10
	/* 09 */ 0x0f, 0x1f, 0x80, 0, 0, 0, 0, // nop
	/* 10 */ 0x85, 0xc0, // test %eax,%eax
	/* 12 */ 0x74, 0xfc, // je 10
	/* 14 */ 0x48, 0x83, 0xc4, 0x18, // add $24,%rsp
	/* 18 */ 0x5d, // pop %rbp
	/* 19 */ 0x41, 0x5f, // pop %r15
	/* 1b */ 0xc3, // ret
	/* 1c */ 0x0f, 0x1f, 0x40, 0, // nop
	/* 20 */ 0x55, // push %rbp
	/* 21 */ 0x48, 0x89, 0xe5, // mov %rsp,%rbp
	/* 24 */ 0x48, 0x83, 0xe4, 0xe0, // and $-32,%rsp
	/* 28 */ 0xe8, 0xd3, 0xff, 0xff, 0xff, // call 0
	/* 2d */ 0xc9, // leave
	/* 2e */ 0xc3, // ret
	/* 2f */ 0x90, // nop
	/* 30 */ 0x50, // push %rax
	/* 31 */ 0xe8, 0xea, 0xff, 0xff, 0xff, // call 20, which does not return
	/* 36 */ 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, // nop
	/* 40 */ 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, // mov $15,%rax
	/* 47 */ 0x0f, 0x05, // syscall
	/* 49 */ 0xc3, // ret
	/* 4a */ 0x31, 0xed, // xor %ebp,%ebp
	/* 4c */ 0xff, 0xd0, // call *%rax
	/* 4e */ 0xf4, // hlt
}

func TestCodeWithoutTablesHasRules(t *testing.T) {
	b := newTableBuilder([]segment{{vaddr: 0x1000, size: uint64(len(asm))}}, 1<<20)
	require.Equal(t, []addressRange{{0x1000, 0x1000 + uint64(len(asm))}}, b.gaps())
	require.True(t, b.begin(0x1000, 0x1000+uint64(len(asm))))
	b.derive(decode(asm, 0x1000))
	table := b.finish()

	sp := func(off int32) rule { return rule{cfa: cfaSP, cfaOff: off, ra: locCFA, raOff: -8} }
	saved := func(r rule, fpOff int32) rule {
		r.fp, r.fpOff = locCFA, fpOff
		return r
	}
	for at, want := range map[uint64]rule{
		0x00: sp(8), 0x02: sp(16), 0x03: saved(sp(24), -24), 0x07: saved(sp(48), -24),
		0x10: saved(sp(48), -24), 0x12: saved(sp(48), -24), 0x18: saved(sp(24), -24), 0x19: sp(16), 0x1b: sp(8),
		0x20: sp(8), 0x21: saved(sp(16), -16),
		0x28: saved(rule{cfa: cfaFP, cfaOff: 16, ra: locCFA, raOff: -8}, -16), 0x2e: sp(8),
		0x30: sp(8), 0x31: sp(16),
		0x3f: signalAMD64, 0x40: signalAMD64, 0x47: signalAMD64,
		0x4a: sp(8), 0x4c: {cfa: cfaBad, flags: flagRoot}, 0x4e: {cfa: cfaBad, flags: flagRoot},
	} {
		require.Equal(t, want, *table.at(0x1000 + at), "%#x", at)
	}
}

func FuzzCode(f *testing.F) {
	f.Add(asm)
	f.Fuzz(func(t *testing.T, code []byte) {
		if len(code) == 0 {
			return
		}
		b := newTableBuilder([]segment{{vaddr: 0x1000, size: uint64(len(code))}}, 1<<20)
		if b.begin(0x1000, 0x1000+uint64(len(code))) {
			b.derive(decode(code, 0x1000))
		}
		b.finish()
	})
}
