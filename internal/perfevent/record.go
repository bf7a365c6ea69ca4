// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import "github.com/hotprofile/hotprofile/internal/perfevent/internal/record"

// Record is one record of the kernel. Every Read fills it again: its slices are
// valid until the next one, so copy what is kept.
type Record struct {
	record.Record
	// Attachment is the one whose event wrote a sample, or a context switch in a
	// session that samples them; nil for other records, and once it is detached. It is
	// nil too for a sample of a switch that another session, such as another program's,
	// samples first: the kernel (6.18, for one) gives it the id of that event.
	Attachment *Attachment
	// Tracepoint is the index in Options.Tracepoints of the one that a sample is of, in a
	// session that samples them. Hits is the number of hits that the sample represents: its
	// own, and those before it that were not sampled. HitsLost is how many of these were,
	// and did not fit the ring.
	Tracepoint     int
	Hits, HitsLost uint64
}

type (
	// Type is the type of a Record.
	Type = record.Type
	// Sample is the part of a sample.
	Sample = record.Sample
	// Registers are a sample's user registers.
	Registers = record.Registers
	// Mmap is the part of a new mapping.
	Mmap = record.Mmap
)

// The types of records that Read returns.
const (
	TypeSample = record.TypeSample
	TypeMmap   = record.TypeMmap
	TypeComm   = record.TypeComm
	TypeFork   = record.TypeFork
	TypeExit   = record.TypeExit
	TypeLost   = record.TypeLost
	TypeSwitch = record.TypeSwitch
)
