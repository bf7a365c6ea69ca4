// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package record merges the records of several rings by time and decodes them.
package record

import "github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"

// Type is the type of a record. It determines which field of a Record is set.
type Type uint8

// These are the types of records that Read returns. Records of other types are skipped.
const (
	TypeSample Type = iota + 1
	TypeMmap
	TypeComm
	TypeFork
	TypeExit
	TypeLost
	TypeSwitch

	// These records are counted but not returned.

	typeLostSamples
	typeThrottle
)

// Record is one record of the kernel. Every Read overwrites the Record, so its slices are
// valid only until the next Read. Copy the bytes to keep them.
type Record struct {
	Type Type
	// Time is CLOCK_MONOTONIC in nanoseconds. ClockOffset converts it to Unix time.
	Time int64
	CPU  int
	// PID and TID identify the thread that ran when the record was written. They are ids in
	// this process's pid namespace. They are 0 for the idle task and for a thread outside the
	// namespace. They are -1 if the thread was exiting and had no id left.
	PID, TID int
	// ID is the kernel's id of the event that wrote the record.
	ID uint64

	// Type names the field below that is set. The other fields keep their last value.

	Sample Sample
	Mmap   Mmap
	Comm   Comm
	Task   Task
	Lost   Lost
	Switch Switch
}

// Sample is the stack of a thread that ran on a CPU for one more period. It is set for
// TypeSample.
type Sample struct {
	// Kernel and User are the instruction pointers, leaf first. In each list, all pointers
	// except the first are return addresses.
	Kernel, User []uint64
	// InKernel reports whether the thread was interrupted in the kernel. If so, the first
	// address of User is the address after the system call, or the faulting instruction.
	InKernel bool
	// Truncated reports whether the kernel stopped at its depth limit. The root of the
	// stack is then missing.
	Truncated bool
	// Period is the CPU time in nanoseconds that the sample represents. It is 0 in a
	// session that samples context switches or tracepoints.
	Period int64
	// Hits is the total number of hits of the event that wrote the sample. It is set in
	// sessions that sample tracepoints. HitsLost counts samples of the event that did not fit
	// into the ring. HitsLost is 0 before Linux 6.0.
	Hits, HitsLost uint64
	// Raw is the tracepoint's record of the hit.
	Raw []byte
	// HasRegisters reports whether Registers and Stack are set. They are set in sessions
	// that copy stacks or sample probes, if the program is 64-bit and the thread was not
	// exiting.
	HasRegisters bool
	// Registers are the user-mode registers. If the thread was in the kernel, they are
	// the registers with which the thread entered the kernel.
	Registers Registers
	// Stack is a copy of the memory from Registers.SP upward. It is shorter if less memory
	// was readable.
	Stack []byte
	// CgroupID is the inode number of the thread's cgroup in the v2 tree. It is 0 if the v2
	// tree does not own perf_event.
	CgroupID uint64
}

// Mmap is a new executable mapping in the address space of PID. It is set for TypeMmap.
type Mmap struct {
	// PID and TID identify the thread that made the mapping.
	PID, TID                 int
	Address, Length, Offset  uint64
	DeviceMajor, DeviceMinor uint32
	Inode                    uint64
	Prot, Flags              uint32
	// Filename is the path as the process sees it, a name in brackets, or "//anon". It has
	// at most 4095 bytes.
	Filename []byte
	// BuildID is set if the kernel sent the build id instead of device and inode.
	BuildID []byte
}

// Comm is a thread's new name. It is set for TypeComm.
type Comm struct {
	PID, TID int
	Name     []byte
	// Exec reports whether the name changed because the process runs another program.
	Exec bool
}

// Task is a thread that started or ended. It is set for TypeFork and TypeExit.
type Task struct {
	// PID and TID identify the new or ended thread. PPID and PTID identify its parent. If a
	// process starts a thread, PID equals PPID.
	PID, PPID, TID, PTID int
}

// Lost counts records that did not fit into a ring. It is set for TypeLost.
type Lost struct {
	Count uint64
	// Kinds are the kinds of records that may be lost.
	Kinds ring.Kinds
	// Since is the time of the last record before the loss. The records were lost between
	// Since and the Time of this record.
	Since int64
}

// Records reports whether records about processes may be lost. The reader's state of
// processes and mappings may then be incomplete.
func (l Lost) Records() bool { return l.Kinds&ring.Records != 0 }

// Switches reports whether context switches may be lost. shared refers to switches that
// share a ring with samples, and split refers to switches with a separate ring.
func (l Lost) Switches() (shared, split bool) {
	any := l.Kinds&ring.Switches != 0
	return any && l.Kinds&ring.Samples != 0, any && l.Kinds&ring.Samples == 0
}

// Switch is a thread that was put on or taken off a CPU. It is set for TypeSwitch.
type Switch struct {
	// Out reports whether the thread left its CPU. Otherwise the thread was put on the CPU.
	Out bool
	// Preempted reports whether the thread was still runnable when it left.
	Preempted bool
}
