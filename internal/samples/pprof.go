// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package samples

// Window is a time of capture in nanoseconds since the Unix epoch: [Start, End).
type Window struct{ Start, End int64 }

// PprofCPU is one timestamp per sample of a running thread, as the program counts
// them. A pprof profile has no time per sample.
var PprofCPU = &Type{Name: "samples", Unit: "count", PeriodName: "cpu", PeriodUnit: "nanoseconds", Sampler: "pprof_cpu", Sent: true, Spread: true}

// These are the other profiles of pprof: what was allocated in a window and what was
// in use at its end, the number of goroutines and of threads started, and how often
// and for how long goroutines waited in a window. Blocking and mutexes have names of
// their own, since pprof calls the values of both contentions and delay.
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
