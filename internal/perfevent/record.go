// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import "github.com/hotprofile/hotprofile/internal/perfevent/internal/record"

// Record is one record of the kernel. Every Read fills it again: its slices are
// valid until the next one, so copy what is kept.
type Record struct {
	record.Record
	// Attachment is the one whose event wrote a sample, or a context switch in a
	// session that samples them; nil for other records, and once it is detached.
	Attachment *Attachment
}

// The parts of a Record.
type (
	Type      = record.Type
	Sample    = record.Sample
	Registers = record.Registers
	Mmap      = record.Mmap
	Comm      = record.Comm
	Task      = record.Task
	Lost      = record.Lost
	Switch    = record.Switch
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
