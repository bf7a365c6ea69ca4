// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"fmt"
	"math"
	"sort"
	"time"
)

// maxHourly bounds the triggers that an hourly budget may allow, since the time
// of each is kept for an hour.
const maxHourly = 100_000

// OverBudgetError says which budget keeps a gate from being opened by hand.
type OverBudgetError struct{ Budget string }

func (e *OverBudgetError) Error() string {
	return fmt.Sprintf("opening a gate: budget %s is used up: try again later or raise it", e.Budget)
}

// Afford says whether max_bytes_per_hour allows so much more to be let out.
func (e *Engine) Afford(bytes int, now time.Time) bool {
	limit := e.budgets.MaxBytesPerHour
	return limit == 0 || int64(max(bytes, 0)) <= limit-e.bytes.sum(e.at(now))
}

// Spend counts what was let out and accepted, once per profile.
func (e *Engine) Spend(bytes int, now time.Time) {
	if e.budgets.MaxBytesPerHour > 0 {
		e.bytes.add(e.at(now), int64(max(bytes, 0)))
	}
}

// overBudget names the budget that keeps the unit from one more opening; empty
// if none does. A unit with an open gate needs no second place, and baselines
// give theirs up.
func (e *Engine) overBudget(u *Unit, at int64) string {
	switch b := &e.budgets; {
	case !e.place(u) && len(e.baselines) == 0:
		return MaxConcurrentUnits
	case b.MaxTriggersPerHour > 0 && e.triggers.count(at) >= b.MaxTriggersPerHour:
		return MaxTriggersPerHour
	case b.MaxTriggersPerServicePerHour > 0 && e.services.triggers(u.account(), at) >= b.MaxTriggersPerServicePerHour:
		return MaxTriggersPerServicePerHour
	case b.MaxBytesPerHour > 0 && e.bytes.sum(at) >= b.MaxBytesPerHour:
		return MaxBytesPerHour
	}
	return ""
}

// place says whether the unit has a place among those with an open gate, or one
// is free.
func (e *Engine) place(u *Unit) bool {
	return u.hotGates+u.baselines > 0 || e.budgets.MaxConcurrentUnits == 0 || e.openUnits < e.budgets.MaxConcurrentUnits
}

// spendTrigger counts an opening.
func (e *Engine) spendTrigger(u *Unit, at int64) {
	if e.budgets.MaxTriggersPerHour > 0 {
		e.triggers.add(at)
	}
	if e.budgets.MaxTriggersPerServicePerHour > 0 {
		e.services.get(u.account(), e.clock).triggers.add(at)
	}
}

// hour holds when something happened in the last hour. What it may hold is
// bounded by the budget that it is for.
type hour struct{ times []int64 }

// since is the index of the first time less than an hour ago. Like a clock's,
// the times do not run backwards.
func (h *hour) since(at int64) int {
	from := at - int64(time.Hour)
	return sort.Search(len(h.times), func(n int) bool { return h.times[n] > from })
}

func (h *hour) count(at int64) int { return len(h.times) - h.since(at) }

func (h *hour) add(at int64) {
	if n := len(h.times); n > 0 {
		at = max(at, h.times[n-1])
	}
	if n := h.since(at); n > 0 {
		h.times = h.times[:copy(h.times, h.times[n:])]
	}
	h.times = append(h.times, at)
}

// minutes holds how much was spent in each of the last 61 minutes, which are
// never less than an hour.
type minutes struct {
	newest int64 // since the epoch
	spent  [61]minute
	total  int64
}

type minute struct {
	amount int64
	last   int64 // when some of it was spent
}

func (m *minutes) slot(number int64) *minute {
	n := int64(len(m.spent))
	return &m.spent[((number%n)+n)%n]
}

// advance drops what is more than an hour ago. A clock that ran backwards drops
// nothing.
func (m *minutes) advance(at int64) {
	number := floorDiv(at, int64(time.Minute))
	if number-m.newest >= int64(len(m.spent)) {
		*m = minutes{newest: number}
	}
	for m.newest < number {
		m.newest++
		s := m.slot(m.newest)
		m.total -= s.amount
		*s = minute{}
	}
}

func (m *minutes) sum(at int64) int64 {
	m.advance(at)
	return m.total
}

func (m *minutes) add(at, amount int64) {
	m.advance(at)
	amount = min(amount, math.MaxInt64-m.total)
	s := m.slot(m.newest)
	s.amount += amount
	s.last = at
	m.total += amount
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
