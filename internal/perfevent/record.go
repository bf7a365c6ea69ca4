// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import "github.com/hotprofile/hotprofile/internal/perfevent/internal/record"

// Record is one record of the kernel. Every Read fills it again, so its slices are valid
// until the next Read. Copy the bytes to keep them.
type Record struct {
	record.Record
	// Attachment is the attachment of the event that wrote a sample, or a context switch in
	// a session that samples switches. It is nil for other records and detached
	// attachments. It is also nil for a sample of a switch that another session samples
	// first: the kernel (6.18, for one) gives the sample the other event's id.
	Attachment *Attachment
	// Tracepoint is the index in Options.Tracepoints of a sample's tracepoint, in a session
	// that samples them. Hits is the number of hits that the sample represents: its own
	// hit, and the unsampled hits before it. HitsLost is how many of the hits before were
	// sampled and did not fit the ring.
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
