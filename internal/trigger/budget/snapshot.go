// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"cmp"
	"slices"
	"time"
)

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

func (w Wall) time(at int64) time.Time { return w.Now.Add(-time.Duration(w.At - at)) }

// Spent returns the events of the last hour, in order.
func (h *Hour) Spent(w Wall) (spent []Spending) {
	for _, at := range h.times[h.since(w.At):] {
		when := w.time(at)
		if n := len(spent); n > 0 && spent[n-1].Time.Equal(when) {
			spent[n-1].Amount++
			continue
		}
		spent = append(spent, Spending{when, 1})
	}
	return spent
}

// Spent returns the openings of the last hour, and the bytes of each minute of that
// hour. Both are in order of time.
func (l *Ledger) Spent(w Wall) (triggers, bytes []Spending) {
	b := &l.bytes
	b.advance(w.At)
	for n := b.newest - int64(len(b.spent)) + 1; n <= b.newest; n++ {
		if m := b.minute(n); m.amount > 0 {
			bytes = append(bytes, Spending{w.time(m.last), m.amount})
		}
	}
	return l.triggers.Spent(w), bytes
}

// Restart converts wall times from before a restart to times on the ledger's scale.
type Restart struct {
	Taken  time.Time     // when the snapshot was taken
	Passed time.Duration // from Taken to At; not negative
	At     int64         // now, on the ledger's scale
}

type spending struct{ at, amount int64 }

// recent returns the entries of spent that are less than an hour old, in order of time.
func (r Restart) recent(spent []Spending) (out []spending) {
	for _, s := range spent {
		ago := min(max(0, r.Taken.Sub(s.Time)), time.Hour) + min(r.Passed, time.Hour)
		if ago < time.Hour && s.Amount > 0 {
			out = append(out, spending{r.At - int64(ago), s.Amount})
		}
	}
	slices.SortStableFunc(out, func(a, b spending) int { return cmp.Compare(a.at, b.at) })
	return out
}

// Restore adds events from before a restart until Count reaches limit.
func (h *Hour) Restore(r Restart, spent []Spending, limit int) {
	for _, s := range r.recent(spent) {
		for range min(s.amount, int64(limit)-int64(h.Count(r.At))) {
			h.Add(s.at)
		}
	}
}

// Restore adds the openings and bytes from before a restart. It adds no more openings
// than MaxTriggersPerHour allows.
func (l *Ledger) Restore(r Restart, triggers, bytes []Spending) {
	if limit := l.limits.MaxTriggersPerHour; limit > 0 {
		l.triggers.Restore(r, triggers, limit)
	}
	if limit := int64(l.limits.MaxBytesPerHour); limit > 0 {
		if l.bytes.sum(r.At) == 0 {
			l.bytes = bytesPerHour{newest: minuteOf(r.At - int64(time.Hour))}
		}
		for _, s := range r.recent(bytes) {
			l.bytes.add(s.at, min(s.amount, limit))
		}
	}
}
