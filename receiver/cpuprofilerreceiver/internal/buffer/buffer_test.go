// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package buffer

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// fakeClock is a clock whose time is set by the test.
type fakeClock struct{ now, offset int64 }

func (c *fakeClock) Monotonic() int64 { return c.now }
func (c *fakeClock) Offset() int64    { return c.offset }

func testKey(thread int32) samples.Key {
	return samples.Key{
		Resource: &samples.Resource{}, Type: samples.OnCPU, Period: 1,
		Stack: &samples.Stack{}, Thread: samples.Thread{ID: thread},
	}
}

// within requires that all samples of a batch are within the batch's window.
func within(t *testing.T, b *samples.Batch) {
	t.Helper()
	require.Less(t, b.Start, b.End)
	for _, s := range b.Samples() {
		for _, at := range s.Times {
			require.GreaterOrEqual(t, at, b.Start)
			require.Less(t, at, b.End)
		}
	}
}

func TestBufferWindowsMeetWhereTheSamplersHaveReadUpTo(t *testing.T) {
	c := &fakeClock{now: 100, offset: 1000}
	b := New(1<<20, c)
	require.True(t, b.Add(testKey(1), 150))
	b.ReadUpTo(200)
	c.now = 500 // the records of the last 300 ns have not been read
	first, ok := b.Take()
	require.True(t, ok)
	require.EqualValues(t, 1100, first.Start)
	require.EqualValues(t, 1200, first.End)
	within(t, first)

	require.True(t, b.Add(testKey(1), 250))
	b.ReadUpTo(600)
	b.Done()
	second, ok := b.Take()
	require.True(t, ok)
	require.EqualValues(t, 1200, second.Start)
	require.EqualValues(t, 1600, second.End)
	within(t, second)
}

func TestBufferWindowTakesInSamplesThatWereReadOutOfOrder(t *testing.T) {
	c := &fakeClock{now: 100}
	b := New(1<<20, c)
	require.True(t, b.Add(testKey(1), 90), "older than the buffer")
	require.True(t, b.Add(testKey(1), 300), "in a round that is not over")
	first, _ := b.Take()
	require.EqualValues(t, 90, first.Start)
	require.EqualValues(t, 301, first.End)
	within(t, first)
}

func TestBufferIdleTimeIsNotPartOfTheNextWindow(t *testing.T) {
	c := &fakeClock{now: 100}
	b := New(1<<20, c)
	b.ReadUpTo(1000)
	_, ok := b.Take()
	require.False(t, ok)
	require.True(t, b.Add(testKey(1), 1100))
	b.ReadUpTo(1200)
	batch, _ := b.Take()
	require.EqualValues(t, 1000, batch.Start)
	require.EqualValues(t, 1200, batch.End)
}

func TestBufferClockSetWhileABatchFillsDoesNotTearIt(t *testing.T) {
	c := &fakeClock{now: 100, offset: 1000}
	b := New(1<<20, c)
	require.True(t, b.Add(testKey(1), 110))
	c.offset = 0 // the wall clock was set back
	require.True(t, b.Add(testKey(1), 120))
	b.ReadUpTo(130)
	first, _ := b.Take()
	require.EqualValues(t, 1100, first.Start)
	require.EqualValues(t, 1130, first.End)
	within(t, first)
	require.True(t, b.Add(testKey(1), 140))
	b.ReadUpTo(150)
	b.Done()
	second, _ := b.Take()
	require.EqualValues(t, 130, second.Start)
	require.EqualValues(t, 150, second.End)
	within(t, second)
}

func TestBufferPauseIsInNoWindow(t *testing.T) {
	c := &fakeClock{now: 100}
	woken := 0
	b := New(4096, c)
	b.OnWake(func() { woken++ })
	fill := func(at int64) int {
		n := 0
		for ; b.Add(testKey(int32(n)), at); n++ {
			require.Less(t, n, 1000)
		}
		return n
	}
	require.True(t, b.Add(testKey(0), 110))
	first, ok := b.Take() // the exporter keeps the first batch
	require.True(t, ok)
	within(t, first)

	c.now = 200
	require.Positive(t, fill(190))
	require.True(t, b.Paused())
	require.Equal(t, 1, woken)
	require.Equal(t, 4096, b.Usage())
	require.False(t, b.Add(testKey(1), 195))

	c.now = 900
	b.ReadUpTo(900)
	b.Done()
	require.False(t, b.Paused())
	require.Equal(t, 2, woken)
	second, ok := b.Take()
	require.True(t, ok)
	require.EqualValues(t, 191, second.End, "the sample at 190 that found no room, and all after it, were not captured")
	within(t, second)
	b.Done()

	require.True(t, b.Add(testKey(1), 950))
	b.ReadUpTo(1000)
	third, ok := b.Take()
	require.True(t, ok)
	require.EqualValues(t, 900, third.Start)
	within(t, third)
}

func TestBufferAddAllocatesNothingForAKeySeenBefore(t *testing.T) {
	b := New(1<<24, &fakeClock{now: 100})
	k := testKey(1)
	for range 5000 { // makes room for the samples below
		b.Add(k, 110)
	}
	first, _ := b.Take()
	_ = first
	for range 100 {
		b.Add(k, 120)
	}
	b.Done()
	b.Take() // the first batch, which has room for 5000 samples, is active again
	b.Add(k, 130)
	require.Zero(t, testing.AllocsPerRun(1000, func() { b.Add(k, 130) }))
}

// TestBufferWindowsMeetWhereTheBatchWasTaken uses two samplers, which have both read
// beyond the end of the window before the batch is taken.
func TestBufferWindowsMeetWhereTheBatchWasTaken(t *testing.T) {
	c := &fakeClock{now: 100}
	var b *Buffer
	var other *Position
	offCPU := testKey(2)
	offCPU.Type = samples.OffCPU
	b = New(1<<20, c)
	b.OnWake(func() {
		require.EqualValues(t, 500, b.Closing())
		require.True(t, other.AddValue(offCPU, 499, 300), "the part of a wait in progress")
		require.True(t, other.AddValue(offCPU, 510, 5), "read beyond the end")
		other.ReadUpTo(520)
		require.True(t, b.Add(testKey(1), 450))
		require.True(t, b.Add(testKey(1), 505))
		b.ReadUpTo(506)
	})
	other = b.NewPosition()
	b.ReadUpTo(110)
	other.ReadUpTo(120)
	c.now = 500
	b.Settle(time.Minute)
	first, ok := b.Take()
	require.True(t, ok)
	require.EqualValues(t, 100, first.Start)
	require.EqualValues(t, 500, first.End)
	require.Equal(t, 2, first.Count())
	within(t, first)

	b.ReadUpTo(600)
	other.ReadUpTo(700)
	c.now = 800
	b.Done()
	second, ok := b.Take()
	require.True(t, ok)
	require.EqualValues(t, 500, second.Start)
	require.EqualValues(t, 600, second.End, "the one that has read less far")
	require.Equal(t, 2, second.Count())
	within(t, second)
}

// TestBufferOfOneSamplerEndsNow covers a buffer with a single sampler. The buffer wakes
// the sampler of running threads for each batch, because this sampler reads rarely.
func TestBufferOfOneSamplerEndsNow(t *testing.T) {
	c := &fakeClock{now: 100}
	b := New(1<<20, c)
	b.OnWake(func() {
		require.True(t, b.Add(testKey(1), 450))
		b.ReadUpTo(506)
	})
	b.ReadUpTo(110)
	c.now = 500
	b.Settle(time.Minute)
	batch, ok := b.Take()
	require.True(t, ok)
	require.EqualValues(t, 500, batch.End)
	require.Equal(t, 1, batch.Count())
	within(t, batch)
}

func TestBufferHoldsNothingBackWhereNoBatchIsTaken(t *testing.T) {
	c := &fakeClock{now: 500}
	b := New(1<<20, c)
	other := b.NewPosition()
	b.ReadUpTo(400)
	require.True(t, b.Add(testKey(1), 300))
	_, ok := b.Take() // the emitter keeps this batch
	require.True(t, ok)
	b.Settle(time.Millisecond) // no sampler reports its position in time
	require.True(t, other.AddValue(testKey(1), 600, 1))
	require.Len(t, b.held, 1)
	_, ok = b.Take()
	require.False(t, ok)
	require.Empty(t, b.held)
	b.Done()
	batch, ok := b.Take()
	require.True(t, ok)
	within(t, batch)
	require.Equal(t, 1, batch.Count())
}

func TestBufferWithoutSamplersEndsNow(t *testing.T) {
	c := &fakeClock{now: 100}
	b := New(1<<20, c)
	b.NewPosition()
	b.ReadUpTo(math.MaxInt64) // none of the samplers is sampling
	c.now = 900
	b.Settle(time.Minute)
	require.EqualValues(t, 900, b.readUpTo())
}

func TestBufferCountsKernelLossesOfItsWindow(t *testing.T) {
	c := &fakeClock{now: 100}
	b := New(1<<20, c)
	b.KernelLost(samples.OnCPU, 5)
	_, ok := b.Take()
	require.False(t, ok, "a capture window without samples, which nobody sees")

	require.True(t, b.Add(testKey(1), 150))
	b.KernelLost(samples.OnCPU, 2)
	b.NewPosition().KernelLost(samples.OffCPU, 3)
	first, _ := b.Take()
	require.EqualValues(t, 2, first.Lost(samples.OnCPU))
	require.EqualValues(t, 3, first.Lost(samples.RunQueueScaled))
	require.Zero(t, first.Lost(samples.AllocSpace))

	require.True(t, b.Add(testKey(1), 250))
	b.Done()
	second, _ := b.Take()
	require.Zero(t, second.Lost(samples.OnCPU))
	b.Done()
}

// TestBufferHoldsItsBytesUnderAFloodOfStacks uses two samplers that write new stacks into
// one buffer, and a third sampler that writes allocations into another buffer. No batch
// is taken while the samplers write.
func TestBufferHoldsItsBytesUnderAFloodOfStacks(t *testing.T) {
	const limit = 64 << 10
	paused := 0
	both := New(limit, SystemClock{})
	both.OnWake(func() { paused++ })
	offCPU := both.NewPosition()
	allocations := New(limit, SystemClock{})
	stack := func(depth int) *samples.Stack {
		s := &samples.Stack{}
		for i := range depth {
			s.Locations = append(s.Locations, &samples.Location{Address: uint64(i)})
		}
		return s
	}
	resource := &samples.Resource{}
	allocate := func(depth int) bool {
		objects := samples.Key{Resource: resource, Type: samples.AllocObjects, Stack: stack(depth), Period: 1}
		space := objects
		space.Type = samples.AllocSpace
		return allocations.AddBoth(objects, space, SystemClock{}.Monotonic(), 1, 512<<10)
	}
	// flood adds stacks until the buffer's two batches are full. It returns
	// the number of stacks that fitted.
	flood := func(add func(depth int) bool) (fitted int) {
		for i := range 3000 {
			if add(1 + i%127) {
				fitted++
			}
		}
		return fitted
	}
	// take takes a batch. It requires that the batch had no room left for
	// another sample of the largest size.
	take := func(b *Buffer, largest int) {
		t.Helper()
		batch, ok := b.Take()
		require.True(t, ok)
		require.LessOrEqual(t, batch.Size(), limit)
		require.Greater(t, batch.Size(), limit-largest)
		b.Done()
	}
	// A pair of allocation samples is the largest entry that can be added to a batch.
	// largest is the size of such a pair in bytes.
	pair := samples.NewBatch(limit)
	k := samples.Key{Resource: resource, Type: samples.AllocObjects, Stack: stack(127), Period: 1}
	other := k
	other.Type = samples.AllocSpace
	require.True(t, pair.AddBoth(k, other, 1, 1, 1))
	largest := pair.Size()

	require.Greater(t, flood(func(depth int) bool {
		on := samples.Key{Resource: resource, Type: samples.OnCPU, Stack: stack(depth), Period: 1}
		off := on
		off.Type, off.Stack = samples.OffCPU, stack(depth)
		now := SystemClock{}.Monotonic()
		one := both.Add(on, now)
		return offCPU.AddValue(off, now, 1) && one
	}), 10)
	require.True(t, both.Paused())
	require.Equal(t, 1, paused)
	require.True(t, allocate(127), "their buffer is their own")
	require.Greater(t, flood(allocate), 10)
	require.True(t, allocations.Paused())

	// The buffer of allocations is still full. The other buffer must continue as soon as
	// one of its own batches is taken.
	take(both, largest)
	require.False(t, both.Paused())
	require.True(t, both.Add(testKey(1), SystemClock{}.Monotonic()))
	require.False(t, allocate(1))
	take(both, largest)
	take(allocations, largest)
	take(allocations, largest)
	require.True(t, allocate(127))
}

// startingKey returns a key of a program that is starting.
func startingKey(thread int32) (samples.Key, *samples.Starting) {
	k, s := testKey(thread), new(samples.Starting)
	k.Resource.Starting = s
	return k, s
}

// TestBufferHoldsSamplesOfStartingPrograms covers samples of a starting program, which
// wait until the program's resource is known. The samples must keep their times and
// values.
func TestBufferHoldsSamplesOfStartingPrograms(t *testing.T) {
	b := New(1<<20, &fakeClock{now: 100, offset: 1000})
	soon, soonStarts := startingKey(1)
	late, lateStarts := startingKey(2)
	objects, objectsStart := startingKey(3)
	objects.Type = samples.AllocObjects
	space := objects
	space.Type = samples.AllocSpace
	waits := soon
	waits.Type = samples.OffCPU
	final := &samples.Resource{PID: 7}

	require.True(t, b.Add(testKey(4), 120))
	require.True(t, b.Add(soon, 130))
	require.True(t, b.Add(late, 140))
	require.True(t, b.AddValue(waits, 150, 11))
	require.True(t, b.AddBoth(objects, space, 160, 3, 4096))
	soonStarts.Settle(final)
	objectsStart.Settle(final)
	require.True(t, b.Add(soon, 170), "which is known by now")
	b.ReadUpTo(200)

	type sample struct {
		typ         string
		thread      int32
		time, value int64
	}
	taken := func() (known, other []sample) {
		batch, ok := b.Take()
		require.True(t, ok)
		within(t, batch)
		for _, s := range batch.Samples() {
			for i, at := range s.Times {
				e := sample{s.Type.Name, s.Thread.ID, at, 0}
				if s.Values != nil {
					e.value = s.Values[i]
				}
				if s.Resource == final {
					known = append(known, e)
				} else {
					other = append(other, e)
				}
			}
		}
		b.Done()
		return known, other
	}
	known, other := taken()
	require.ElementsMatch(t, []sample{
		{"samples", 1, 1130, 0},
		{"samples", 1, 1170, 0},
		{"off_cpu", 1, 1150, 11},
		{"alloc_objects", 3, 1160, 3},
		{"alloc_space", 3, 1160, 4096},
	}, known)
	require.Equal(t, []sample{{"samples", 4, 1120, 0}}, other)
	_, ok := b.Take()
	require.False(t, ok, "what is not known yet is in no batch")

	lateStarts.Settle(final)
	require.True(t, b.Add(testKey(4), 120))
	batch, ok := b.Take()
	require.True(t, ok)
	require.Equal(t, 2, batch.Count())
	b.Done()
	_, ok = b.Take()
	require.False(t, ok, "each is in one batch")
}

// TestBufferHoldsSoManySamplesOfStartingPrograms checks that further samples keep their
// preliminary resource when the limit of held samples is reached.
func TestBufferHoldsSoManySamplesOfStartingPrograms(t *testing.T) {
	b := New(1<<20, &fakeClock{now: 100})
	unheld := 0
	b.OnUnheld(func() { unheld++ })
	k, starting := startingKey(1)
	for range maxHeld + 2 {
		require.True(t, b.Add(k, 120))
	}
	require.True(t, b.AddBoth(k, k, 120, 1, 1))
	require.Equal(t, 3, unheld)
	starting.Settle(&samples.Resource{PID: 7})
	batch, ok := b.Take()
	require.True(t, ok)
	byPID := map[int]int{}
	for key, n := range batch.Keys() {
		byPID[key.Resource.PID] += n
	}
	require.Equal(t, map[int]int{0: 4, 7: maxHeld}, byPID)
}

func BenchmarkAdd(b *testing.B) {
	to := New(1<<24, &fakeClock{now: 100})
	k := testKey(1)
	b.ReportAllocs()
	for b.Loop() {
		if !to.Add(k, 120) {
			to.Take()
			to.Done()
		}
	}
}

// Add adds a sample that has no value.
func (b *Buffer) Add(k samples.Key, time int64) bool { return b.AddValue(k, time, 0) }
