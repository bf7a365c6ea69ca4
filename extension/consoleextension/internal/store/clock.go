// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"time"
)

// clock counts the seconds of the store's life. It starts at 1, because 0 means never. Ages
// in the store depend only on this clock, so changes of the system clock do not matter while
// the store is open. Open advances this clock by the time for which the store was closed,
// according to the system clock, but by at most half of MaxAge. A wrong system clock therefore
// never expires data that is younger than half of MaxAge.
type clock struct {
	start  int64 // value of the clock at Open, at least 1
	opened time.Duration
	uptime func() time.Duration
}

// life is the state of the clock in the database.
type life struct {
	Seconds int64 `json:"seconds"`
	Wall    int64 `json:"wall"` // system clock at the same moment, in seconds since 1970
}

func newClock(was life, now time.Time, maxAge time.Duration, uptime func() time.Duration) clock {
	closed := int64(0)
	if was.Wall > 0 {
		closed = min(max(now.Unix()-was.Wall, 0), int64(maxAge/(2*time.Second)))
	}
	return clock{start: max(was.Seconds, 1) + closed, opened: uptime(), uptime: uptime}
}

func (c clock) now() int64 { return c.start + int64((c.uptime()-c.opened)/time.Second) }

// plausible returns the time of a record. If that time is zero, older than MaxAge or too
// far in the future, plausible returns the current time.
func (s *Store) plausible(at time.Time) time.Time {
	now := s.options.Now()
	if at.IsZero() || at.Unix() == 0 {
		return now
	}
	if at.After(now.Add(ahead)) || at.Before(now.Add(-s.options.MaxAge)) {
		s.drop("time", 1)
		return now
	}
	return at
}

// ahead is the maximum time by which the clock of a host may be
// ahead of the console's clock.
const ahead = 10 * time.Minute
