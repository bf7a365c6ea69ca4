// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package cputime measures the CPU time of a piece of work on its goroutine, because the
// CPU time of the process would include the rest of the collector. Work on other
// goroutines, such as garbage collection, is not counted.
package cputime

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Meter sums the CPU time of work on any goroutine. A nil Meter does not measure.
type Meter struct{ total atomic.Int64 }

// Do runs work, adds the CPU time of work to the sum, and returns this CPU time.
func (m *Meter) Do(work func()) (took time.Duration) {
	if m == nil {
		work()
		return 0
	}
	span := Begin()
	defer func() {
		took = span.End()
		m.Add(took)
	}()
	work()
	return took
}

// Add adds CPU time that was measured elsewhere.
func (m *Meter) Add(d time.Duration) {
	if m != nil {
		m.total.Add(int64(d))
	}
}

// Total returns the sum of all CPU time.
func (m *Meter) Total() time.Duration {
	if m == nil {
		return 0
	}
	return time.Duration(m.total.Load())
}

// Span is a piece of work in progress.
type Span struct{ began int64 }

// Begin begins a piece of work. It reads the clock of the thread, so it locks the goroutine
// to the thread. The same goroutine must call End.
func Begin() Span {
	runtime.LockOSThread()
	return Span{threadTime()}
}

// End ends the work and returns its CPU time.
func (s Span) End() time.Duration {
	took := threadTime() - s.began
	runtime.UnlockOSThread()
	return time.Duration(took)
}
