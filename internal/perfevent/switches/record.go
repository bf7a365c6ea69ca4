// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package switches records every context switch of the host's CPUs, so that the process on
// each CPU is known at every moment. It also records the forks, execs and exits of
// processes.
package switches

// Options of a Session. The zero value of each field has a meaning.
type Options struct {
	// CPUs are the CPUs to follow. Empty means all CPUs that are online.
	CPUs []int
	// Ring is the bytes of each CPU's ring, rounded up to a power of two of pages and
	// halved until it fits what this user may lock. 0 means a CPU's part of 16 MiB (256 KiB
	// to 2 MiB).
	Ring int
	// MaxDescriptors bounds the descriptors, two per CPU. 0 means 4096. It is never above
	// half of RLIMIT_NOFILE.
	MaxDescriptors int
}

// ringSize returns a CPU's part of the memory. A switch takes 64 bytes, so a ring of
// 256 KiB is full after 20 ms at 200,000 switches a second on one CPU. A reader that
// is woken when it is a quarter full has 15 ms of them left.
func ringSize(cpus int) int { return min(max(16<<20/max(cpus, 1), 256<<10), 2<<20) }

// Kind is the kind of a Record.
type Kind uint8

const (
	// Switch is a thread that went onto the CPU: TID of PID, which is 0 for the idle task.
	// OtherTID of OtherPID left it.
	Switch Kind = iota + 1
	// Running is a thread, TID of PID, that may have been on the CPU for long. See
	// [Session.Snapshot].
	Running
	// Fork is the start of process PID by OtherPID.
	Fork
	// Exec is another program that process PID runs now.
	Exec
	// Exit is the end of the first thread of PID. In general the other threads have ended
	// too.
	Exit
	// Lost is a gap. Records may be missing from here on until the next record of the CPU.
	// Count is the number of missing records, if it is known.
	Lost
)

// Record describes an event on one CPU. Every Read fills it again.
type Record struct {
	Kind Kind
	// Time is CLOCK_MONOTONIC in nanoseconds.
	Time int64
	// CPU is an index into [Session.CPUs].
	CPU int
	// The ids are as seen from this process's pid namespace. They are 0 for a thread
	// outside of it, and -1 for a thread that was ending and has no id any more.
	PID, TID           int
	OtherPID, OtherTID int
	Count              uint64
}
