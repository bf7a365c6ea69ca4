// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"cmp"
	"math"
	"slices"
	"time"
)

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
