// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

// Name is the index of a string that a [Decoder] keeps. [Decoder.Text] returns the
// string. Equal Names have equal strings. Different Names may have the same text
// if their strings differ only in unpaired surrogates. Names are consecutive
// numbers, so they can index a slice.
type Name uint32

const (
	// NoName is the empty string. It is the name of a thread without a name, and the type of
	// a sample that is not an allocation.
	NoName Name = iota
	// ExportThread is the name of the profiler's own thread. See [ExportThreadName].
	ExportThread
)

// ExportThreadName is the name of the profiler's thread that exports buffers. Samples of
// this thread show the profiler, not the service.
const ExportThreadName = "OpenTelemetry Continuous Profiler Thread"

// Sample is one complete sample. The decoder reuses the Sample and its
// Frames for the next sample.
type Sample struct {
	// Offset is the offset of the sample's record in the buffer.
	Offset int
	// UnixMilli is the time in ms since the Unix epoch. It is the time of the
	// batch for thread samples, and the sample's own time for all other samples.
	// The sender may send any value.
	UnixMilli int64
	// Thread is the name of the thread.
	Thread Name
	// Selected reports whether the thread is selected for frequent sampling. See
	// [Format.FrequentSampling].
	Selected bool
	// TraceID and SpanID are zero if no span was active.
	TraceID [16]byte
	SpanID  [8]byte
	// Type is the type of the allocated object, and Bytes is its size. They are set only
	// for allocations.
	Type  Name
	Bytes uint64
	// Frames is the stack, with the leaf first. It is empty for a
	// thread without managed frames.
	Frames []Name
}
