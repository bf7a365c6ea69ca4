// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"slices"
	"time"
)

// Kind describes how the readings of a monitor become values.
type Kind struct {
	// Scale turns ΔNum/ΔDen into the monitor's unit: 100 for percent. Zero
	// means 1.
	Scale float64
	// Gauge: Num is a momentary value, not a cumulative one.
	Gauge bool
	// Sparse: Den may stand still, as when no CFS period began. Such a reading
	// is 0 and has no weight in a mean.
	Sparse bool
	// Whole: Num is the value over the whole span that ends with the reading, not a
	// cumulative one. A mean is the newest reading; a count is one of readings as of
	// any other monitor.
	Whole bool
}

// Monitor is the plan for the readings of one monitor. It does not change once
// the first History is made of it.
type Monitor struct {
	kind     Kind
	interval time.Duration // between two readings
	tick     int64         // ns, the resolution of the history
	slack    int64         // ns that tickers may jitter
	ring     int           // entries of a history
	tests    []plannedTest
}

// plannedTest is a Test, worked out once. The window of tests[i] is windows[i] of
// each History.
type plannedTest struct {
	limit    float64 // the threshold plus what rounding may add to a reading
	inverse  float64 // 1 / threshold
	releases bool
	release  float64 // ReleaseBelow less what rounding may take
	count    int     // 0: a mean
	gauge    bool
	sparse   bool
	whole    bool  // the newest reading is the mean
	span     int64 // ticks
	near     int64 // ticks that a reading may be off the start of the span
	slack    int64 // ticks that tickers may jitter
	enough   int   // readings that the mean of a gauge needs
	tick     int64 // ns
	interval int64 // ns
	fresh    int64 // ns, the largest age of the newest reading
}

// NewMonitor returns a plan without tests. Readings come once per interval and are
// kept for as long as the longest test needs.
func NewMonitor(k Kind, interval time.Duration) *Monitor {
	if k.Scale == 0 {
		k.Scale = 1
	}
	// Tickers jitter: "within one interval" must not flip with it.
	slack := int64(interval) / 4
	return &Monitor{
		kind: k, interval: interval, slack: slack,
		tick: max(1, int64(interval)/ticksPerInterval),
		ring: ringSize(0, interval),
	}
}

// Add adds a valid test and returns its number. Equal tests share one, so many
// policies with the same test cost no more than one.
func (m *Monitor) Add(t Test) int {
	span := t.Span()
	if m.kind.Whole && t.Count == 0 {
		span = 0 // nothing before the newest reading is needed
	}
	return m.add(span, m.plan(t))
}

// AddAtLeast adds a test that holds while the mean over a span is at least a value,
// and returns its number.
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

// above is strict: readings are kept with 7 digits, so a value that exceeds the
// threshold by less than that is not above.
func (p *plannedTest) above(value float64) bool { return value > p.limit }

// below is strict in the same way.
func (p *plannedTest) below(value float64) bool { return value < p.release }

// ratio is Ratio with the threshold's inverse worked out.
func (p *plannedTest) ratio(value float64) float64 { return value * p.inverse }

// ringSize returns the number of entries that hold a span: one per interval, the
// reading at its far end, and one for readings that come early.
func ringSize(span, interval time.Duration) int {
	return int((span+interval-1)/interval) + 2
}
