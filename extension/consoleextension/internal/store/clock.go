// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import "time"

// life is the state of the store's clock in the database. The record of the life was stored
// at the time of the last write.
type life struct {
	Wall int64 `json:"wall"` // system clock at the same moment, in seconds since 1970
}

// now returns the seconds of the store's life. They start at 1, because 0 means never. Ages
// in the store depend only on this clock, so changes of the system clock do not matter while
// the store is open.
func (s *Store) now() int64 { return s.start + int64(s.options.Uptime()/time.Second) }

// setClock sets the clock to a time after the last write. It advances the clock by the time
// for which the store was closed, according to the system clock, but by at most half of
// MaxAge. A wrong system clock therefore never expires data that is younger than half of
// MaxAge.
func (s *Store) setClock(lastWrite int64, was life) {
	closed := int64(0)
	if was.Wall > 0 {
		closed = min(max(s.options.Now().Unix()-was.Wall, 0), int64(s.options.MaxAge/(2*time.Second)))
	}
	s.start += lastWrite + 1 + closed - s.now()
}

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
