// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"fmt"
	"math/bits"
	"runtime"
)

// Registers are those of a thread in user mode that unwinding begins with.
type Registers struct {
	PC, SP, FP uint64
	// LR is the link register; 0 where the processor has none.
	LR uint64
}

// registerSet is which registers of user mode are sampled, by their bits in
// sample_regs_user, whose order is that of the words in a sample.
type registerSet struct {
	pc, sp, fp, lr uint // lr is 0 where the processor has none
}

// registersOf are those of the machine that a program is built for. It reports
// false where they are not known.
func registersOf(goarch string) (registerSet, bool) {
	switch goarch {
	case "amd64": // enum perf_event_x86_regs
		return registerSet{pc: 8, sp: 7, fp: 6}, true
	case "arm64": // enum perf_event_arm_regs
		return registerSet{pc: 32, sp: 31, fp: 29, lr: 30}, true
	}
	return registerSet{}, false
}

// userStackRegisters are those to be sampled with copies of so many bytes.
func userStackRegisters(bytes int) (registerSet, error) {
	if bytes > MaxUserStack || bytes%wordSize != 0 {
		return registerSet{}, fmt.Errorf("copying %d bytes of stacks: it must be a multiple of %d up to %d", bytes, wordSize, MaxUserStack)
	}
	s, ok := registersOf(runtime.GOARCH)
	if !ok {
		return s, fmt.Errorf("copying stacks: the registers of %s are not known", runtime.GOARCH)
	}
	return s, nil
}

func (s registerSet) mask() uint64 {
	m := uint64(1)<<s.pc | 1<<s.sp | 1<<s.fp
	if s.lr != 0 {
		m |= 1 << s.lr
	}
	return m
}

// count is how many words the registers take.
func (s registerSet) count() int { return bits.OnesCount64(s.mask()) }

// read takes the registers from their words.
func (s registerSet) read(words []uint64) Registers {
	at := func(bit uint) uint64 { return words[bits.OnesCount64(s.mask()&(1<<bit-1))] }
	r := Registers{PC: at(s.pc), SP: at(s.sp), FP: at(s.fp)}
	if s.lr != 0 {
		r.LR = at(s.lr)
	}
	return r
}

// PERF_SAMPLE_REGS_ABI_64: the thread's registers are those of a 64-bit program.
// 0 is of one that has no user mode, 1 of a 32-bit program.
const abi64 = 2

// userStack reads what follows the callchain in a sample of a session that
// copies stacks,
//
//	abi [, registers], size [, stack[size], dyn_size]
//
// and returns what follows that. What the kernel reserves for the stack is size
// bytes; dyn_size says how many of them it could fill.
func (d *decoder) userStack(words []uint64, s *Sample) (rest []uint64, ok bool) {
	if len(words) < 2 {
		return nil, false
	}
	abi := words[0]
	words = words[1:]
	if abi != 0 {
		n := d.registers.count()
		if len(words) < n+1 {
			return nil, false
		}
		if abi == abi64 {
			s.HasRegisters, s.Registers = true, d.registers.read(words)
		}
		words = words[n:]
	}
	size := words[0]
	words = words[1:]
	if size == 0 {
		return words, true
	}
	n := size / wordSize
	if size%wordSize != 0 || n >= uint64(len(words)) || words[n] > size {
		return nil, false
	}
	if s.HasRegisters {
		s.Stack = bytesOf(words[:n])[:words[n]]
	}
	return words[n+1:], true
}
