// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

// Name stands for a string that a [Decoder] keeps: [Decoder.Text] gives it. Equal
// Names are equal strings; names that differ may have equal texts where they
// differ in unpaired surrogates only. Names are dense, so that a caller can keep
// what it made of each in a slice indexed by Name.
type Name uint32

const (
	// NoName is the empty string: a thread without a name, and the type of what is
	// no allocation.
	NoName Name = iota
	// ExportThread is the name of the profiler's own thread, see [ExportThreadName].
	ExportThread
)

// ExportThreadName is what the profiler calls the thread that exports buffers;
// its samples are of the profiler, not of the service.
const ExportThreadName = "OpenTelemetry Continuous Profiler Thread"

// Sample is one complete sample as the decoder gives it. It and its Frames are
// used again for the next one: copy what is to stay.
type Sample struct {
	// Offset is where in the buffer the sample's record begins.
	Offset int
	// UnixMilli is the time in ms since the Unix epoch: the batch's for thread
	// samples, the sample's own for the others. It is the sender's word; any int64
	// can come.
	UnixMilli int64
	// Thread is the name of the thread.
	Thread Name
	// Selected says that the thread is sampled frequently too; see
	// [Format.FrequentSampling].
	Selected bool
	// TraceID and SpanID are all zeros where no span was active.
	TraceID [16]byte
	SpanID  [8]byte
	// Type is the type of the allocated object and Bytes its size; allocations
	// only.
	Type  Name
	Bytes uint64
	// Frames is the stack, leaf first. It is empty for a thread that had no
	// managed frame: nothing to show, but a thread nevertheless.
	Frames []Name
}

// Record is a sample with plain strings: what an [Encoder] writes.
type Record struct {
	// UnixMilli is not written in thread samples, whose batch has it.
	UnixMilli int64
	Thread    string
	// Selected is written only with [Format.FrequentSampling].
	Selected bool
	TraceID  [16]byte
	SpanID   [8]byte
	// Type and Bytes are written in allocation samples only.
	Type   string
	Bytes  uint64
	Frames []string
}
