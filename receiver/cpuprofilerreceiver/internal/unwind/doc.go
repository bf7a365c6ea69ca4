// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package unwind finds the callers of a sampled thread in code that keeps no frame
// pointers, where the kernel cannot. It starts from the user registers and the copy of
// the top of the stack that a sample has.
//
// The rules are read once per object file: from .eh_frame, which compilers write for
// exceptions and debuggers, and from the tables of Go programs. A Table holds them as
// sorted arrays of addresses and of the rule that is valid from each on: how to find
// the caller's stack pointer (the canonical frame address), the return address and the
// caller's frame pointer. A Cache makes Tables on its own goroutine, one for each build
// of a program, within a bound. An unwinder walks the stack; it never waits and
// allocates nothing.
//
// A rule that needs other registers than the stack and the frame pointer is not
// followed, nor is an expression other than the few that linkers and C libraries write:
// such a stack ends there, as Lost.
//
// No library fits: Delve's interprets the instructions again for each address and
// panics at unknown ones, and the tables of OpenTelemetry's eBPF profiler cannot be
// used without the rest of it.
package unwind
