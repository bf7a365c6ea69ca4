// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import "github.com/hotprofile/hotprofile/internal/perfevent/internal/record"

// Record is one record of the kernel. Its slices refer to a ring, so they are valid only
// until the next Read or Close. Copy the bytes to keep them.
type Record struct {
	record.Record
	// Attachment is the attachment whose event wrote a sample, or a context
	// switch in a session that samples switches. It is nil for other records and
	// for detached attachments. It is also nil if another session sampled the
	// same switch first, because the kernel (at least 6.18) then writes the
	// other event's id into the sample.
	Attachment *Attachment
	// Tracepoint is the index in Options.Tracepoints of a sample's tracepoint. Hits
	// is the number of hits that the sample represents, which are its own hit and
	// the unsampled hits before it. HitsLost is the number of these earlier hits
	// whose samples did not fit the ring.
	Tracepoint     int
	Hits, HitsLost uint64
}

type (
	// Type is the type of a Record.
	Type = record.Type
	// Sample is the content of a TypeSample.
	Sample = record.Sample
	// Registers are the user-mode registers of a sample.
	Registers = record.Registers
	// Mmap is the content of a TypeMmap.
	Mmap = record.Mmap
)

// These are the types of records that Read returns.
const (
	TypeSample = record.TypeSample
	TypeMmap   = record.TypeMmap
	TypeComm   = record.TypeComm
	TypeFork   = record.TypeFork
	TypeExit   = record.TypeExit
	TypeLost   = record.TypeLost
	TypeSwitch = record.TypeSwitch
)
