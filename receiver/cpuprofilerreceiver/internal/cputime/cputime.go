// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package cputime measures the CPU time that a piece of work takes on its
// goroutine. A process's CPU time is no measure for that: the rest of the
// collector is in it. What other goroutines do for the work, the garbage
// collector's among them, is not counted.
package cputime

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Meter adds up the CPU time of pieces of work, on any goroutines. A nil Meter
// measures nothing.
type Meter struct{ total atomic.Int64 }

// Do runs work and adds what it took.
func (m *Meter) Do(work func()) {
	if m == nil {
		work()
		return
	}
	span := Begin()
	defer func() { m.Add(span.End()) }()
	work()
}

// Add adds what was measured elsewhere.
func (m *Meter) Add(d time.Duration) {
	if m != nil {
		m.total.Add(int64(d))
	}
}

// Total is what all work together took.
func (m *Meter) Total() time.Duration {
	if m == nil {
		return 0
	}
	return time.Duration(m.total.Load())
}

// Span is a piece of work under way.
type Span struct{ began int64 }

// Begin begins a piece of work. The goroutine keeps to its thread, whose clock
// tells the time, until End, which it has to call itself.
func Begin() Span {
	runtime.LockOSThread()
	return Span{threadTime()}
}

// End ends it and returns the CPU time that it took.
func (s Span) End() time.Duration {
	took := threadTime() - s.began
	runtime.UnlockOSThread()
	return time.Duration(took)
}
