// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package samples defines the data types of the receiver, as plain data. A sampler interns
// Resources, Mappings, Locations and Stacks and shares them by pointer between batches. A
// Batch only counts the events of one capture window, so adding a sample of a known stack
// does not allocate.
package samples

import (
	"encoding/hex"
	"math"
	"sync/atomic"
)

// FrameType is the value of the attribute profile.frame.type.
type FrameType string

// These are the frame types of OpenTelemetry's semantic conventions that the samplers
// of this project produce.
const (
	FrameKernel FrameType = "kernel"
	FrameNative FrameType = "native"
	FrameGo     FrameType = "go"
	FrameDotnet FrameType = "dotnet"
	FrameJVM    FrameType = "jvm"
	FrameV8     FrameType = "v8js"
	FramePython FrameType = "cpython"
	FramePHP    FrameType = "php"
)

// Attribute is one attribute of a resource. Value is a string, int64 or bool.
type Attribute struct {
	Key   string
	Value any
}

// Resource is the subject of a profile. It is one program that is run by one process.
// An exec makes a new Resource. A Resource does not change after a sample refers to it.
type Resource struct {
	// PID is the process id in the collector's own pid namespace. It is 0 if the sender is
	// not a process of this host.
	PID int
	// Attributes are sorted by key. Keys are unique and not empty.
	Attributes []Attribute
	// Starting is set if the kernel was still starting the program, so its environment was
	// not yet known. Otherwise it is nil.
	Starting *Starting
}

// Starting connects the Resource of a starting program to the final Resource. It is safe
// for concurrent use.
type Starting struct{ final atomic.Pointer[Resource] }

// Settle sets the Resource that replaces every Resource whose Starting is s.
func (s *Starting) Settle(final *Resource) { s.final.Store(final) }

// Final returns the Resource to use in place of r. It is nil while the final Resource is
// unknown.
func (r *Resource) Final() *Resource {
	if r.Starting == nil {
		return r
	}
	return r.Starting.final.Load()
}

// Mapping is a part of a file that is mapped executable into a process.
type Mapping struct {
	// PID is the process in which the mapping was first seen. It is 0 for the kernel.
	PID                      int
	Start, Limit, FileOffset uint64
	// Path is the path of the file in the process's mount namespace, possibly inside a
	// container.
	Path string
	// Root identifies the root directory that contains Path. It is 0 if unknown.
	Root uint64
	// DeviceMajor, DeviceMinor and Inode identify the file on this host.
	DeviceMajor, DeviceMinor uint32
	Inode                    uint64

	// The symbolizer sets the fields below on the emitting goroutine.

	// BuildID is the GNU build id in hex, or empty.
	BuildID string
	// GoBuildID is Go's own build id, or empty.
	GoBuildID string
}

// Line is one function at a location. A location with inlined calls has several lines, the
// innermost first.
type Line struct {
	// Function is the name to show. SystemName is the linker's name if it differs.
	Function, SystemName string
	File                 string
	// StartLine is the function's first line. Line is the line of the call or of the
	// sampled instruction. Both are 0 if unknown.
	StartLine, Line int64
}

// Location is the code address of one frame.
type Location struct {
	Type FrameType
	// Mapping is nil for code without a file.
	Mapping *Mapping
	// Address is the virtual address in the process. For a call it is the return address,
	// which is the address after the call.
	Address uint64
	// Leaf reports that Address is the interrupted instruction and not a return address.
	// Line lookup then does not step back into the call.
	Leaf bool

	// The symbolizer sets the fields below on the emitting goroutine. It removes the names
	// after their batch was emitted. A sampler that knows names (.NET) sets Resolved and
	// Lines itself.

	Resolved bool
	// Counted is the symbolization outcome that was last counted for the location.
	Counted uint8
	Lines   []Line
}

// Stack is a call stack, leaf first.
type Stack struct {
	Locations []*Location
	// Truncated reports that the stack does not reach the thread's entry.
	Truncated bool
	// Whole reports that the stack was seen to reach the thread's entry, with or without
	// symbols.
	Whole bool
	// Wait is the reason why a thread with this stack is blocked. The emitting goroutine
	// derives it from the names of kernel functions.
	Wait Wait
}

// Wait is the reason why a thread is blocked.
type Wait uint8

// These are the values of the attribute hotprofile.wait. WaitUnknown has no value. It
// means that the kernel's part of the stack is missing or has no names.
const (
	WaitUnknown Wait = iota
	WaitNetwork
	WaitDisk
	WaitLock
	WaitSleep
	WaitOther
)

// String returns the value of the attribute. It is empty for WaitUnknown.
func (w Wait) String() string {
	return [...]string{"", "network", "disk", "lock", "sleep", "other"}[w]
}

// Thread contains the attributes that distinguish threads. Attributes that are not
// configured are zero.
type Thread struct {
	Name string
	ID   int32
}

// Link is the active span of the thread. The zero value means that no span is active.
type Link struct {
	TraceID [16]byte
	SpanID  [8]byte
}

// These goroutine labels contain the ids of the active span.
const (
	LabelTraceID = "trace_id"
	LabelSpanID  = "span_id"
)

// ParseLink parses the ids of a span, which are in hexadecimal digits. It returns the
// zero value if one of the ids is invalid.
func ParseLink(trace, span string) (l Link) {
	if len(trace) != 2*len(l.TraceID) || len(span) != 2*len(l.SpanID) {
		return Link{}
	}
	_, err := hex.Decode(l.TraceID[:], []byte(trace))
	_, err2 := hex.Decode(l.SpanID[:], []byte(span))
	if err != nil || err2 != nil || !l.Valid() {
		return Link{}
	}
	return l
}

// Valid reports whether both ids are set. One id alone is useless.
func (l Link) Valid() bool { return l.TraceID != [16]byte{} && l.SpanID != [8]byte{} }

// Type describes the values of a profile. Samplers share the types below by pointer.
type Type struct {
	Name, Unit             string
	PeriodName, PeriodUnit string
	// Valued reports that each sample has a value. Otherwise a sample consists only
	// of its timestamp.
	Valued bool
	// Sampler is the sampler's name in the counters. If it is empty, the samples are
	// counted under CountedAs.
	Sampler   string
	CountedAs *Type
	// Sent reports that another program sent the samples. The samples already have
	// names. Their times are from the clock of that program, and define when the
	// samples were captured. The batch counts the memory of the samples, because no
	// other limit bounds it.
	Sent bool
	// Blocked reports that threads with these stacks were blocked. The stacks then have a
	// Wait.
	Blocked bool
	// Spread reports that the times are unknown and were spread evenly over the capture
	// window.
	Spread bool
	// Unscaled reports that sums of values are not a rate.
	Unscaled bool
	// Scaled describes how values were scaled. It is empty if they were not scaled.
	Scaled string
}

// OnCPU has one timestamp per sample of a running thread.
var OnCPU = &Type{Name: "samples", Unit: "count", PeriodName: "cpu", PeriodUnit: "nanoseconds", Sampler: "on_cpu"}

// OffCPU is the time that threads were blocked. RunQueue is the time that runnable threads
// waited for a CPU. A value is one wait, or the part of a longer wait inside the capture
// window. Its timestamp is the wait's last nanosecond. The stack is sampled at one of
// Period switches. If the period is above 1, the scaled types are used.
var (
	OffCPU         = &Type{Name: "off_cpu", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Blocked: true, Sampler: "off_cpu"}
	RunQueue       = &Type{Name: "runqueue", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Sampler: "off_cpu"}
	OffCPUScaled   = &Type{Name: "off_cpu", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Blocked: true, Sampler: "off_cpu", Scaled: scaledToSwitches}
	RunQueueScaled = &Type{Name: "runqueue", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Sampler: "off_cpu", Scaled: scaledToSwitches}
)

const scaledToSwitches = "per thread, to the total time of all its switches"

// AllocObjects and AllocSpace are the sampled allocations of Go programs. Values are
// scaled to the allocations that each sample represents. The period is the program's
// MemProfileRate. The assumed types use the runtime's default, because the program's
// rate could not be read. Each allocation is a sample of both types, but only the
// sample of the space is counted.
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

// DotnetThreads is the wall-clock time of managed threads, which may be waiting. The value
// of a sample is its period, the time that the sample represents. DotnetSelected is a
// separate profile of the threads that a service samples frequently. Values are times
// because backends add up both profiles, which have different periods.
var (
	DotnetThreads  = &Type{Name: "wall", Unit: "nanoseconds", PeriodName: "wall", PeriodUnit: "nanoseconds", Valued: true, Sampler: "dotnet_threads", Sent: true}
	DotnetSelected = &Type{Name: "wall", Unit: "nanoseconds", PeriodName: "wall", PeriodUnit: "nanoseconds", Valued: true, Sampler: "dotnet_selected", Sent: true}
)

// DotnetAllocObjects and DotnetAllocSpace are the number and the size of sampled objects.
// Their period of 1 byte means that values are not scaled, because the runtime does not
// report how much memory a sample represents.
var (
	DotnetAllocObjects = &Type{Name: "alloc_objects", Unit: "count", PeriodName: "space", PeriodUnit: "bytes", Valued: true, Sampler: "dotnet_allocations", Sent: true, Unscaled: true}
	DotnetAllocSpace   = &Type{Name: "alloc_space", Unit: "bytes", PeriodName: "space", PeriodUnit: "bytes", Valued: true, Sampler: "dotnet_allocations", Sent: true, Unscaled: true}
)

// NetSent and NetReceived are the bytes that calls sent to and received from sockets.
// TCPConnects counts connection attempts. TCPConnectFailures counts connections that ended
// before they were established. A value also represents the unsampled calls, so the period
// is 1.
var (
	NetSent            = netType("net_sent", "bytes")
	NetReceived        = netType("net_received", "bytes")
	TCPConnects        = netType("tcp_connects", "count")
	TCPConnectFailures = netType("tcp_connect_failures", "count")
)

func netType(name, unit string) *Type {
	return &Type{Name: name, Unit: unit, PeriodName: name, PeriodUnit: unit, Valued: true, Sampler: "network", Scaled: scaledToCalls}
}

const scaledToCalls = "by the number of calls of a similar size that each sample represents"

// Transport is the protocol of a socket.
type Transport uint8

// These are the transports. TransportOther stands for every protocol that is not
// listed here.
const (
	TransportNone Transport = iota
	TransportTCP
	TransportUDP
	TransportUnix
	TransportOther
)

// String returns the value of the attribute network.transport.
func (t Transport) String() string {
	return [...]string{"", "tcp", "udp", "unix", "other"}[t]
}

// Capture is the time span in which a target was sampled with one period, on the monotonic
// clock. It is safe for concurrent use.
type Capture struct {
	// From is the start of the capture.
	From int64

	until atomic.Int64
}

// End sets the end of the capture, unless it is already set.
func (c *Capture) End(at int64) { c.until.CompareAndSwap(0, at) }

// Until returns the end of the capture. It is math.MaxInt64 while the capture continues.
func (c *Capture) Until() int64 {
	if at := c.until.Load(); at != 0 {
		return at
	}
	return math.MaxInt64
}

// CaptureWindow is the time span [Start, End) of a capture, in nanoseconds since the Unix
// epoch.
type CaptureWindow struct{ Start, End int64 }

// PprofCPU has one timestamp per sample of a running thread, as counted by the program. The
// times are spread, because a pprof profile has no time per sample.
var PprofCPU = &Type{Name: "samples", Unit: "count", PeriodName: "cpu", PeriodUnit: "nanoseconds", Sampler: "pprof_cpu", Sent: true, Spread: true}

// These types are the other pprof profiles. They contain the allocations of a capture
// window, the memory in use at its end, the numbers of goroutines and of created
// threads, and the waits of goroutines. Block and mutex profiles have different names
// here, because pprof calls the values of both contentions and delay.
var (
	PprofAllocObjects     = pprofSpace("alloc_objects", "count", "pprof_allocs")
	PprofAllocSpace       = pprofSpace("alloc_space", "bytes", "pprof_allocs")
	PprofInuseObjects     = pprofSpace("inuse_objects", "count", "pprof_heap")
	PprofInuseSpace       = pprofSpace("inuse_space", "bytes", "pprof_heap")
	PprofGoroutines       = &Type{Name: "goroutines", Unit: "count", PeriodName: "goroutine", PeriodUnit: "count", Valued: true, Sampler: "pprof_goroutine", Sent: true}
	PprofThreads          = &Type{Name: "threads", Unit: "count", PeriodName: "threadcreate", PeriodUnit: "count", Valued: true, Sampler: "pprof_threadcreate", Sent: true}
	PprofBlockContentions = pprofWaits("block_contentions", "count", "pprof_block")
	PprofBlockDelay       = pprofWaits("block_delay", "nanoseconds", "pprof_block")
	PprofMutexContentions = pprofWaits("mutex_contentions", "count", "pprof_mutex")
	PprofMutexDelay       = pprofWaits("mutex_delay", "nanoseconds", "pprof_mutex")
)

const scaledByProgram = "by the program itself, to its sampling rate"

func pprofSpace(name, unit, sampler string) *Type {
	return &Type{Name: name, Unit: unit, PeriodName: "space", PeriodUnit: "bytes", Valued: true, Sampler: sampler, Sent: true, Scaled: scaledByProgram}
}

func pprofWaits(name, unit, sampler string) *Type {
	return &Type{Name: name, Unit: unit, PeriodName: "contentions", PeriodUnit: "count", Valued: true, Sampler: sampler, Sent: true, Scaled: scaledByProgram}
}
