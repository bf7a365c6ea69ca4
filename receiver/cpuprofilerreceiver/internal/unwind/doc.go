// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package unwind finds the callers of a sampled thread where the kernel could
// not: in code that keeps no frame pointers. It works from the user registers
// and the copy of the top of the stack that came with a sample.
//
// What to do at an address is read from the object file once: from .eh_frame,
// which compilers write for exceptions and for debuggers, and from the tables
// of Go programs. A Table holds it as sorted arrays of addresses and of the
// rule that is valid from there on: where the caller's stack begins (the
// canonical frame address), and where the return address and the caller's frame
// pointer were stored. A Cache makes Tables on a goroutine of its own, one for
// each build of a program, and keeps them within a bound. An Unwinder walks the
// stack; it never waits and allocates nothing.
//
// Rules that need other registers than the stack and the frame pointer, or an
// expression that is none of the few that linkers and C libraries write, are
// not followed: such a stack ends there and says so.
//
// The two libraries there are do not fit: Delve's interprets the instructions
// for each address anew and panics at what it does not know, and the tables of
// OpenTelemetry's eBPF profiler cannot be had without the rest of it.
package unwind
