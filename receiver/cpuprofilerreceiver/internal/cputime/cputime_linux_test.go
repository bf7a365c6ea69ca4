// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputime

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// burn runs until its thread has used d of CPU time. It returns the CPU time that the
// thread has actually used, which exceeds d if a hypervisor paused the machine.
func burn(d time.Duration) time.Duration {
	from := threadTime()
	for {
		if took := threadTime() - from; took >= int64(d) {
			return time.Duration(took)
		}
	}
}

func TestWorkOfGoroutinesAddsUp(t *testing.T) {
	const each = 20 * time.Millisecond
	m := new(Meter)
	var all sync.WaitGroup
	var took atomic.Int64
	for range 4 {
		all.Go(func() { m.Do(func() { took.Add(int64(burn(each))) }) })
	}
	all.Go(func() { burn(5 * each) }) // this work is outside of the meter
	all.Wait()
	require.GreaterOrEqual(t, m.Total(), time.Duration(took.Load()))
	require.Less(t, m.Total(), time.Duration(took.Load())+5*each)
}

func TestWaitingCostsNothing(t *testing.T) {
	m := new(Meter)
	m.Do(func() { time.Sleep(100 * time.Millisecond) })
	require.Less(t, m.Total(), 50*time.Millisecond)
}

func TestWorkThatPanicsIsCountedAndFreesItsThread(t *testing.T) {
	m := new(Meter)
	require.Panics(t, func() {
		m.Do(func() {
			burn(time.Millisecond)
			panic("no")
		})
	})
	require.GreaterOrEqual(t, m.Total(), time.Millisecond)
}

func TestNoMeterMeasuresNothing(t *testing.T) {
	var m *Meter
	ran := false
	m.Do(func() { ran = true })
	m.Add(time.Second)
	require.True(t, ran)
	require.Zero(t, m.Total())
}

func BenchmarkSpan(b *testing.B) {
	m := new(Meter)
	b.ReportAllocs()
	for b.Loop() {
		span := Begin()
		m.Add(span.End())
	}
}
