// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"slices"
	"time"
)

// Kind describes how the readings of a monitor become values.
type Kind struct {
	// Scale converts ΔNum/ΔDen to the monitor's unit: 100 for percent. Zero means 1.
	Scale float64
	// Gauge means that Num is a momentary value and not a cumulative value.
	Gauge bool
	// Sparse means that Den may stay the same between two readings, for example if no CFS
	// period began. The value is then 0 and has no weight in a mean.
	Sparse bool
	// Whole means that each reading already contains the value over the whole span. The
	// mean is then the newest reading. Count tests work as for other monitors.
	Whole bool
}

// Monitor is the plan for the readings of one monitor. It must not change after the first
// History was created from it.
type Monitor struct {
	kind     Kind
	interval time.Duration // between two readings
	tick     int64         // ns, the resolution of the history
	slack    int64         // ns, the allowed jitter of tickers
	ring     int           // number of entries in a history
	tests    []plannedTest
}

// plannedTest is a compiled Test. The window of tests[i] is windows[i] of each History.
type plannedTest struct {
	limit    float64 // the threshold, adjusted by the largest rounding error
	inverse  float64 // 1 / threshold
	releases bool
	release  float64 // ReleaseBelow minus the largest rounding error
	count    int     // 0 for a mean
	gauge    bool
	sparse   bool
	whole    bool  // the newest reading is the mean
	span     int64 // ticks
	near     int64 // ticks, the allowed distance of a reading from the start of the span
	slack    int64 // ticks, the allowed jitter of tickers
	enough   int   // number of readings that the mean of a gauge needs
	tick     int64 // ns
	interval int64 // ns
	fresh    int64 // ns, the largest age of the newest reading
}

// NewMonitor returns a plan without tests. One reading is expected per interval. Readings
// are kept for as long as the longest test needs them.
func NewMonitor(k Kind, interval time.Duration) *Monitor {
	if k.Scale == 0 {
		k.Scale = 1
	}
	// The slack keeps the jitter of tickers from affecting tests.
	slack := int64(interval) / 4
	return &Monitor{
		kind: k, interval: interval, slack: slack,
		tick: max(1, int64(interval)/ticksPerInterval),
		ring: ringSize(0, interval),
	}
}

// Add adds a valid test and returns its number. Equal tests share a number, so many
// policies with the same test cost no more than one policy.
func (m *Monitor) Add(t Test) int {
	span := t.Span()
	if m.kind.Whole && t.Count == 0 {
		span = 0 // only the newest reading is needed
	}
	return m.add(span, m.plan(t))
}

// AddAtLeast adds a test that holds while the mean over a span is at least a value. It
// returns the number of the test.
func (m *Monitor) AddAtLeast(value float64, span time.Duration) int {
	p := m.plan(Test{Threshold: value, AverageOver: span})
	p.limit = value - 1e-6*value - 1e-9*m.kind.Scale
	return m.add(span, p)
}

// Tests returns the number of tests.
func (m *Monitor) Tests() int { return len(m.tests) }

func (m *Monitor) add(span time.Duration, p plannedTest) int {
	m.ring = max(m.ring, ringSize(span, m.interval))
	n := slices.Index(m.tests, p)
	if n < 0 {
		n = len(m.tests)
		m.tests = append(m.tests, p)
	}
	return n
}

func (m *Monitor) plan(t Test) plannedTest {
	p := plannedTest{
		limit:   t.Threshold + 1e-6*t.Threshold + 1e-9*m.kind.Scale,
		inverse: inverse(t.Threshold),
		count:   t.Count, gauge: m.kind.Gauge, sparse: m.kind.Sparse, whole: m.kind.Whole,
		span:     int64(t.Span()) / m.tick,
		near:     (int64(m.interval) + m.slack) / m.tick,
		slack:    m.slack / m.tick,
		enough:   int((t.Span()*4 + m.interval*5 - 1) / (m.interval * 5)),
		tick:     m.tick,
		interval: int64(m.interval),
		fresh:    int64(m.interval) + m.slack,
	}
	if t.ReleaseBelow != nil {
		p.releases = true
		p.release = *t.ReleaseBelow - 1e-6**t.ReleaseBelow - 1e-9*m.kind.Scale
	}
	return p
}

// above reports whether a value is above the limit of the test. The limit differs from
// the threshold by the precision of the stored readings, which is 7 digits. The limit of
// a Test is above the threshold. The limit of AddAtLeast is below the value.
func (p *plannedTest) above(value float64) bool { return value > p.limit }

// below reports whether a value is below ReleaseBelow by more than the
// largest rounding error.
func (p *plannedTest) below(value float64) bool { return value < p.release }

// ratio is like Ratio, but uses the precomputed inverse of the threshold.
func (p *plannedTest) ratio(value float64) float64 { return value * p.inverse }

// ringSize returns the number of entries for a span. Each interval has one entry. There is
// one more entry for the reading at the start of the span, and one for readings that
// arrive early.
func ringSize(span, interval time.Duration) int {
	return int((span+interval-1)/interval) + 2
}
