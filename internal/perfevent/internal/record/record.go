// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package record merges the records of several rings by time and decodes them.
package record

import "github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"

// Type reports which part of a Record is set.
type Type uint8

// The types of records that are returned. Records of other types are skipped.
const (
	TypeSample Type = iota + 1
	TypeMmap
	TypeComm
	TypeFork
	TypeExit
	TypeLost
	TypeSwitch

	// These records are counted and not returned.

	typeLostSamples
	typeThrottle
)

// Record is one record of the kernel. Every Read fills it again, so its slices are valid
// until the next Read. Copy the bytes to keep them.
type Record struct {
	Type Type
	// Time is CLOCK_MONOTONIC in nanoseconds. ClockOffset converts it to Unix time.
	Time int64
	CPU  int
	// PID and TID are the thread that ran when the record was written, as seen from this
	// process's pid namespace. They are 0 if the thread is not in it and for the idle task,
	// and -1 if the thread was exiting and had no id left.
	PID, TID int
	// ID is the kernel's id of the event that wrote the record.
	ID uint64

	// Type names the field that is set. The other fields keep their last value.

	Sample Sample
	Mmap   Mmap
	Comm   Comm
	Task   Task
	Lost   Lost
	Switch Switch
}

// Sample is the stack of a thread that ran on a CPU for one more period. It
// belongs to TypeSample.
type Sample struct {
	// Kernel and User are the instruction pointers, the leaf first. All but the
	// first of each are return addresses.
	Kernel, User []uint64
	// InKernel reports whether the thread was interrupted in the kernel. The first address
	// of User is then the address after the system call, or the instruction that faulted.
	InKernel bool
	// Truncated reports whether the kernel stopped at its depth limit, so that the
	// root of the stack is missing.
	Truncated bool
	// Period is the CPU time in nanoseconds that the sample represents. It is 0 in a
	// session that samples context switches or tracepoints.
	Period int64
	// Hits is how often the event that wrote the sample was hit so far, in a session that
	// samples tracepoints. HitsLost is how many samples of the event did not fit the ring.
	// It is 0 before Linux 6.0.
	Hits, HitsLost uint64
	// Raw is the tracepoint's record of the hit.
	Raw []byte
	// HasRegisters reports whether Registers and Stack are set. They are set in a session
	// that copies stacks, for threads of 64-bit programs that were not exiting.
	HasRegisters bool
	// Registers are the registers of user mode, or the registers with which the thread
	// entered the kernel.
	Registers Registers
	// Stack is a copy of the memory from Registers.SP on. It ends early if there was less
	// memory.
	Stack []byte
	// CgroupID is the inode number of the thread's cgroup in the v2 tree. It is 0 if that
	// tree does not own perf_event.
	CgroupID uint64
}

// Mmap is an executable mapping that appeared in PID's address space. It belongs
// to TypeMmap.
type Mmap struct {
	// PID and TID made the mapping.
	PID, TID                 int
	Address, Length, Offset  uint64
	DeviceMajor, DeviceMinor uint32
	Inode                    uint64
	Prot, Flags              uint32
	// Filename is the path as the process sees it, or a name in brackets, or
	// "//anon". At most 4095 bytes.
	Filename []byte
	// BuildID is set where the kernel sent it in place of device and inode.
	BuildID []byte
}

// Comm is a thread's new name. It belongs to TypeComm.
type Comm struct {
	PID, TID int
	Name     []byte
	// Exec reports whether the name changed because the process runs another program.
	Exec bool
}

// Task is a thread that started or ended. It belongs to TypeFork and TypeExit.
type Task struct {
	// PID and TID are the new or ended thread, PPID and PTID its parent. A new thread
	// of a process has PID equal to PPID.
	PID, PPID, TID, PTID int
}

// Lost counts records that did not fit a ring. It belongs to TypeLost.
type Lost struct {
	Count uint64
	// Kinds are the kinds of records that may be lost.
	Kinds ring.Kinds
	// Since is the time of the last record before the loss. The lost records lie between
	// Since and the Time of this record.
	Since int64
}

// Records reports whether records about processes may be lost. The reader's state of
// processes and mappings may then be incomplete.
func (l Lost) Records() bool { return l.Kinds&ring.Records != 0 }

// Switches reports whether context switches may be lost. shared is about switches that
// share a ring with samples, split about switches with a ring of their own.
func (l Lost) Switches() (shared, split bool) {
	any := l.Kinds&ring.Switches != 0
	return any && l.Kinds&ring.Samples != 0, any && l.Kinds&ring.Samples == 0
}

// Switch is a thread that went onto or off a CPU. It belongs to TypeSwitch.
type Switch struct {
	// Out reports whether the thread left its CPU. Otherwise the thread came onto it.
	Out bool
	// Preempted reports whether the thread left while it was still able to run.
	Preempted bool
	// OtherPID and OtherTID are the thread that follows (out) or preceded (in). They are
	// set if the event was CPU-wide.
	OtherPID, OtherTID int
}
