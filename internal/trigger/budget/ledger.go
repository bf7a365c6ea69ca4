// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package budget limits the openings and exports of all units together.
//
// A [Ledger] compares the spending with [Limits]. It has no clock: times are nanoseconds
// on a scale that the caller chooses. The package is not safe for concurrent use.
package budget

import (
	"fmt"
	"math"
	"time"

	"github.com/hotprofile/hotprofile/internal/bytesize"
)

// Ledger counts the spending of all units together. It counts triggers and
// bytes only if they have a limit. The caller counts the units with an open gate.
//
// Invariants:
//   - triggers contains at most MaxTriggersPerHour events in any hour if the caller
//     checks TriggerLeft first
//   - bytes may exceed MaxBytesPerHour, because SpendBytes does not check Affords
type Ledger struct {
	limits   Limits
	triggers Hour
	bytes    Hour
}

// NewLedger returns a ledger without any spending.
func NewLedger(l Limits) Ledger { return Ledger{limits: l, bytes: Hour{step: time.Minute}} }

// Limits returns the limits.
func (l *Ledger) Limits() Limits { return l.limits }

// TriggerLeft reports whether max_triggers_per_hour allows one more opening.
func (l *Ledger) TriggerLeft(at int64) bool {
	return l.limits.MaxTriggersPerHour == 0 || l.triggers.Sum(at) < int64(l.limits.MaxTriggersPerHour)
}

// SpendTrigger counts an opening.
func (l *Ledger) SpendTrigger(at int64) {
	if l.limits.MaxTriggersPerHour > 0 {
		l.triggers.Add(at, 1)
	}
}

// Affords reports whether max_bytes_per_hour leaves room for the given number of bytes.
func (l *Ledger) Affords(bytes int, at int64) bool {
	limit := int64(l.limits.MaxBytesPerHour)
	return limit == 0 || int64(max(bytes, 0)) <= limit-l.bytes.Sum(at)
}

// SpendBytes counts exported bytes.
func (l *Ledger) SpendBytes(bytes int, at int64) {
	if l.limits.MaxBytesPerHour > 0 {
		l.bytes.Add(at, int64(bytes))
	}
}

// Spent returns the openings and the bytes of the last hour.
func (l *Ledger) Spent(w Wall) (triggers, bytes []Spending) {
	return l.triggers.Spent(w), l.bytes.Spent(w)
}

// Restore adds the openings and bytes from before a restart. It adds no more openings
// than MaxTriggersPerHour allows.
func (l *Ledger) Restore(r Restart, triggers, bytes []Spending) {
	if limit := int64(l.limits.MaxTriggersPerHour); limit > 0 {
		l.triggers.Restore(r, triggers, limit, limit)
	}
	if limit := int64(l.limits.MaxBytesPerHour); limit > 0 {
		l.bytes.Restore(r, bytes, limit, math.MaxInt64)
	}
}

// maxHourly is the largest hourly limit of triggers. It bounds the memory, because the
// time of each trigger is kept for an hour.
const maxHourly = 100_000

// These are the names of the budgets in configurations and reports.
const (
	MaxConcurrentUnits           = "max_concurrent_units"
	MaxTriggersPerHour           = "max_triggers_per_hour"
	MaxTriggersPerServicePerHour = "max_triggers_per_service_per_hour"
	MaxBytesPerHour              = "max_bytes_per_hour"
)

// Limits bound the spending of all units together. Zero means unlimited.
type Limits struct {
	// MaxConcurrentUnits is the maximum number of units with an open gate.
	MaxConcurrentUnits int `mapstructure:"max_concurrent_units"`
	// MaxTriggersPerHour is the maximum number of openings within any hour.
	MaxTriggersPerHour int `mapstructure:"max_triggers_per_hour"`
	// MaxTriggersPerServicePerHour is the maximum number of openings within any hour for
	// the units of one service.
	MaxTriggersPerServicePerHour int `mapstructure:"max_triggers_per_service_per_hour"`
	// MaxBytesPerHour is the maximum marshalled size of the profiles that are sent within
	// any hour.
	MaxBytesPerHour bytesize.Size `mapstructure:"max_bytes_per_hour"`
}

// ConcurrentByHand returns the maximum number of units whose gate was opened by hand. It
// is half of MaxConcurrentUnits, but at least 1, so that the other half remains for
// policies. Zero means unlimited.
func (l Limits) ConcurrentByHand() int {
	if l.MaxConcurrentUnits == 0 {
		return 0
	}
	return max(1, l.MaxConcurrentUnits/2)
}

// Validate returns all faults. Each fault contains its configuration key
// and the allowed values.
func (l Limits) Validate() (errs []error) {
	for _, b := range []struct {
		name   string
		limit  int64
		atMost int64
	}{
		{MaxConcurrentUnits, int64(l.MaxConcurrentUnits), math.MaxInt64},
		{MaxTriggersPerHour, int64(l.MaxTriggersPerHour), maxHourly},
		{MaxTriggersPerServicePerHour, int64(l.MaxTriggersPerServicePerHour), maxHourly},
		{MaxBytesPerHour, int64(l.MaxBytesPerHour), math.MaxInt64},
	} {
		switch {
		case b.limit < 0:
			errs = append(errs, fmt.Errorf("budgets.%s: %d is not allowed: must be 0 (unlimited) or more", b.name, b.limit))
		case b.limit > b.atMost:
			errs = append(errs, fmt.Errorf("budgets.%s: %d is not allowed: must be at most %d, or 0 (unlimited)", b.name, b.limit, b.atMost))
		}
	}
	return errs
}

// ExceededError is returned for an opening that a budget does not allow.
type ExceededError struct{ Budget string }

func (e *ExceededError) Error() string {
	return fmt.Sprintf("opening a gate: budget %s is used up: try again later or raise it", e.Budget)
}
