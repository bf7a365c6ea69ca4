// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"time"
)

// clock counts the seconds of the store's life. Ages in the store depend on it alone:
// it counts while the store is open, whatever the system's clock does. Over the time
// that the store was closed it takes the system's clock's word, for at most half of
// MaxAge: so a clock that was wrong when the store was opened makes nothing too old, and
// at worst something is kept longer. It begins at 1: 0 is never.
type clock struct {
	start  int64 // seconds that it had counted when the store was opened, at least 1
	opened time.Duration
	uptime func() time.Duration
}

// life is a clock as the database keeps it.
type life struct {
	Seconds int64 `json:"seconds"`
	Wall    int64 `json:"wall"` // seconds since 1970, at that moment
}

func (l life) record() (UnitID, int64, any) { return "", l.Seconds, l }

func newClock(was life, now time.Time, maxAge time.Duration, uptime func() time.Duration) clock {
	closed := int64(0)
	if was.Wall > 0 {
		closed = min(max(now.Unix()-was.Wall, 0), int64(maxAge/(2*time.Second)))
	}
	return clock{start: max(was.Seconds, 1) + closed, opened: uptime(), uptime: uptime}
}

func (c clock) now() int64 { return c.start + int64((c.uptime()-c.opened)/time.Second) }

// plausible returns the time of a record: its own, unless no clock that is nearly right
// can have written it. Then it is the time of its arrival.
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

// ahead is the time that the clock of a host may be ahead of ours.
const ahead = 10 * time.Minute
