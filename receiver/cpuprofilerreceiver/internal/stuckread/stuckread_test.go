// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package stuckread

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 20 * time.Millisecond

// gate makes work wait until the gate is closed.
type gate chan struct{}

func (g gate) wait(c *Call) { c.Wait(nil, func() { <-g }) }

type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(0, c.at.Load()) }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }

func newRunner(t *testing.T) (*Runner, *clock, *observer.ObservedLogs) {
	core, logs := observer.New(zap.DebugLevel)
	c := &clock{}
	c.advance(time.Hour)
	r := New(zap.New(core), nil, c.now)
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return r.Stats().Stuck == 0 }, time.Minute, time.Millisecond)
	})
	return r, c, logs
}

func TestWorkThatEndsIsNotLate(t *testing.T) {
	const patient = 500 * time.Millisecond // long enough even if this process gets no CPU for a while
	r, _, _ := newRunner(t)
	done := 0
	require.NoError(t, r.Run(Key{}, "", patient, func(c *Call) { c.Wait(nil, func() { done++ }) }))
	// Work may take a long time and may contain many waits, as long as each wait is short.
	require.NoError(t, r.Run(Key{}, "", patient, func(c *Call) {
		for end := time.Now().Add(patient + patient/5); time.Now().Before(end); {
			c.Wait(nil, func() { done++ })
		}
	}))
	require.Greater(t, done, 2)
	require.Zero(t, r.Stats())
	require.NoError(t, (*Runner)(nil).Run(Key{}, "", soon, func(c *Call) { c.Wait(nil, func() { done = 0 }) }))
	require.Zero(t, done)
}

func TestLateWorkEndsByItself(t *testing.T) {
	r, clock, logs := newRunner(t)
	key := Key{Device: 7}
	held, ended := make(gate), make(chan struct{})
	require.ErrorIs(t, r.Run(key, "/mnt/program", soon, func(c *Call) {
		held.wait(c)
		close(ended)
	}), ErrLate)
	require.Equal(t, Stats{Stuck: 1, Late: 1}, r.Stats())
	require.Equal(t, 1, logs.FilterField(zap.String("file", "/mnt/program")).Len())

	// Further calls with the same key are refused. Calls
	// with other keys are not affected.
	require.ErrorIs(t, r.Run(key, "", soon, func(*Call) { t.Error("begun") }), ErrRefused)
	require.True(t, r.Refuses(key))
	require.NoError(t, r.Run(Key{Device: 8}, "", soon, func(*Call) {}))

	// After the pause, one more call is permitted. This call waits as well,
	// so no further call is permitted.
	clock.advance(pause)
	require.ErrorIs(t, r.Run(key, "", soon, held.wait), ErrLate)
	clock.advance(pause)
	require.ErrorIs(t, r.Run(key, "", soon, func(*Call) { t.Error("begun") }), ErrRefused)
	close(held)
	<-ended
	require.Eventually(t, func() bool { return logs.Len() == 2 }, time.Minute, time.Millisecond, "its end is logged last")
	require.Equal(t, Stats{Late: 2, Refused: 2}, r.Stats())
	require.True(t, r.Refuses(key), "whoever answers too late waits as well")
	clock.advance(pause)
	require.NoError(t, r.Run(key, "", soon, func(*Call) {}))
	require.Equal(t, 2, logs.Len(), "one line each for the beginning and the end")
}

func TestLateWorkIsBounded(t *testing.T) {
	r, _, _ := newRunner(t)
	held := make(gate)
	var runs sync.WaitGroup
	for i := range maxLate {
		runs.Go(func() { _ = r.Run(Key{Device: uint64(i)}, "", soon, held.wait) })
	}
	runs.Wait()
	require.Equal(t, maxLate, r.Stats().Stuck)
	require.ErrorIs(t, r.Run(Key{Root: 1}, "", soon, func(*Call) { t.Error("begun") }), ErrRefused)
	close(held)
}

func TestWorkThatIsTakenOverDoesNotGoOn(t *testing.T) {
	r, _, _ := newRunner(t)
	held := make(gate)
	file := &Subject{Key: Key{Device: 1}}
	shared := 0 // the race detector reports an access from both calls at the same time
	require.ErrorIs(t, r.Take(soon, func(c *Call) {
		shared++
		c.Wait(file, func() { <-held })
		t.Error("it went on")
		shared++
	}), ErrLate)
	require.True(t, file.Stuck())
	require.True(t, r.Refuses(file.Key))
	require.NoError(t, r.Take(soon, func(*Call) { shared++ }))
	require.Equal(t, 2, shared)
	close(held)
	require.Eventually(t, func() bool { return !file.Stuck() }, time.Minute, time.Millisecond)
}

// TestWaitsMayEndAsTheyAreGivenUp runs waits that end at about the time at which the
// runner gives them up. Some waits end before they are given up, and some end afterwards.
func TestWaitsMayEndAsTheyAreGivenUp(t *testing.T) {
	r, _, _ := newRunner(t)
	const limit = 8 * time.Millisecond
	var late, inTime atomic.Uint64
	var runs sync.WaitGroup
	for of := range 32 {
		runs.Go(func() {
			for i := range 40 {
				file := &Subject{Key: Key{Device: uint64(of)}}
				wait := limit + time.Duration(i)*limit/40
				if r.Take(limit, func(c *Call) { c.Wait(file, func() { time.Sleep(wait) }) }) == nil {
					inTime.Add(1)
				} else {
					late.Add(1)
				}
			}
		})
	}
	runs.Wait()
	require.Positive(t, late.Load())
	require.Positive(t, inTime.Load())
	require.Equal(t, late.Load(), r.Stats().Late)
}

func BenchmarkRun(b *testing.B) {
	r := New(zap.NewNop(), nil, nil)
	b.ReportAllocs()
	for b.Loop() {
		_ = r.Run(Key{}, "", time.Second, func(c *Call) { c.Wait(nil, func() {}) })
	}
}

func BenchmarkWait(b *testing.B) {
	r := New(zap.NewNop(), nil, nil)
	b.ReportAllocs()
	_ = r.Run(Key{}, "", time.Second, func(c *Call) {
		for b.Loop() {
			c.Wait(nil, func() {})
		}
	})
}
