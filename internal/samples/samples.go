// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package samples is the domain of the receiver: what a sampler saw, as plain
// data. A sampler interns Resources, Mappings, Locations and Stacks once and
// shares them by pointer between batches; a Batch only counts what happened in
// one capture window, so adding an event of a stack seen before allocates
// nothing.
package samples

// FrameType is the value of the attribute profile.frame.type.
type FrameType string

// The frame types of the OpenTelemetry semantic conventions that samplers of
// this project produce.
const (
	FrameKernel FrameType = "kernel"
	FrameNative FrameType = "native"
	FrameGo     FrameType = "go"
	FrameDotnet FrameType = "dotnet"
	FrameJVM    FrameType = "jvm"
	FrameV8     FrameType = "v8js"
	FramePython FrameType = "cpython"
)

// Attribute is one attribute of a resource. Value is a string, int64 or bool.
type Attribute struct {
	Key   string
	Value any
}

// Resource is what a profile is about: one program run by one process. Exec
// makes a new one. It does not change once a sample refers to it.
type Resource struct {
	// PID is the process id in the collector's own pid namespace; 0 where the
	// sender is not a process of this host.
	PID int
	// Attributes are sorted by key, without duplicates and without empty keys.
	Attributes []Attribute
}

// Mapping is a part of a file, mapped executable into a process.
type Mapping struct {
	// PID is the process that the mapping was first seen in; 0 for the kernel.
	PID                      int
	Start, Limit, FileOffset uint64
	// Path is the file as the process names it; it may be another container's.
	Path string
	// DeviceMajor, DeviceMinor and Inode identify the file on this host.
	DeviceMajor, DeviceMinor uint32
	Inode                    uint64

	// What follows is filled in by the symbolizer on the exporting goroutine.

	// BuildID is the GNU build id in hex, or empty.
	BuildID string
	// GoBuildID is Go's own build id, or empty.
	GoBuildID string
}

// Line is one function at a location; a location has several where calls were
// inlined, the innermost first.
type Line struct {
	// Function is the name to show, SystemName the linker's name where it
	// differs.
	Function, SystemName string
	File                 string
	// StartLine is the function's first line, Line the line of the call or of
	// the sampled instruction; 0 where unknown.
	StartLine, Line int64
}

// Location is one frame's code address.
type Location struct {
	Type FrameType
	// Mapping is nil for code that no file backs.
	Mapping *Mapping
	// Address is the virtual address in the process; return addresses are given
	// as the address after the call, as the processor stores them.
	Address uint64
	// Leaf says that Address is the interrupted instruction itself and not a
	// return address, so that line lookup does not step back into the call.
	Leaf bool

	// What follows is filled in by the symbolizer on the exporting goroutine,
	// once; a sampler that knows its names (.NET) sets both itself.

	Resolved bool
	Lines    []Line
}

// Stack is a call stack, the leaf first.
type Stack struct {
	Locations []*Location
	// Truncated says that the stack does not reach the thread's entry.
	Truncated bool
	// Whole says that it was seen to reach it, whatever its symbols tell.
	Whole bool
}

// Thread is the thread attributes that samples are told apart by. Fields that
// the user did not ask for are left at zero by the sampler.
type Thread struct {
	Name string
	ID   int32
}

// Link is the span that was active in the thread. The zero value is none.
type Link struct {
	TraceID [16]byte
	SpanID  [8]byte
}

// Valid says that both ids are there; without one the other leads nowhere.
func (l Link) Valid() bool { return l.TraceID != [16]byte{} && l.SpanID != [8]byte{} }

// Type is what the values of a profile mean. Samplers share the package-level
// values below by pointer.
type Type struct {
	Name, Unit             string
	PeriodName, PeriodUnit string
	// Valued says that each event carries a value; else an event is its
	// timestamp alone.
	Valued bool
	// Sampler is who takes such samples, as the counters call it; empty where they
	// are counted as those of another type, which is CountedAs.
	Sampler   string
	CountedAs *Type
	// Sent says that the samples come from another program, with their names and
	// with times by its clock. What was captured is then told by these times and
	// not by the window of the batch, and their memory is the batch's to count:
	// nobody else bounds what others send.
	Sent bool
	// Spread says that the times are not known and were spread evenly over the
	// window.
	Spread bool
	// Unscaled says that sums of values are no rate.
	Unscaled bool
	// Scaled says how values were scaled; empty: not at all.
	Scaled string
}

// OnCPU is one timestamp per sample of a running thread.
var OnCPU = &Type{Name: "samples", Unit: "count", PeriodName: "cpu", PeriodUnit: "nanoseconds", Sampler: "on_cpu"}

// OffCPU is how long threads were blocked, RunQueue how long they waited for a
// CPU though they could have run: a value per wait, or per part of one that
// outlasts its window, stamped with the last nanosecond of it. The period is of
// how many switches one had its stack sampled; where that is not each, they are
// of the scaled types.
var (
	OffCPU         = &Type{Name: "off_cpu", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Sampler: "off_cpu"}
	RunQueue       = &Type{Name: "runqueue", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Sampler: "off_cpu"}
	OffCPUScaled   = &Type{Name: "off_cpu", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Sampler: "off_cpu", Scaled: scaledToSwitches}
	RunQueueScaled = &Type{Name: "runqueue", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Sampler: "off_cpu", Scaled: scaledToSwitches}
)

const scaledToSwitches = "per process, to the total time of all its switches"

// AllocObjects and AllocSpace are the sampled allocations of Go programs, each
// scaled to what it stands for. The period is the program's MemProfileRate; of
// the assumed types it is the runtime's default, because the program's own could
// not be read. An allocation is an event of both kinds, counted once: as its space.
var (
	AllocObjects        = &Type{Name: "alloc_objects", Unit: "count", PeriodName: "space", PeriodUnit: "bytes", Valued: true, CountedAs: AllocSpace, Scaled: scaledToPeriod}
	AllocSpace          = &Type{Name: "alloc_space", Unit: "bytes", PeriodName: "space", PeriodUnit: "bytes", Valued: true, Sampler: "allocations", Scaled: scaledToPeriod}
	AllocObjectsAssumed = &Type{Name: "alloc_objects", Unit: "count", PeriodName: "space", PeriodUnit: "bytes", Valued: true, CountedAs: AllocSpaceAssumed, Scaled: scaledToAssumedPeriod}
	AllocSpaceAssumed   = &Type{Name: "alloc_space", Unit: "bytes", PeriodName: "space", PeriodUnit: "bytes", Valued: true, Sampler: "allocations", Scaled: scaledToAssumedPeriod}
)

const (
	scaledToPeriod        = "by 1/(1-exp(-size/period)) and by seen/kept"
	scaledToAssumedPeriod = scaledToPeriod + "; the period is assumed: runtime.MemProfileRate could not be read"
)

// DotnetThreads is one timestamp per sample of a managed thread, which may be
// waiting; DotnetSelected likewise of the threads that a service has sampled
// frequently, a profile of its own.
var (
	DotnetThreads  = &Type{Name: "samples", Unit: "count", PeriodName: "wall", PeriodUnit: "nanoseconds", Sampler: "dotnet_threads", Sent: true}
	DotnetSelected = &Type{Name: "samples", Unit: "count", PeriodName: "wall", PeriodUnit: "nanoseconds", Sampler: "dotnet_selected", Sent: true}
)

// DotnetAllocObjects and DotnetAllocSpace are the sampled allocations: how many,
// and how large the sampled objects were. Their period of 1 byte says that a
// value stands for itself: the runtime does not tell for how much memory a
// sample stands.
var (
	DotnetAllocObjects = &Type{Name: "alloc_objects", Unit: "count", PeriodName: "space", PeriodUnit: "bytes", Valued: true, Sampler: "dotnet_allocations", Sent: true, Unscaled: true}
	DotnetAllocSpace   = &Type{Name: "alloc_space", Unit: "bytes", PeriodName: "space", PeriodUnit: "bytes", Valued: true, Sampler: "dotnet_allocations", Sent: true, Unscaled: true}
)
