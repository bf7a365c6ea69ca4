// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package goprogram

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"regexp"
	"strconv"
)

// Machines maps GOARCH to ELF machines. A kernel can only probe programs of the same
// architecture.
var Machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// AfterStackCheck returns the offset in the function at which to place a probe, which is
// just after the function's stack check. It returns 0 if the function has no stack check.
func (c *Code) AfterStackCheck(machine elf.Machine) uint64 {
	code := c.Code[:c.Length]
	switch machine {
	case elf.EM_X86_64:
		return afterStackCheck(code)
	case elf.EM_AARCH64:
		return afterStackCheckARM64(code)
	}
	return 0
}

// afterStackCheck returns the offset just after the stack check at the start of a
// function. It returns 0 if the function begins differently. A uprobe at the entry would
// be hit twice when the stack grows, because the function then restarts. After the check,
// the arguments are still in their registers. In addition, the kernel can emulate the
// next instruction, push %rbp, without a second trap.
func afterStackCheck(code []byte) uint64 {
	rest, ok := bytes.CutPrefix(code, []byte{0x49, 0x3b, 0x66, 0x10}) // cmp 0x10(%r14),%rsp
	if !ok {
		return 0
	}
	switch {
	case len(rest) > 6 && rest[0] == 0x0f && rest[1] == 0x86: // jbe, 4 bytes of distance
		rest = rest[6:]
	case len(rest) > 2 && rest[0] == 0x76: // jbe, 1 byte
		rest = rest[2:]
	default:
		return 0
	}
	if rest[0] != 0x55 { // push %rbp
		return 0
	}
	return uint64(len(code) - len(rest))
}

// afterStackCheckARM64 is afterStackCheck for arm64. The instruction after the check is
// str x30, [sp, #-N]!. The kernel can step over this instruction.
func afterStackCheckARM64(code []byte) uint64 {
	check := [...]struct{ instruction, mask uint32 }{
		{0xf9400b90, 0xffffffff}, // ldr x16, [x28, #16]
		{0xeb3063ff, 0xffffffff}, // cmp sp, x16
		{0x54000009, 0xff00001f}, // b.ls, 19 bits of distance
		{0xf8000ffe, 0xffe00fff}, // str x30, [sp, #-N]!
	}
	const size = 4
	if len(code) < len(check)*size {
		return 0
	}
	for i, c := range check {
		if binary.LittleEndian.Uint32(code[i*size:])&c.mask != c.instruction {
			return 0
		}
	}
	return uint64(len(check)-1) * size
}

// Release returns N if version is release or release candidate go1.N. It returns false for
// other toolchains (devel), because they may use any layout. The name of an experiment or
// a vendor may follow after a space or a dash.
func Release(version string) (minor int, ok bool) {
	found := goRelease.FindStringSubmatch(version)
	if found == nil {
		return 0, false
	}
	minor, err := strconv.Atoi(found[1])
	return minor, err == nil
}

// goRelease matches releases and release candidates.
var goRelease = regexp.MustCompile(`^go1\.([0-9]+)($|[. -]|rc)`)
