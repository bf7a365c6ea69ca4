// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"slices"
	"sort"
	"time"
)

// Hour contains the times of the events of the last hour. The zero value is empty.
//
// Invariants:
//   - times are sorted: an event earlier than the last event gets the last event's time
//   - Add drops the times that are an hour old, so the hourly budget limits the length
type Hour struct{ times []int64 }

// Add adds an event.
func (h *Hour) Add(at int64) {
	if n := len(h.times); n > 0 {
		at = max(at, h.times[n-1])
	}
	h.times = append(slices.Delete(h.times, 0, h.since(at)), at)
}

// Count returns the number of events in the hour before a time.
func (h *Hour) Count(at int64) int { return len(h.times) - h.since(at) }

// Last returns the time of the last event. ok is false if there is no event.
func (h *Hour) Last() (at int64, ok bool) {
	if n := len(h.times); n > 0 {
		return h.times[n-1], true
	}
	return 0, false
}

// since returns the index of the first event that is less than an hour old.
func (h *Hour) since(at int64) int {
	from := at - int64(time.Hour)
	return sort.Search(len(h.times), func(n int) bool { return h.times[n] > from })
}

// bytesPerHour contains the number of bytes for each of the last 61 minutes. Together
// these minutes always cover a whole hour.
//
// Invariants:
//   - minute n is at n % 61, for n from newest − 60 to newest
//   - total is the sum of the amounts and does not overflow
type bytesPerHour struct {
	newest int64 // number of the newest minute on the time scale
	spent  [61]minute
	total  int64
}

type minute struct {
	amount int64
	last   int64 // the time at which bytes were last added
}

func (b *bytesPerHour) minute(number int64) *minute {
	n := int64(len(b.spent))
	return &b.spent[((number%n)+n)%n]
}

// advance drops the minutes that are more than an hour old. It drops no minute if the clock
// ran backwards.
func (b *bytesPerHour) advance(at int64) {
	number := minuteOf(at)
	if number-b.newest >= int64(len(b.spent)) {
		*b = bytesPerHour{newest: number}
	}
	for b.newest < number {
		b.newest++
		m := b.minute(b.newest)
		b.total -= m.amount
		*m = minute{}
	}
}

func (b *bytesPerHour) sum(at int64) int64 {
	b.advance(at)
	return b.total
}

func (b *bytesPerHour) add(at, amount int64) {
	b.advance(at)
	amount = min(amount, math.MaxInt64-b.total)
	m := b.minute(b.newest)
	m.amount += amount
	m.last = at
	b.total += amount
}

// minuteOf returns the number of the minute that contains a time. Times before the
// epoch are also rounded down.
func minuteOf(at int64) int64 {
	n := at / int64(time.Minute)
	if at%int64(time.Minute) < 0 {
		n--
	}
	return n
}
