// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package samples defines the receiver's data types. The types are plain data. A sampler
// interns Resources, Mappings, Locations and Stacks, and shares them by pointer between
// batches. A Batch only counts the events of one capture window, so adding a sample of a
// known stack does not allocate memory.
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

// Resource is the subject of a profile. It represents one program that one process runs.
// An exec creates a new Resource. A Resource does not change after a sample refers to it.
type Resource struct {
	// PID is the process id in the collector's own pid namespace. If the sender is not a
	// process of this host, PID is 0.
	PID int
	// Attributes are sorted by key. Keys are unique and not empty.
	Attributes []Attribute
	// Starting is set if the kernel was still starting the program, so that the program's
	// environment was not known yet. Otherwise, Starting is nil.
	Starting *Starting
}

// Starting connects the Resource of a starting program to the final Resource. It is safe
// for concurrent use.
type Starting struct{ final atomic.Pointer[Resource] }

// Settle sets the Resource that replaces every Resource whose Starting is s.
func (s *Starting) Settle(final *Resource) { s.final.Store(final) }

// Final returns the Resource that replaces r. It returns r if r does not need to be
// replaced, and nil while the final Resource is unknown.
func (r *Resource) Final() *Resource {
	if r.Starting == nil {
		return r
	}
	return r.Starting.final.Load()
}

// Text returns the value of an attribute. It returns "" if the resource does not have
// the attribute, or if its value is not a string.
func (r *Resource) Text(key string) string {
	for i := range r.Attributes {
		if a := &r.Attributes[i]; a.Key == key {
			text, _ := a.Value.(string)
			return text
		}
	}
	return ""
}

// Mapping is a part of a file that is mapped as executable code into a process.
type Mapping struct {
	// PID is the process in which the mapping was first seen. For the kernel, PID is 0.
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

	// The symbolizer sets the following fields on the emitting goroutine.

	// BuildID is the GNU build id in hexadecimal digits. It is empty if there is no build id.
	BuildID string
	// GoBuildID is Go's own build id. It is empty if there is no Go build id.
	GoBuildID string
}

// Line is one function at a location. A location with inlined calls has several lines.
// The innermost function comes first.
type Line struct {
	// Function is the name to show. SystemName is the linker's name, if
	// it differs from Function.
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
	// Address is the virtual address in the process. For a call, it is the return address,
	// which is the address after the call.
	Address uint64
	// Leaf reports whether Address is the interrupted instruction instead of a return
	// address. If so, line lookup does not step back into the call.
	Leaf bool

	// The symbolizer sets the following fields on the emitting goroutine. It removes
	// the names after the batch was emitted. A sampler that knows the names (.NET)
	// sets Resolved and Lines itself.

	Resolved bool
	// Counted is 1 plus the symbolization outcome that was last counted for this
	// location. It is 0 if no outcome was counted.
	Counted uint8
	Lines   []Line
}

// Stack is a call stack, with the leaf first.
type Stack struct {
	Locations []*Location
	// Truncated reports whether the stack ends before the entry function of the thread.
	Truncated bool
	// Whole reports whether the stack is known to reach the entry function of the thread,
	// with or without symbols.
	Whole bool
	// Wait is the reason why a thread with this stack is blocked. The emitting goroutine
	// derives the reason from the names of kernel functions.
	Wait Wait
}

// Wait is the reason why a thread is blocked.
type Wait uint8

// These are the values of the attribute hotprofile.wait. For WaitUnknown, the
// attribute is absent. WaitUnknown means that the kernel's part of the stack
// is missing or has no names.
const (
	WaitUnknown Wait = iota
	WaitNetwork
	WaitDisk
	WaitLock
	WaitSleep
	WaitOther
)

// String returns the value of the attribute. For WaitUnknown, the value is empty.
func (w Wait) String() string {
	return [...]string{"", "network", "disk", "lock", "sleep", "other"}[w]
}

// Thread contains the attributes that distinguish threads. If an attribute is not
// configured, its field is zero.
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

// ParseLink parses the ids of a span, which consist of hexadecimal digits. If one of the
// ids is invalid, ParseLink returns the zero value.
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

// Type describes the values of a profile. Samplers share the types
// of this file by pointer.
type Type struct {
	Name, Unit             string
	PeriodName, PeriodUnit string
	// Valued reports whether each sample has a value. If Valued is false, a sample consists
	// only of its timestamp.
	Valued bool
	// Sampler is the sampler's name in the counters. If it is empty, the samples are
	// counted under CountedAs.
	Sampler   string
	CountedAs *Type
	// Sent reports whether another program sent the samples. Such samples already have
	// names. Their times are from the clock of that program, and define when the samples
	// were captured. The batch counts the memory of such samples, because there is no other
	// limit on this memory.
	Sent bool
	// Blocked reports whether the stacks of this type come from blocked threads. Such
	// stacks have a Wait.
	Blocked bool
	// Spread reports whether the times are unknown and were spread evenly over the capture
	// window.
	Spread bool
	// Unscaled reports whether the values were not scaled to all events, so that a sum of
	// values is not a rate.
	Unscaled bool
	// Scaled describes the way in which values were scaled. It is empty
	// if values were not scaled.
	Scaled string
}

// OnCPU is the type of samples of running threads. Each sample is one timestamp.
var OnCPU = &Type{Name: "samples", Unit: "count", PeriodName: "cpu", PeriodUnit: "nanoseconds", Sampler: "on_cpu"}

// OffCPU is the time during which threads were blocked. RunQueue is the time during which
// runnable threads waited for a CPU. A value is the length of one wait, or of the part of
// a longer wait that is inside the capture window. Its timestamp is the last nanosecond of
// the wait. One in Period switches is sampled with its stack. If Period is above 1, the
// scaled types are used.
var (
	OffCPU         = &Type{Name: "off_cpu", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Blocked: true, Sampler: "off_cpu"}
	RunQueue       = &Type{Name: "runqueue", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Sampler: "off_cpu"}
	OffCPUScaled   = &Type{Name: "off_cpu", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Blocked: true, Sampler: "off_cpu", Scaled: scaledToSwitches}
	RunQueueScaled = &Type{Name: "runqueue", Unit: "nanoseconds", PeriodName: "context_switches", PeriodUnit: "count", Valued: true, Sampler: "off_cpu", Scaled: scaledToSwitches}
)

const scaledToSwitches = "per thread, to the total time of all its switches"

// AllocObjects and AllocSpace are the sampled allocations of Go programs. Values are scaled
// to the allocations that each sample represents. The period is the program's MemProfileRate.
// If this rate cannot be read, AllocObjectsAssumed and AllocSpaceAssumed use the default rate
// of the runtime. Each allocation is a sample of both types, but only the sample of the space
// is counted.
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

// DotnetThreads is the wall-clock time of managed threads, including threads that wait.
// DotnetSelected is a separate profile of the threads that a service samples frequently.
// The value of a sample is the time that the sample represents. Values are times because
// the two profiles have different periods, and backends add up both profiles.
var (
	DotnetThreads  = &Type{Name: "wall", Unit: "nanoseconds", PeriodName: "wall", PeriodUnit: "nanoseconds", Valued: true, Sampler: "dotnet_threads", Sent: true}
	DotnetSelected = &Type{Name: "wall", Unit: "nanoseconds", PeriodName: "wall", PeriodUnit: "nanoseconds", Valued: true, Sampler: "dotnet_selected", Sent: true}
)

// DotnetAllocObjects and DotnetAllocSpace are the number and the size of sampled objects.
// The runtime does not report the amount of memory that a sample represents. Values are
// therefore not scaled, as the period of 1 byte indicates.
var (
	DotnetAllocObjects = &Type{Name: "alloc_objects", Unit: "count", PeriodName: "space", PeriodUnit: "bytes", Valued: true, Sampler: "dotnet_allocations", Sent: true, Unscaled: true}
	DotnetAllocSpace   = &Type{Name: "alloc_space", Unit: "bytes", PeriodName: "space", PeriodUnit: "bytes", Valued: true, Sampler: "dotnet_allocations", Sent: true, Unscaled: true}
)

// NetSent and NetReceived are the bytes that calls sent to and received from
// sockets. TCPConnects counts connection attempts. TCPConnectFailures counts
// connections that ended before they were established. A value also represents the
// calls that were not sampled, so the period is 1.
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

// These are the transports. TransportOther is used for every protocol that is not
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

// Capture is the time span in which a target was sampled with one period. The times are
// from the monotonic clock. It is safe for concurrent use.
type Capture struct {
	// From is the start of the capture.
	From int64

	until atomic.Int64
}

// End sets the end of the capture, unless it is already set.
func (c *Capture) End(at int64) { c.until.CompareAndSwap(0, at) }

// Until returns the end of the capture. While the capture continues,
// it returns math.MaxInt64.
func (c *Capture) Until() int64 {
	if at := c.until.Load(); at != 0 {
		return at
	}
	return math.MaxInt64
}

// CaptureWindow is the time span [Start, End) of a capture, in nanoseconds since the Unix
// epoch.
type CaptureWindow struct{ Start, End int64 }

// PprofCPU is the type of samples of running threads that the program counted
// itself. Each sample is one timestamp. The times are spread, because a pprof
// profile has no time per sample.
var PprofCPU = &Type{Name: "samples", Unit: "count", PeriodName: "cpu", PeriodUnit: "nanoseconds", Sampler: "pprof_cpu", Sent: true, Spread: true}

// These types describe the other pprof profiles. Pprof profiles exist for the allocations in
// a capture window, the memory in use at its end, the numbers of goroutines and of created
// threads, and the waits of goroutines. Block and mutex profiles have separate type names
// here, because pprof uses the same names, contentions and delay, for both.
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
