// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

// The parts of linux/perf_event.h that records are made of, named as there.
// They are repeated here so that decoding builds, and is tested, anywhere.

// enum perf_event_type
const (
	recordLost          = 2
	recordComm          = 3
	recordExit          = 4
	recordThrottle      = 5
	recordUnthrottle    = 6
	recordFork          = 7
	recordSample        = 9
	recordMmap2         = 10
	recordLostSamples   = 13
	recordSwitch        = 14
	recordSwitchCPUWide = 15
	recordCgroup        = 19
)

// PERF_RECORD_MISC_*
const (
	miscCPUModeMask      = 7
	miscKernel           = 1
	miscUser             = 2
	miscCommExec         = 1 << 13
	miscSwitchOut        = 1 << 13
	miscSwitchOutPreempt = 1 << 14
	miscMmapBuildID      = 1 << 14
)

// enum perf_callchain_context: entries of a callchain that say whose the
// following ones are.
const (
	contextKernel = ^uint64(0) - 128 + 1
	contextUser   = ^uint64(0) - 512 + 1
	contextMax    = ^uint64(0) - 4095 + 1
)

// maxStackDepth is PERF_MAX_STACK_DEPTH, the default of
// kernel.perf_event_max_stack.
const maxStackDepth = 127
