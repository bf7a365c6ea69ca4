// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package sys contains the parts of the perf event interface that golang.org/x/sys/unix
// lacks. It defines the constants of linux/perf_event.h for decoding records. It also
// opens events, and reads the sysctls and limits that apply.
package sys

// The constants below repeat linux/perf_event.h, so that decoding works and can be tested
// on any operating system.

// These are the types of records in enum perf_event_type.
const (
	RecordLost          = 2
	RecordComm          = 3
	RecordExit          = 4
	RecordThrottle      = 5
	RecordFork          = 7
	RecordSample        = 9
	RecordMmap2         = 10
	RecordLostSamples   = 13
	RecordSwitch        = 14
	RecordSwitchCPUWide = 15
)

// These are the bits PERF_RECORD_MISC_*. Some bits have a different
// meaning for each type of record.
const (
	MiscCPUModeMask      = 7
	MiscKernel           = 1
	MiscUser             = 2
	MiscCommExec         = 1 << 13
	MiscSwitchOut        = 1 << 13
	MiscSwitchOutPreempt = 1 << 14
	MiscMmapBuildID      = 1 << 14
)

// These are the markers in a callchain from enum perf_callchain_context. Each marker
// names the context of the addresses that follow.
const (
	ContextKernel = ^uint64(0) - 128 + 1
	ContextUser   = ^uint64(0) - 512 + 1
	// ContextMax is the lowest marker.
	ContextMax = ^uint64(0) - 4095 + 1
)

// MaxStackDepth is PERF_MAX_STACK_DEPTH, the default of kernel.perf_event_max_stack.
const MaxStackDepth = 127

// RegistersABI64 is PERF_SAMPLE_REGS_ABI_64, the ABI value for registers of a 64-bit
// program. The value is 0 for a thread without user mode, and 1 for a 32-bit program.
const RegistersABI64 = 2
