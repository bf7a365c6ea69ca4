// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package budget limits the openings and exports of all units together.
//
// A [Ledger] compares the spending with [Limits]. It has no clock: times are nanoseconds
// on a scale that the caller chooses. The package is not safe for concurrent use.
package budget

import (
	"cmp"
	"fmt"
	"math"
	"slices"
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

// Hour contains the amounts that were spent within the last hour. The zero value is empty.
//
// Invariants:
//   - spent is sorted by time: if the clock ran backwards, a new amount gets the time of
//     the last amount
//   - total is the sum of the amounts and does not overflow
//   - the amounts of one step share an entry, so the step and the budget limit the length
type Hour struct {
	step  time.Duration // 0: only amounts with the same time share an entry
	spent []spending
	total int64
}

type spending struct{ at, amount int64 }

// Add adds an amount. It ignores amounts that are not positive.
func (h *Hour) Add(at, amount int64) {
	h.forget(at)
	if amount = min(amount, math.MaxInt64-h.total); amount <= 0 {
		return
	}
	h.total += amount
	if n := len(h.spent); n > 0 {
		last := &h.spent[n-1]
		at = max(at, last.at)
		if h.start(at) == h.start(last.at) {
			last.at, last.amount = at, last.amount+amount
			return
		}
	}
	h.spent = append(h.spent, spending{at, amount})
}

// start returns the start of the step that contains a time.
func (h *Hour) start(at int64) int64 { return time.Unix(0, at).Truncate(h.step).UnixNano() }

// Sum returns the sum of the amounts in the hour before a time. An amount counts for an hour
// after the end of its step.
func (h *Hour) Sum(at int64) int64 {
	h.forget(at)
	return h.total
}

// Last returns the time of the last amount. ok is false if there is no amount.
func (h *Hour) Last() (at int64, ok bool) {
	if n := len(h.spent); n > 0 {
		return h.spent[n-1].at, true
	}
	return 0, false
}

// forget drops the entries whose steps ended an hour ago. It drops no entry if the clock ran
// backwards.
func (h *Hour) forget(at int64) {
	old := 0
	for old < len(h.spent) && h.start(h.spent[old].at)+int64(h.step+time.Hour) <= at {
		h.total -= h.spent[old].amount
		old++
	}
	h.spent = slices.Delete(h.spent, 0, old)
}

// Spending is an amount spent at a wall time.
type Spending struct {
	Time   time.Time `json:"time"`
	Amount int64     `json:"amount"`
}

// Wall converts times on the ledger's scale to wall times.
type Wall struct {
	Now time.Time // the wall time
	At  int64     // the same time on the ledger's scale
}

// Spent returns the amounts of the last hour, in order of time.
func (h *Hour) Spent(w Wall) (spent []Spending) {
	h.forget(w.At)
	for _, s := range h.spent {
		spent = append(spent, Spending{w.Now.Add(-time.Duration(w.At - s.at)), s.amount})
	}
	return spent
}

// Restart converts wall times from before a restart to times on the ledger's scale.
type Restart struct {
	Taken  time.Time     // when the snapshot was taken
	Passed time.Duration // from Taken to At; not negative
	At     int64         // now, on the ledger's scale
}

// Restore adds the amounts from before a restart that are less than an hour old. It reduces
// each amount to at most most, and adds amounts only until the sum reaches limit.
func (h *Hour) Restore(r Restart, spent []Spending, most, limit int64) {
	var recent []spending
	for _, s := range spent {
		ago := min(max(0, r.Taken.Sub(s.Time)), time.Hour) + min(r.Passed, time.Hour)
		if ago < time.Hour {
			recent = append(recent, spending{r.At - int64(ago), min(s.Amount, most)})
		}
	}
	slices.SortStableFunc(recent, func(a, b spending) int { return cmp.Compare(a.at, b.at) })
	for _, s := range recent {
		h.Add(s.at, min(s.amount, limit-h.Sum(r.At)))
	}
}
