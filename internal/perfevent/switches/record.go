// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package switches records every context switch of the host's CPUs, so that the process on
// each CPU is known at every moment. It also records the forks, execs and exits of
// processes.
package switches

// Options are the options of a Session. The zero value of each field is valid.
type Options struct {
	// CPUs are the CPUs to follow. An empty list means all CPUs that are online.
	CPUs []int
	// Ring is the size in bytes of each CPU's ring. It is rounded up to a power of two of
	// pages, and halved until the user may lock it. 0 means a CPU's share of 16 MiB (256
	// KiB to 2 MiB).
	Ring int
	// MaxDescriptors bounds the file descriptors. Each CPU takes two. 0 means 4096. The
	// limit is never above half of RLIMIT_NOFILE.
	MaxDescriptors int
}

// ringSize returns the size of one CPU's ring. A switch takes 64 bytes, so a ring of 256
// KiB is full after 20 ms at 200,000 switches a second on one CPU. A reader that is woken
// at a quarter full has 15 ms left.
func ringSize(cpus int) int { return min(max(16<<20/max(cpus, 1), 256<<10), 2<<20) }

// Kind is the kind of a Record.
type Kind uint8

const (
	// Switch is a thread that was put on the CPU: TID of PID, which is 0 for the idle task.
	// OtherTID of OtherPID left the CPU.
	Switch Kind = iota + 1
	// Running is a thread, TID of PID, that may have been on the CPU for a long time. See
	// [Session.Snapshot].
	Running
	// Fork is the start of process PID by OtherPID.
	Fork
	// Exec means that process PID now runs another program.
	Exec
	// Exit is the end of the first thread of PID. Usually the other threads have ended too.
	Exit
	// Lost is a gap. Records may be missing until the CPU's next record. Count is the
	// number of missing records, if known.
	Lost
)

// Record describes an event on one CPU. Every Read overwrites the Record.
type Record struct {
	Kind Kind
	// Time is CLOCK_MONOTONIC in nanoseconds.
	Time int64
	// CPU is an index into [Session.CPUs].
	CPU int
	// The ids are in this process's pid namespace. They are 0 for a thread outside the
	// namespace, and -1 for an exiting thread that has no id left.
	PID, TID           int
	OtherPID, OtherTID int
	Count              uint64
}
