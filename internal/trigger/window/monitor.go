// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"fmt"
	"math"
	"slices"
	"strings"
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
	Kind
	limit    float64 // the threshold, adjusted by the largest rounding error
	inverse  float64 // 1 / threshold
	releases bool
	release  float64 // ReleaseBelow minus the largest rounding error
	count    int     // 0 for a mean
	span     int64   // ticks
	near     int64   // ticks, the allowed distance of a reading from the start of the span
	slack    int64   // ticks, the allowed jitter of tickers
	enough   int     // number of readings that the mean of a gauge needs
	tick     int64   // ns
	interval int64   // ns
	fresh    int64   // ns, the largest age of the newest reading
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
		count:   t.Count, Kind: m.kind,
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

const (
	// minSpan is the shortest span. The kernel updates CPU counters once per
	// scheduler tick, which is 4 ms at 250 Hz. The relative error of a
	// shorter span would be too large.
	minSpan = time.Second

	// MaxReadings limits the number of readings in a History. Each reading takes 8 bytes.
	MaxReadings = 3600
)

// Test is a test on the readings of one monitor. Exactly one of AverageOver and
// Period with Count is set.
type Test struct {
	// Threshold is a value in the monitor's unit. The test holds while the tested
	// value is above this threshold.
	Threshold float64
	// AverageOver tests the mean over this span.
	AverageOver time.Duration
	// Period and Count require that at least Count readings in the last Period are above
	// the threshold.
	Period time.Duration
	Count  int
	// ReleaseBelow releases the test while its mean is below this value. A
	// test with Count is released while at least Count readings in Period
	// are below this value. ReleaseBelow must not exceed the threshold. If
	// ReleaseBelow is nil, the test is never released.
	ReleaseBelow *float64
}

// String returns the name of the window in reports: "30s average" or "8 of 10s".
func (t Test) String() string {
	if t.AverageOver > 0 {
		return shortDuration(t.AverageOver) + " average"
	}
	return fmt.Sprintf("%d of %s", t.Count, shortDuration(t.Period))
}

// Span returns the length of time that the test covers.
func (t Test) Span() time.Duration { return max(t.AverageOver, t.Period) }

// MaxCount returns the number of readings in a period, which is the largest valid Count.
func MaxCount(period, interval time.Duration) int {
	if interval <= 0 {
		return 0
	}
	return int(period / interval)
}

// Ratio returns value / threshold. The test with the largest ratio is the hottest. A test
// holds if its ratio is above 1.
func Ratio(value, threshold float64) float64 { return value * inverse(threshold) }

func inverse(threshold float64) float64 { return 1 / max(threshold, 1e-9) }

// Validate returns all faults. Each fault contains the path of the configuration key and
// the allowed values. interval is the time between two readings.
func (t Test) Validate(at string, interval time.Duration) (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !finite(t.Threshold) || t.Threshold < 0 {
		fault("%s.threshold: %v is not allowed: must be a number, 0 or more", at, t.Threshold)
	}
	if r := t.ReleaseBelow; r != nil && (!finite(*r) || *r <= 0 || *r > t.Threshold) {
		fault("%s.release_below: %v is not allowed: must be above 0 and at most the threshold (%v)", at, *r, t.Threshold)
	}
	average, counted := t.AverageOver != 0, t.Period != 0 || t.Count != 0
	switch {
	case average && counted:
		fault("%s: average_over and period with count exclude each other: set one of them", at)
	case average:
		errs = append(errs, validateSpan(at+".average_over", t.AverageOver, interval)...)
	case !counted:
		fault("%s: must have either average_over or period with count", at)
	case t.Period == 0:
		fault("%s.period: must be set where count is", at)
	default:
		faults := validateSpan(at+".period", t.Period, interval)
		errs = append(errs, faults...)
		if most := MaxCount(t.Period, interval); len(faults) == 0 && (t.Count < 1 || t.Count > most) {
			fault("%s.count: %d is not allowed: must be from 1 to %d, the number of readings in the period", at, t.Count, most)
		}
	}
	return errs
}

func validateSpan(key string, d, interval time.Duration) []error {
	switch {
	case d < minSpan:
		return []error{fmt.Errorf("%s: %v is not allowed: must be at least %v, since the kernel updates CPU counters once per scheduler tick and a shorter window is mostly error", key, d, minSpan)}
	case d < interval:
		return []error{fmt.Errorf("%s: %v is not allowed: must be at least one collection_interval (%v)", key, d, interval)}
	case interval > 0 && d/interval > MaxReadings:
		return []error{fmt.Errorf("%s: %v is not allowed: must be at most %d collection intervals (%v)", key, d, MaxReadings, MaxReadings*interval)}
	}
	return nil
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// shortDuration formats a duration like time.Duration, but writes 1m and 2h
// instead of 1m0s and 2h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
