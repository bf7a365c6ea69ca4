// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

import "fmt"

// Kind is the kind of samples in a buffer.
type Kind uint8

// These are the kinds of buffers. The plugin has a method for each kind.
const (
	// ThreadSamples is one batch of wall-clock samples of all managed threads,
	// whether running or waiting.
	ThreadSamples Kind = iota + 1
	// AllocationSamples are sampled allocations, each with its own time. Bytes is the size
	// of the sampled object only, so a sum of Bytes is not an allocation rate.
	AllocationSamples
	// SelectedThreadSamples are frequent wall-clock samples of the threads that the service
	// selected. Each sample has its own time.
	SelectedThreadSamples
)

// String returns the name of the kind for messages.
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

// Format describes the layout of a buffer. The buffer itself does
// not describe its layout.
type Format struct {
	Kind Kind
	// FrequentSampling reports whether each thread sample contains an additional byte.
	// The byte is 1 if the thread is selected for frequent sampling. The profiler
	// writes this byte if selective sampling is also enabled. Buffers of the other
	// kinds never contain this byte.
	FrequentSampling bool
}

const (
	// MaxBuffer is the size in bytes at which the profiler stops writing.
	MaxBuffer = 200 << 10
	// MaxUnits is the maximum length of a string in UTF-16 code units. The
	// profiler truncates longer strings.
	MaxUnits = 512
	// MaxCode is the highest frame code. After the first MaxCode-1 names, the profiler
	// reuses the code MaxCode for each new name.
	MaxCode = 10_000
	// Version is the only known version of thread samples.
	Version = 1
)

// These are the opcodes. Each record begins with an opcode.
const (
	OpThreadStart    = 0x01
	OpThreadSample   = 0x02
	OpThreadEnd      = 0x06
	OpStatistics     = 0x07
	OpAllocation     = 0x08
	OpSelectedSample = 0x09
	OpSelectedStart  = 0x0A
	OpSelectedEnd    = 0x0B
)

// statisticsSize is the size of a batch's statistics, in bytes. The
// decoder skips the statistics.
const statisticsSize = 16
