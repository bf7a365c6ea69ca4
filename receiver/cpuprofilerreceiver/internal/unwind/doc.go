// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package unwind unwinds stacks of code without frame pointers, which the
// kernel cannot unwind. It starts from a sample's user registers and from the
// sample's copy of the top of the stack.
//
// The unwind rules are read once per object file. They come from .eh_frame, which
// compilers write for exceptions and debuggers, and from the tables of Go programs. A
// Table contains sorted addresses, and the rule that is valid from each address on. A
// rule finds the caller's stack pointer (the canonical frame address), the return address
// and the caller's frame pointer. A Cache makes the Tables on a separate goroutine, one
// Table for each build of a program. The memory of the Cache is limited. An unwinder
// walks the stack. It never waits and does not allocate memory.
//
// A rule may use only the stack pointer and the frame pointer. Only the few DWARF
// expressions that linkers and C libraries write are supported. If the code has any other
// rule, the stack ends with Lost.
//
// No existing library is suitable. Delve's library interprets the call frame instructions
// again for each address and panics at unknown instructions. The tables of
// OpenTelemetry's eBPF profiler cannot be used without the rest of that profiler.
package unwind
