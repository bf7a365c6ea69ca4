// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

// Type says which part of a Record is set.
type Type uint8

// The records that are handed over. Others, which no event here asks for, are
// skipped.
const (
	TypeSample Type = iota + 1
	TypeMmap
	TypeComm
	TypeFork
	TypeExit
	TypeLost
	TypeLostSamples
	TypeThrottle
	TypeUnthrottle
	TypeCgroup
	TypeSwitch
	TypeExec // in a SwitchRecord alone
)

// Record is one record of the kernel. It is filled again by every Read: its
// slices are valid until the next one, so copy what is kept.
type Record struct {
	Type Type
	// Time is CLOCK_MONOTONIC in nanoseconds; ClockOffset makes it Unix time.
	Time int64
	CPU  int
	// PID and TID are the thread that ran when the record was written, as seen
	// from this process's pid namespace: 0 where it is not in it (and for the
	// idle task), -1 where it was exiting and has no id any more.
	PID, TID int
	// ID is the kernel's id of the event that wrote the record.
	ID uint64
	// Attachment is the one whose event wrote a sample, or a switch in a session of
	// switches; nil for other records, and once it is detached.
	Attachment *Attachment

	// One of these is set, as Type says; the others keep what they had.

	Sample Sample
	Mmap   Mmap
	Comm   Comm
	Task   Task
	Lost   Lost
	Cgroup Cgroup
	Switch Switch
}

// Sample is the stack of a thread that ran on a CPU for one more period. It
// belongs to TypeSample.
type Sample struct {
	// Kernel and User are the instruction pointers, the leaf first. All but the
	// first of each are return addresses.
	Kernel, User []uint64
	// InKernel says that the thread was interrupted in the kernel. The first of
	// User is then where it entered the kernel: the address after the system
	// call, or the instruction that faulted.
	InKernel bool
	// Truncated says that the kernel stopped at its depth limit, so that the
	// root of the stack is missing.
	Truncated bool
	// Period is the CPU time in nanoseconds that this sample stands for; 0 in a
	// session of switches.
	Period int64
	// HasRegisters says that Registers and Stack are there: in a session with
	// Options.UserStack, for threads of 64-bit programs that were not exiting.
	HasRegisters bool
	// Registers are those of user mode: where the thread is, or where it entered
	// the kernel.
	Registers Registers
	// Stack is the memory from Registers.SP on, as much as there was of it.
	Stack []byte
	// CgroupID is the inode number of the thread's cgroup in the v2 tree, where
	// that tree owns perf_event; else 0.
	CgroupID uint64
}

// Mmap is an executable mapping that appeared in PID's address space. It
// belongs to TypeMmap.
type Mmap struct {
	// PID and TID made the mapping.
	PID, TID                 int
	Address, Length, Offset  uint64
	DeviceMajor, DeviceMinor uint32
	Inode, InodeGeneration   uint64
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
	// Exec says that the name changed because the process runs another program.
	Exec bool
}

// Task is a thread that was started or ended. It belongs to TypeFork and
// TypeExit.
type Task struct {
	// PID and TID are the new or ended thread, PPID and PTID its parent. A new
	// thread of a process has PID equal to PPID.
	PID, PPID, TID, PTID int
}

// Lost is how many records did not fit a ring. It belongs to TypeLost and
// TypeLostSamples.
type Lost struct {
	Count uint64
	// Records says that others than samples may be among them: what is known
	// about processes and their mappings may have holes.
	Records bool
}

// Cgroup is a cgroup that was made. It belongs to TypeCgroup.
type Cgroup struct {
	// ID is the directory's inode number, Path its path below the v2 root.
	ID   uint64
	Path []byte
}

// Switch is a thread that went onto or off a CPU. It belongs to TypeSwitch.
type Switch struct {
	// Out says that the thread of the record left its CPU, else it came.
	Out bool
	// Preempted says that it left while it could have gone on.
	Preempted bool
	// OtherPID and OtherTID are the thread that follows (out) or preceded (in),
	// where the event was CPU-wide.
	OtherPID, OtherTID int
}
