// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// reading is one reading. at is the time since the start of the test.
type reading struct {
	at       time.Duration
	num, den float64
}

// oracle stores every reading and evaluates a test by its definition.
type oracle struct {
	test     Test
	kind     Kind
	interval time.Duration
	readings []reading
}

// value returns the value of reading n since the previous reading. It returns NaN if the
// reading is only a starting point.
func (o *oracle) value(n int) float64 {
	switch {
	case o.kind.Gauge:
		return o.readings[n].num
	case n == 0 || o.restarted(n):
		return math.NaN()
	case o.readings[n].den == o.readings[n-1].den:
		return 0
	}
	return o.kind.Scale * (o.readings[n].num - o.readings[n-1].num) / (o.readings[n].den - o.readings[n-1].den)
}

func (o *oracle) restarted(n int) bool {
	was, is := o.readings[n-1], o.readings[n]
	return is.num < was.num || is.den < was.den || is.den == was.den && !o.kind.Sparse
}

func (o *oracle) step(n int) time.Duration { return o.readings[n].at - o.readings[n-1].at }

// judge returns the value that is compared with the threshold. The result ok is false if
// there is too little history.
func (o *oracle) judge(now time.Duration) (float64, bool) {
	last := len(o.readings) - 1
	if last < 0 {
		return 0, false
	}
	newest := o.readings[last].at
	slack := o.interval / 4
	if o.test.Count > 0 {
		if late := now - o.interval; late > newest {
			newest = late
		}
		var values []float64
		for n := last; n >= 0 && o.readings[n].at > newest-o.test.Period; n-- {
			if v := o.value(n); !math.IsNaN(v) {
				values = append(values, v)
			}
		}
		if len(values) < o.test.Count {
			return 0, false
		}
		slices.Sort(values)
		return values[len(values)-o.test.Count], true
	}

	begin := newest - o.test.AverageOver
	if now-newest > o.interval+slack {
		return 0, false
	}
	first, unbroken := last, last
	for n := last; n > 0; n-- {
		if !o.kind.Gauge && o.restarted(n) {
			break
		}
		unbroken = n - 1
		if first == last || (o.readings[n-1].at-begin).Abs() <= (o.readings[first].at-begin).Abs() {
			first = n - 1
		}
	}
	if first == last || o.readings[unbroken].at > begin+slack ||
		(o.readings[first].at-begin).Abs() > o.interval+slack ||
		2*(newest-o.readings[first].at) < o.test.AverageOver {
		return 0, false
	}
	if o.kind.Sparse && o.readings[last].den == o.readings[first].den {
		return 0, true
	}
	if !o.kind.Gauge {
		return o.kind.Scale * (o.readings[last].num - o.readings[first].num) / (o.readings[last].den - o.readings[first].den), true
	}
	var sum, weight float64
	for n := first + 1; n <= last; n++ {
		// No reading has more weight than about four intervals.
		w := float64(min(o.step(n), maxStep*o.interval/ticksPerInterval))
		sum += o.readings[n].num * w
		weight += w
	}
	return sum / weight, float64(last-first) >= 0.8*float64(o.test.AverageOver/o.interval)
}

// TestBulkWindowsAgreeWithTheirDefinition feeds the same random readings to a history and to
// an oracle that stores all readings. Some readings are late, missing or restarted.
func TestBulkWindowsAgreeWithTheirDefinition(t *testing.T) {
	const tick = time.Second / ticksPerInterval
	compared, held := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		kind := []Kind{{Scale: 100}, {Scale: 1}, {Scale: 1, Gauge: true}, {Scale: 100, Sparse: true}}[r.IntN(4)]
		test := Test{Threshold: 0.5 * kind.Scale}
		if r.IntN(2) == 0 {
			test.AverageOver = time.Duration(1+r.IntN(40)) * time.Second
		} else {
			test.Period = time.Duration(1+r.IntN(40)) * time.Second
			test.Count = 1 + r.IntN(int(test.Period/time.Second))
		}
		h, o := newHistory(kind, time.Second, test), &oracle{test: test, kind: kind, interval: time.Second}
		now, num, den, level := time.Duration(0), 0.0, 0.0, 0.5
		faults := r.IntN(3) * 2 // none, some or many
		for n := range 300 {
			step := time.Duration(ticksPerInterval-3+r.IntN(7)) * tick
			if r.IntN(100) < faults {
				step *= time.Duration(2 + r.IntN(8))
			}
			now += step
			if r.IntN(30) == 0 {
				level = r.Float64()
			}
			v := math.Max(0, level+0.4*(r.Float64()-0.5))
			if !kind.Sparse || r.IntN(3) > 0 && n%50 < 30 {
				num += v * float64(step) * 3
				den += float64(step) * 3
			}
			if r.IntN(200) < faults {
				num, den = 0, 0
			}
			read := reading{now, num, den}
			if kind.Gauge {
				read = reading{at: now, num: v}
			}
			h.Observe(int64(read.at), read.num, read.den)
			o.readings = append(o.readings, read)

			at := now + time.Duration(r.IntN(ticksPerInterval*3))*tick
			if r.IntN(3) > 0 {
				at = now
			}
			now = at
			holds, value, enough := judge(h, at)
			want, ok := o.judge(at)
			require.Equal(t, ok, enough, "seed %d, %v after %d readings", seed, test, len(o.readings))
			require.NoError(t, h.verify())
			compared++
			if !ok {
				require.False(t, holds)
				continue
			}
			require.InDelta(t, want, value, 2e-5*test.Threshold+1e-6, "seed %d, %v after %d readings", seed, test, len(o.readings))
			if math.Abs(want-test.Threshold) > 1e-4*test.Threshold {
				require.Equal(t, want > test.Threshold, holds, "seed %d, %v", seed, test)
			}
			if holds {
				held++
			}
		}
	}
	require.Greater(t, held, compared/20, "the readings hardly ever held")
}

func newHistory(k Kind, interval time.Duration, test Test) *History {
	m := NewMonitor(k, interval)
	m.Add(test)
	h := m.NewHistory()
	return &h
}

// judge evaluates the first test of a history.
func judge(h *History, now time.Duration) (holds bool, value float64, enough bool) {
	var scratch []float32
	holds = h.Holds(0, int64(now))
	value, enough = h.Value(0, int64(now), &scratch)
	return holds, value, enough
}

func TestNamesOfWindows(t *testing.T) {
	for want, test := range map[string]Test{
		"30s average":   {AverageOver: 30 * time.Second},
		"1m average":    {AverageOver: time.Minute},
		"1m30s average": {AverageOver: 90 * time.Second},
		"2h average":    {AverageOver: 2 * time.Hour},
		"10m average":   {AverageOver: 10 * time.Minute},
		"1.5s average":  {AverageOver: 1500 * time.Millisecond},
		"8 of 10s":      {Period: 10 * time.Second, Count: 8},
	} {
		require.Equal(t, want, test.String())
	}
}

func TestTenMinutesAtOneSecondFitIn5KiB(t *testing.T) {
	h := newHistory(Kind{Scale: 100}, time.Second, Test{AverageOver: 10 * time.Minute})
	size := len(h.ring)*int(unsafe.Sizeof(entry{})) + int(unsafe.Sizeof(*h)) + int(unsafe.Sizeof(*h.readings)) + len(h.windows)*int(unsafe.Sizeof(window{}))
	require.LessOrEqual(t, size, 5<<10)
	unused := NewMonitor(Kind{}, time.Second).NewHistory()
	require.Nil(t, unused.ring, "a monitor without tests has a history")
	t.Logf("%d bytes", size)
}

// TestLargeCountersKeepTheirPrecision checks that a counter still distinguishes 80 % from
// slightly more after years of CPU time.
func TestLargeCountersKeepTheirPrecision(t *testing.T) {
	h := newHistory(Kind{Scale: 100}, time.Second, Test{Threshold: 80, AverageOver: 10 * time.Minute})
	for _, test := range []struct {
		used  float64
		holds bool
	}{{0.8, false}, {0.8001, true}} {
		h.Restart()
		for n := range 601 {
			// The values are seconds of CPU time of 64 cores for five years.
			h.Observe(int64(time.Duration(n)*time.Second), 1e10+float64(n)*test.used*64, 2e10+float64(n)*64)
		}
		_, value, _ := judge(h, 600*time.Second)
		require.InDelta(t, test.used*100, value, 1e-3)
		require.Equal(t, test.holds, value > 80.001)
	}
}

func TestRoundingNeverAddsUp(t *testing.T) {
	h := newHistory(Kind{Scale: 100}, time.Second, Test{Threshold: 0, AverageOver: 10 * time.Second})
	r := rand.New(rand.NewPCG(1, 2))
	now, num, den := time.Duration(0), 0.0, 0.0
	observe := func(v float64) {
		now += time.Second
		num += v
		den++
		h.Observe(int64(now), num, den)
	}
	for range 100_000 {
		observe(math.Exp(r.NormFloat64() * 8))
	}
	for range 30 {
		observe(0)
	}
	holds, value, enough := judge(h, now)
	require.True(t, enough)
	require.Zero(t, value)
	require.False(t, holds)
}

func TestGaps(t *testing.T) {
	// After a gap of any length, only the readings within the test's period may count.
	for _, gap := range []time.Duration{2, 3, 4, 5, 8, 9, 11, 12, 13, 59, 60, 3600} {
		h := newHistory(Kind{Gauge: true}, time.Second, Test{Threshold: 50, Period: 12 * time.Second, Count: 1})
		h.Observe(0, 100, 0)
		now := gap * time.Second
		h.Observe(int64(now), 0, 0)
		holds, _, _ := judge(h, now)
		require.Equal(t, gap < 12, holds, "%d s", gap)
		require.NoError(t, h.verify())
	}
}

func TestBulkNthLargest(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for size := 1; size < 200; size++ {
		values := make([]float32, size)
		for _, spread := range []int{1, 3, 1000} {
			for i := range values {
				values[i] = float32(random.IntN(spread))
			}
			sorted := slices.Clone(values)
			slices.Sort(sorted)
			for n := 1; n <= size; n++ {
				require.Equal(t, sorted[size-n], nthLargest(slices.Clone(values), n), "%d of %v", n, values)
			}
		}
	}
}

// TestNthLargestOfAContrivedOrder uses an order that is the worst case for quickselect.
// The values are then sorted instead.
func TestNthLargestOfAContrivedOrder(t *testing.T) {
	values := make([]float32, MaxReadings)
	for i := range values {
		values[i] = float32(min(i, len(values)-i)) // organ-pipe order
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	for _, n := range []int{1, 2, len(values) / 2, len(values)} {
		require.Equal(t, sorted[len(values)-n], nthLargest(slices.Clone(values), n))
	}
}

func TestEqualTestsShareAWindow(t *testing.T) {
	m := NewMonitor(Kind{Scale: 100}, time.Second)
	mean := Test{Threshold: 80, AverageOver: time.Minute}
	require.Equal(t, 0, m.Add(mean))
	require.Equal(t, 1, m.Add(Test{Threshold: 80, Period: time.Minute, Count: 30}))
	require.Equal(t, 0, m.Add(mean))
	require.Equal(t, 2, m.AddAtLeast(80, time.Minute), "it holds at the threshold too")
	require.Equal(t, 3, m.Tests())
}

func TestAtLeastHoldsAtTheThreshold(t *testing.T) {
	m := NewMonitor(Kind{Scale: 100}, time.Second)
	above, atLeast := m.Add(Test{Threshold: 50, AverageOver: 2 * time.Second}), m.AddAtLeast(50, 2*time.Second)
	h := m.NewHistory()
	for n := range 4 {
		h.Observe(int64(n)*int64(time.Second), float64(n)/2, float64(n))
	}
	now := int64(3 * time.Second)
	require.False(t, h.Holds(above, now))
	require.True(t, h.Holds(atLeast, now))
	require.True(t, h.Fails(above, now))
	require.False(t, h.Fails(atLeast, now))
}

func TestHeatIsMeanByThreshold(t *testing.T) {
	h := newHistory(Kind{Scale: 100}, time.Second, Test{Threshold: 50, Period: 4 * time.Second, Count: 2})
	for n, used := range []float64{0, 0, 1, 1, 1.2} {
		h.Observe(int64(n)*int64(time.Second), used, float64(n))
	}
	holds, ratio := h.Heat(0, int64(4*time.Second))
	require.False(t, holds)
	require.InDelta(t, 0.6, ratio, 1e-3)
	require.True(t, h.Warm(0, int64(4*time.Second)))
	_, ratio = h.Heat(0, int64(10*time.Second))
	require.Zero(t, ratio, "without fresh readings")
	require.False(t, h.Warm(0, int64(10*time.Second)))
}

// verify recounts the running counts of the windows. It returns the first
// broken invariant.
func (h *History) verify() error {
	for i := range h.windows {
		t, w, r := h.test(i)
		if w.head > r.last || r.last-w.head > uint64(len(r.ring)) {
			return errors.New("a window lies outside its history")
		}
		recount := window{}
		tick := w.headTick
		for n := w.head + 1; n <= r.last; n++ {
			recount.add(t, r.entry(n))
			tick += r.entry(n).step()
		}
		switch {
		case recount.readings != w.readings || recount.above != w.above || recount.below != w.below || recount.weighing != w.weighing:
			return errors.New("a window miscounts its readings")
		case r.last > 0 && r.tick != tick:
			return errors.New("a window mistakes its start")
		case !finite(w.weight) || !finite(w.weighted):
			return errors.New("a sum of a window is not a number")
		}
	}
	return nil
}

// TestReadingsOfAWholeWindow covers monitors whose readings are values over the whole
// window. Only the latest reading therefore counts. If there is no recent reading, the
// value is unknown and not zero.
func TestReadingsOfAWholeWindow(t *testing.T) {
	second := int64(time.Second)
	m := NewMonitor(Kind{Whole: true}, time.Second)
	release := 50.0
	mean := m.Add(Test{Threshold: 100, AverageOver: time.Minute, ReleaseBelow: &release})
	count := m.Add(Test{Threshold: 100, Period: 5 * time.Second, Count: 2})
	h := m.NewHistory()
	require.False(t, h.Holds(mean, 0))
	for n, c := range []struct {
		value               float64
		mean, count, cooled bool
	}{{150, true, false, false}, {90, false, false, false}, {40, false, false, true}, {101, true, true, false}, {1000, true, true, false}} {
		at := int64(n+1) * second
		got, ok := h.Observe(at, c.value, 0)
		require.True(t, ok)
		require.Equal(t, c.value, got)
		require.Equal(t, c.mean, h.Holds(mean, at), n)
		require.Equal(t, c.count, h.Holds(count, at), n)
		require.Equal(t, c.cooled, h.Released(mean, at), n)
		var scratch []float32
		value, ok := h.Value(mean, at, &scratch)
		require.True(t, ok)
		require.InDelta(t, c.value, value, 1e-9)
		require.NoError(t, h.verify())
	}
	require.False(t, h.Holds(mean, 8*second), "there is no reading any more")
	require.False(t, h.Released(mean, 8*second))
	h.Observe(10*second, 200, 0)
	require.True(t, h.Holds(mean, 10*second), "a gap before it says nothing against the newest")
}
