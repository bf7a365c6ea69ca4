// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"math/bits"
	"runtime"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Registers are the user-mode registers of a thread from which unwinding starts.
type Registers struct {
	PC, SP, FP uint64
	// LR is the link register. It is 0 if the processor has no link register.
	LR uint64
	// BCP is the register that holds the position in the bytecode in HotSpot's interpreter.
	BCP uint64
	// First and Third are the registers that hold the first and third integer argument in
	// Go's internal ABI.
	First, Third uint64
	// G is the register that points to the current goroutine in Go's internal ABI.
	G uint64
}

// RegisterSet holds the sampled user-mode registers as bit numbers of sample_regs_user. The
// register words of a sample are in the order of these bits.
type RegisterSet struct {
	pc, sp, fp, bcp, first, third, g uint
	lr                               uint // 0 if the processor has no link register
}

// MaxUserStack is the maximum number of bytes that can be copied from a user's stack.
const MaxUserStack = 65528

// RegistersFor returns the registers to sample when the given number of bytes of the user's
// stack is copied.
func RegistersFor(bytes int) (RegisterSet, error) {
	if bytes > MaxUserStack || bytes%ring.WordSize != 0 {
		return RegisterSet{}, fmt.Errorf("copying %d bytes of stacks: it must be a multiple of %d up to %d", bytes, ring.WordSize, MaxUserStack)
	}
	s, ok := registersOf(runtime.GOARCH)
	if !ok {
		return s, fmt.Errorf("copying stacks: the registers of %s are not known", runtime.GOARCH)
	}
	return s, nil
}

// registersOf returns the registers of an architecture. It returns false if they are
// unknown.
func registersOf(goarch string) (RegisterSet, bool) {
	switch goarch {
	case "amd64": // enum perf_event_x86_regs
		return RegisterSet{pc: 8, sp: 7, fp: 6, bcp: 21, first: 0, third: 2, g: 22}, true
	case "arm64": // enum perf_event_arm_regs
		return RegisterSet{pc: 32, sp: 31, fp: 29, bcp: 22, first: 0, third: 2, g: 28, lr: 30}, true
	}
	return RegisterSet{}, false
}

// Mask returns the set as the value of sample_regs_user.
func (s RegisterSet) Mask() uint64 {
	m := uint64(1)<<s.pc | 1<<s.sp | 1<<s.fp | 1<<s.bcp | 1<<s.first | 1<<s.third | 1<<s.g
	if s.lr != 0 {
		m |= 1 << s.lr
	}
	return m
}

// count returns the number of registers in the set. A sample contains one word per register.
func (s RegisterSet) count() int { return bits.OnesCount64(s.Mask()) }

// read returns the registers from the words of a sample.
func (s RegisterSet) read(words []uint64) Registers {
	at := func(bit uint) uint64 { return words[bits.OnesCount64(s.Mask()&(1<<bit-1))] }
	r := Registers{
		PC: at(s.pc), SP: at(s.sp), FP: at(s.fp), BCP: at(s.bcp),
		First: at(s.first), Third: at(s.third), G: at(s.g),
	}
	if s.lr != 0 {
		r.LR = at(s.lr)
	}
	return r
}

// userStack decodes the words after the callchain in a session with registers:
//
//	abi [, registers], size [, stack[size], dyn_size]
//
// It returns the words that follow. size is the number of bytes that the kernel reserved
// for the stack. dyn_size is the number of these bytes that the kernel copied.
func (d *Decoder) userStack(words []uint64, s *Sample) (rest []uint64, ok bool) {
	if len(words) < 2 {
		return nil, false
	}
	abi := words[0]
	words = words[1:]
	if abi != 0 {
		n := d.Registers.count()
		if len(words) < n+1 {
			return nil, false
		}
		if abi == sys.RegistersABI64 {
			s.HasRegisters, s.Registers = true, d.Registers.read(words)
		}
		words = words[n:]
	}
	size := words[0]
	words = words[1:]
	if size == 0 {
		return words, true
	}
	n := size / ring.WordSize
	if size%ring.WordSize != 0 || n >= uint64(len(words)) || words[n] > size {
		return nil, false
	}
	if s.HasRegisters {
		s.Stack = ring.Bytes(words[:n])[:words[n]]
	}
	return words[n+1:], true
}
