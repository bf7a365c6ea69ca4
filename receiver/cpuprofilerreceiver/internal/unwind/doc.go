// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package unwind finds the callers of a sampled thread in code without frame pointers,
// where the kernel cannot find them. It starts from the sample's user registers and the
// sample's copy of the top of the stack.
//
// The rules are read once per object file. They come from .eh_frame, which compilers write
// for exceptions and debuggers, and from the tables of Go programs. A Table holds them as
// sorted arrays of addresses and of the rule that is valid from each address on. A rule
// finds the caller's stack pointer (the canonical frame address), the return address and
// the caller's frame pointer. A Cache makes Tables on its own goroutine, one for each build
// of a program, within a bound. An unwinder walks the stack. It never waits and does not
// allocate memory.
//
// A rule that needs other registers than the stack pointer and the frame pointer is not
// followed. Of expressions, only the few that linkers and C libraries write are followed.
// Other stacks end there, as Lost.
//
// No library fits. Delve's library interprets the instructions again for each address and
// panics at unknown ones. The tables of OpenTelemetry's eBPF profiler cannot be used
// without the rest of that profiler.
package unwind
