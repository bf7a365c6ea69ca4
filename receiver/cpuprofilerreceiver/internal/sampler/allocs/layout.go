// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
)

// The names that the linker gives what is looked for.
const (
	sampledFunction = "runtime.profilealloc"
	rateVariable    = "runtime.MemProfileRate"
)

// query asks for both, and for the code of the runtime.
var query = goprogram.Query{Function: sampledFunction, Variable: rateVariable, Size: 8, Runs: ofRuntime}

// The releases of Go whose runtime.profilealloc(mp *m, x unsafe.Pointer, size
// uintptr) was read: size is its third argument in all of them, and what is
// passed is the slot's size. The register ABI is always on for both machines.
const (
	firstRelease = 22
	lastRelease  = 26
)

// sizeRegister is the register of the third integer argument in Go's internal
// ABI, as perf numbers registers: PERF_REG_X86_CX and PERF_REG_ARM64_X2.
var sizeRegister = map[elf.Machine]int{elf.EM_X86_64: 2, elf.EM_AARCH64: 2}

// machines are those of GOARCH: a probe is heard by the kernel that runs the
// program.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// LayoutError is a program of which it is not known where its runtime says how
// large an allocation is. It is refused: a wrong register would give numbers, all
// wrong.
type LayoutError struct {
	// Version is the release of Go, as the linker noted it, Machine what the
	// program was built for.
	Version string
	Machine elf.Machine
	// Host is what this machine runs, as GOARCH.
	Host string
}

// Error names the release and machine, and those that are known.
func (e *LayoutError) Error() string {
	return fmt.Sprintf("where the runtime of %q for %v has the size of an allocation is not known; it is for go1.%d to go1.%d on amd64 and arm64, and programs of this machine's own kind (%s)",
		e.Version, e.Machine, firstRelease, lastRelease, e.Host)
}

// errNoSampling is a program whose runtime has no function to probe.
var errNoSampling = errors.New("the program has no " + sampledFunction)

// site is where the probe goes and what it finds there.
type site struct {
	// offset is where in the file, address the same as linked.
	offset, address uint64
	register        int
}

// siteOf says where to probe a program.
func siteOf(p *goprogram.Program, goarch string) (site, error) {
	register, known := sizeRegister[p.Machine]
	minor, ok := release(p.Version)
	if !known || machines[goarch] != p.Machine || !ok || minor < firstRelease || minor > lastRelease {
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
	return site{offset: p.Function.Offset + in, address: p.Function.Address + in, register: register}, nil
}

// afterStackCheck is where the check for room on the stack ends that functions
// begin with: the arguments are still in their registers there. A probe at the
// entry would be hit once more when the stack has grown and the function starts
// over; and the instruction that follows the check, push %rbp, is one that the
// kernel carries out itself, without a second trap. It is 0, the entry, where the
// function begins in another way.
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

// afterStackCheckARM64 is the same for arm64, where the instruction that follows the
// check, str x30, [sp, #-N]!, is one that the kernel can step over.
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

// release is the N of go1.N, of a release or a candidate for one. What is built
// from other sources (devel) may have any layout; experiments, and what vendors
// add, stand after a space or a dash.
func release(version string) (minor int, ok bool) {
	rest, ok := strings.CutPrefix(version, "go1.")
	if !ok {
		return 0, false
	}
	digits := 0
	for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
		digits++
	}
	switch rest = rest[digits:]; {
	case rest == "", rest[0] == '.', rest[0] == ' ', rest[0] == '-', strings.HasPrefix(rest, "rc"):
	default:
		return 0, false
	}
	minor, err := strconv.Atoi(version[len("go1.") : len("go1.")+digits])
	return minor, err == nil
}

// ofRuntime says whether a function is one of those that allocate for others:
// runtime/pprof leaves the same ones out of the leaves of a heap profile.
func ofRuntime(name []byte) bool {
	return bytes.HasPrefix(name, []byte("runtime.")) || bytes.HasPrefix(name, []byte("internal/runtime/"))
}
