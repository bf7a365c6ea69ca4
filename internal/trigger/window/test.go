// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"fmt"
	"math"
	"strings"
	"time"
)

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
