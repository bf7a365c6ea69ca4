// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
)

// The symbol names of the function and the variable.
const (
	sampledFunction = "runtime.profilealloc"
	rateVariable    = "runtime.MemProfileRate"
)

// query selects the function, the variable and the runtime's code.
var query = goprogram.Query{Function: sampledFunction, Variable: rateVariable, Size: 8, Runs: ofRuntime}

// The range of Go goRelease in which runtime.profilealloc(mp *m, x unsafe.Pointer, size
// uintptr) is known. In all of them, size is the third argument and is the size of the
// slot. The register ABI is always on for both machines.
const (
	firstRelease = 22
	lastRelease  = 26
)

// machines maps GOARCH to ELF machines. A kernel can only probe programs of its own
// architecture.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// LayoutError is returned if the register with the size of an allocation is unknown. The
// program is refused, because a wrong register would make every value wrong.
type LayoutError struct {
	// Version is the Go release that the linker recorded. Machine is the architecture of
	// the program.
	Version string
	Machine elf.Machine
	// Host is this machine's GOARCH.
	Host string
}

// Error names the release and the machine, and which of them are known.
func (e *LayoutError) Error() string {
	return fmt.Sprintf("the size of an allocation cannot be read from the runtime of %q for %v: known are go1.%d to go1.%d on amd64 and arm64, for programs of this machine's own kind (%s)",
		e.Version, e.Machine, firstRelease, lastRelease, e.Host)
}

// errNoSampling is returned for a program without the function sampledFunction.
var errNoSampling = errors.New("the program has no " + sampledFunction)

// site is the position of the uprobe: its offset in the file and its link-time address.
type site struct{ offset, address uint64 }

// siteOf returns the site of the uprobe in a program.
func siteOf(p *goprogram.Program, goarch string) (site, error) {
	minor, ok := release(p.Version)
	if machines[goarch] != p.Machine || !ok || minor < firstRelease || minor > lastRelease {
		return site{}, &LayoutError{Version: p.Version, Machine: p.Machine, Host: goarch}
	}
	if p.Function == nil {
		return site{}, errNoSampling
	}
	code := p.Function.Code[:p.Function.Length]
	var in uint64
	switch p.Machine {
	case elf.EM_X86_64:
		in = afterStackCheck(code)
	case elf.EM_AARCH64:
		in = afterStackCheckARM64(code)
	}
	return site{offset: p.Function.Offset + in, address: p.Function.Address + in}, nil
}

// afterStackCheck returns the offset after the stack check at the start of a function. It
// returns 0 if the function begins differently. After the check, the arguments are still in
// their registers. A uprobe at the entry would be hit twice when the stack has grown and
// the function restarts. In addition, the kernel emulates the next instruction, push %rbp,
// without a second trap.
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

// afterStackCheckARM64 is afterStackCheck for arm64. The kernel can step over the
// instruction after the check, str x30, [sp, #-N]!.
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

// release returns the N of go1.N, for a release or a release candidate. Other toolchains
// (devel) may use any layout. Experiments and vendor suffixes follow after a space or a
// dash.
func release(version string) (minor int, ok bool) {
	found := goRelease.FindStringSubmatch(version)
	if found == nil {
		return 0, false
	}
	minor, err := strconv.Atoi(found[1])
	return minor, err == nil
}

// goRelease matches releases and release candidates.
var goRelease = regexp.MustCompile(`^go1\.([0-9]+)($|[. -]|rc)`)

// ofRuntime reports whether a function belongs to the runtime's allocator. runtime/pprof
// removes the same functions from the leaves of a heap profile.
func ofRuntime(name []byte) bool {
	return bytes.HasPrefix(name, []byte("runtime.")) || bytes.HasPrefix(name, []byte("internal/runtime/"))
}
