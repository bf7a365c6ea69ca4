// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package switches records every context switch of the host's CPUs, so that the process on
// each CPU is known at every moment. It also records the forks, execs and exits of
// processes.
package switches

// ringSize returns the size of one CPU's ring: 16 MiB divided by the number of CPUs, but at
// least 256 KiB and at most 2 MiB. The ring is halved until the user may lock it. A switch
// takes 64 bytes. At 200,000 switches a second on one CPU, a ring of 256 KiB is full after
// 20 ms. The reader is woken when the ring is a quarter full, so it has 15 ms to read the
// ring.
func ringSize(cpus int) int { return min(max(16<<20/max(cpus, 1), 256<<10), 2<<20) }

// Kind is the kind of a Record.
type Kind uint8

const (
	// Switch means that thread TID of process PID was put on the CPU, and thread OtherTID
	// of process OtherPID left the CPU. The ids of the idle task are 0.
	Switch Kind = iota + 1
	// Running means that thread TID of process PID may have been on the CPU for a
	// long time. See [Session.Snapshot].
	Running
	// Fork means that process OtherPID started process PID.
	Fork
	// Exec means that process PID now runs another program.
	Exec
	// Exit means that the first thread of PID has ended. Usually
	// the other threads have ended too.
	Exit
	// Lost means that records may be missing until the CPU's next record. Count is the
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
