// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

import "fmt"

// Kind is what a buffer holds.
type Kind uint8

// The kinds of buffers, each handed over by a method of its own.
const (
	// ThreadSamples is one batch of wall-clock samples: every managed thread,
	// running or waiting.
	ThreadSamples Kind = iota + 1
	// AllocationSamples are sampled allocations, each with its own time. Bytes is
	// the size of the sampled object alone: sums of it are no allocation rate.
	AllocationSamples
	// SelectedThreadSamples are frequent wall-clock samples of the threads that
	// the service selected, each with its own time.
	SelectedThreadSamples
)

// String names the kind as error messages do.
func (k Kind) String() string {
	switch k {
	case ThreadSamples:
		return "thread samples"
	case AllocationSamples:
		return "allocation samples"
	case SelectedThreadSamples:
		return "selected thread samples"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Format is what a reader has to know beforehand.
type Format struct {
	Kind Kind
	// FrequentSampling says that each thread sample carries the byte that tells
	// whether its thread is selected for frequent sampling: the writer writes it
	// where selective sampling runs beside thread sampling. The other kinds never
	// carry it.
	FrequentSampling bool
}

const (
	// MaxBuffer is the size in bytes at which the writer stops.
	MaxBuffer = 200 << 10
	// MaxUnits is the UTF-16 code units at which the writer cuts a string.
	MaxUnits = 512
	// MaxCode is the highest frame code that the writer gives, again and again to
	// each name that it does not remember.
	MaxCode = 10_000
	// Version is the only version of thread samples.
	Version = 1
)

const (
	opThreadStart    = 0x01
	opThreadSample   = 0x02
	opThreadEnd      = 0x06
	opStatistics     = 0x07
	opAllocation     = 0x08
	opSelectedSample = 0x09
	opSelectedStart  = 0x0A
	opSelectedEnd    = 0x0B
)

// Statistics is what the writer says of one batch of thread samples.
type Statistics struct {
	// SuspendedMicroseconds is how long the whole service stood still.
	SuspendedMicroseconds int32
	Threads, Frames       int32
	// NameCacheMisses is how many names the writer had to look up.
	NameCacheMisses int32
}
