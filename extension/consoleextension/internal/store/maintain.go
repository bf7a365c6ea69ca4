// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/zap"
)

const (
	// deleteAtOnce bounds the blocks that are deleted in one transaction.
	deleteAtOnce = 20_000
	// compactAbove is the size of a database, in bytes, above which it is compacted when
	// half of it is free; at most every compactEvery seconds.
	compactAbove = 16 << 20
	compactEvery = 3600
)

// link adds openings and refusals that were loaded to their units, in the order in which
// they arrived.
func (s *Store) link() {
	for _, o := range s.openings {
		s.order = append(s.order, o)
	}
	slices.SortFunc(s.order, func(a, b *opening) int {
		return cmp.Or(cmp.Compare(a.stored, b.stored), a.Triggered.Compare(b.Triggered), cmp.Compare(a.ID, b.ID))
	})
	for _, o := range s.order {
		o.unit.openings = append(o.unit.openings, o)
	}
}

// newest returns when the last record was stored, by the clock.
func (s *Store) newest() int64 {
	newest := int64(0)
	for _, u := range s.units {
		newest = max(newest, u.seen)
	}
	for _, o := range s.order {
		newest = max(newest, o.stored)
	}
	for _, i := range s.instances {
		newest = max(newest, i.seen)
	}
	return newest
}

// makeSmall makes the file small when the store is opened.
func (s *Store) makeSmall() error {
	used, err := s.db.used()
	if err == nil && s.db.size() > max(compactAbove, 2*used) {
		err = s.compact()
	}
	s.measure()
	return err
}

// maintain thins readings, forgets what is too old, and makes room.
func (s *Store) maintain() {
	s.room.Lock()
	err := s.thin()
	if err == nil {
		err = s.age()
	}
	if err == nil {
		err = s.dropPeers(s.options.MaxBytes / 20)
	}
	s.room.Unlock()
	s.measure()
	if err == nil {
		err = s.makeRoom(0)
	}
	if err == nil {
		s.room.Lock()
		err = s.makeSmall()
		s.room.Unlock()
	}
	if err != nil {
		s.found(err)
		s.log.Error("console cannot thin or delete what it keeps", zap.Error(err))
	}
	s.measure()
}

// found notes that the database is damaged, if the error is errDamaged: the writer sets
// it aside.
func (s *Store) found(err error) {
	if errors.Is(err, errDamaged) {
		s.damaged.Store(true)
		s.poke()
	}
}

// thin merges the readings of spans that are old enough.
func (s *Store) thin() error {
	s.mu.RLock()
	now := s.clock.now()
	ids := make([][]byte, 0, len(s.units))
	for id := range s.units {
		ids = append(ids, id.key())
	}
	s.mu.RUnlock()
	slices.SortFunc(ids, slices.Compare[[]byte])
	for i := range len(tiers) - 1 {
		from, to := tiers[i], tiers[i+1]
		for {
			first, err := s.firstSpan(from)
			if err != nil {
				return err
			}
			span := first * from.span / to.span
			if first < 0 || now < (span+1)*to.span+from.keep {
				break
			}
			if err := s.thinSpan(from, to, span, ids); err != nil {
				return err
			}
		}
	}
	return nil
}

// firstSpan returns the number of the oldest span of a tier; -1 if it is empty. One that
// is before the first or after now is damaged.
func (s *Store) firstSpan(t tier) (span int64, err error) {
	s.mu.RLock()
	latest := s.clock.now()/t.span + 1
	s.mu.RUnlock()
	span = -1
	err = s.db.view(func(tx *bolt.Tx) error {
		b, err := t.bucket(tx)
		if err != nil {
			return err
		}
		if k, _ := b.Cursor().First(); k != nil {
			if span = spanOf(k); span < 0 || span > latest {
				return fmt.Errorf("%w: the first key of %s is of no time", errDamaged, t.name)
			}
		}
		return nil
	})
	return span, err
}

// thinSpan writes a span of a tier from that before, and deletes it there. If it is
// interrupted, it is done again with the same result.
func (s *Store) thinSpan(from, to tier, span int64, ids [][]byte) error {
	end := (span + 1) * to.span / from.span
	for some := range slices.Chunk(ids, unitsAtOnce) {
		if err := s.db.update(func(tx *bolt.Tx) error { return s.thinUnits(tx, from, to, span, some) }); err != nil {
			return err
		}
	}
	for {
		more := false
		err := s.db.update(func(tx *bolt.Tx) (err error) {
			more, err = from.deleteBefore(tx, end)
			return err
		})
		if err != nil || !more {
			return err
		}
	}
}

func (s *Store) thinUnits(tx *bolt.Tx, from, to tier, span int64, ids [][]byte) error {
	in, err := from.bucket(tx)
	if err != nil {
		return err
	}
	out, err := to.bucket(tx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		points := map[int][]point{}
		for at := span * to.span / from.span; at < (span+1)*to.span/from.span; at++ {
			key := blockKey(at, id)
			stored := in.Get(key)
			if stored == nil {
				continue
			}
			value, ok := sealed(key, stored)
			if !ok || readBlock(value, collect(points)) != nil {
				s.drop("damaged", 1)
			}
		}
		if len(points) == 0 {
			continue
		}
		for i, list := range points {
			points[i] = thinOut(list, to.step)
		}
		if err := put(out, blockKey(span, id), appendBlock(nil, inOrder(points), true)); err != nil {
			return err
		}
	}
	return nil
}

// deleteBefore deletes the blocks of spans before one. more: not all yet.
func (t tier) deleteBefore(tx *bolt.Tx, span int64) (more bool, err error) {
	b, err := t.bucket(tx)
	if err != nil {
		return false, err
	}
	var keys [][]byte
	c := b.Cursor()
	for k, _ := c.First(); k != nil && spanOf(k) < span; k, _ = c.Next() {
		if len(keys) == deleteAtOnce {
			more = true
			break
		}
		keys = append(keys, slices.Clone(k))
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return false, err
		}
	}
	if k, _ := b.Cursor().First(); len(keys) > 0 && bytes.Equal(k, keys[0]) {
		return false, fmt.Errorf("%w: keys of %s are not in order", errDamaged, t.name) // it is not found where it is
	}
	return more, nil
}

// age forgets what is older than MaxAge.
func (s *Store) age() error {
	s.mu.Lock()
	oldest := s.clock.now() - int64(s.options.MaxAge/time.Second)
	for len(s.order) > 0 && s.order[0].stored < oldest {
		s.removeOpening(s.order[0])
	}
	for len(s.refusals) > 0 && s.refusals[0].stored < oldest {
		s.removeRefusal(s.refusals[0])
	}
	for len(s.changes) > 0 && s.changes[0].stored < oldest {
		s.removeChange(s.changes[0])
	}
	s.ageUnits(oldest)
	s.ageInstances(oldest)
	if len(s.dirty) > 0 {
		s.poke()
	}
	s.mu.Unlock()
	for _, t := range spans() {
		for {
			more := false
			first, err := s.firstSpan(t)
			if err != nil {
				return err
			}
			if first < 0 || (first+1)*t.span > oldest {
				break
			}
			err = s.db.update(func(tx *bolt.Tx) (err error) {
				more, err = t.deleteBefore(tx, oldest/t.span)
				return err
			})
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
	}
	return nil
}

// makeRoom makes room for so many bytes of profiles. It deletes, until there is room:
// databases that were set aside; the oldest readings, if readings take more than a
// quarter of MaxBytes; openings with their profiles, old baselines first, then the
// oldest; the oldest records.
func (s *Store) makeRoom(bytes int64) error {
	limit := s.options.MaxBytes
	if s.bytes.Load()+s.profileBytes()+bytes <= limit {
		return nil
	}
	s.room.Lock()
	defer s.room.Unlock()
	total := func() int64 { return s.measure() + s.profileBytes() + bytes }
	if total() <= limit {
		return nil
	}
	for _, f := range s.db.aside() {
		if os.Remove(f) == nil {
			s.log.Warn("console's damaged database deleted, there was no room for it", zap.String("path", f))
		}
	}
	if total() <= limit {
		return nil
	}
	readings, err := s.tierBytes(tiers[:]...)
	if err != nil {
		return err
	}
	if readings > limit/4 {
		if err := s.dropReadings(readings - limit/5); err != nil {
			return err
		}
	}
	if err := s.compact(); err != nil {
		return err
	}
	for total() > limit && s.profileBytes() > 0 {
		s.mu.Lock()
		s.evictOpenings(max(1, len(s.order)/evictAtOnce))
		removed := s.removed
		s.removed = nil
		s.mu.Unlock()
		if len(removed) == 0 {
			break
		}
		s.removeProfiles(removed)
	}
	if total() > limit {
		if err := s.forget(limit*9/10 - s.profileBytes()); err != nil {
			return err
		}
		return s.compact()
	}
	return nil
}

// forget removes the oldest openings and refusals, and the units that are gone,
// until the database has no more than so many bytes.
func (s *Store) forget(limit int64) error {
	for {
		if err := s.write(false); err != nil {
			return err
		}
		used, err := s.db.used()
		if err != nil || used <= limit {
			return err
		}
		s.mu.Lock()
		nothing := len(s.order) == 0 && len(s.refusals) == 0
		if n := len(s.order); n > 0 {
			s.evictOpenings((n + 9) / 10)
		}
		n := (len(s.refusals) + 9) / 10
		for range n {
			s.removeRefusal(s.refusals[0])
		}
		s.drop("refusals", n)
		now := s.clock.now()
		for _, u := range s.units {
			if now-u.seen > lively && len(u.openings) == 0 && len(u.refusals) == 0 {
				s.removeUnit(u)
				s.drop("units", 1)
			}
		}
		s.mu.Unlock()
		if nothing {
			return s.write(false)
		}
	}
}

// tierBytes returns the bytes of the pages of buckets.
func (s *Store) tierBytes(of ...tier) (n int64, err error) {
	err = s.db.view(func(tx *bolt.Tx) error {
		for _, t := range of {
			b, err := t.bucket(tx)
			if err != nil {
				return err
			}
			st := b.Stats()
			n += int64(st.BranchAlloc + st.LeafAlloc)
		}
		return nil
	})
	return n, err
}

// dropReadings deletes the oldest readings, so that about so many bytes become free.
func (s *Store) dropReadings(bytes int64) error {
	for i := len(tiers) - 1; i >= 0 && bytes > 0; i-- {
		t := tiers[i]
		for bytes > 0 {
			first, err := s.firstSpan(t)
			if err != nil {
				return err
			}
			if first < 0 {
				break
			}
			before, err := s.db.used()
			if err != nil {
				return err
			}
			for more := true; more; {
				err := s.db.update(func(tx *bolt.Tx) (err error) {
					more, err = t.deleteBefore(tx, first+1)
					return err
				})
				if err != nil {
					return err
				}
			}
			s.drop("blocks of readings", 1)
			after, err := s.db.used()
			if err != nil {
				return err
			}
			bytes -= max(before-after, 1)
		}
	}
	return nil
}

// compact makes the database's file smaller, if much of it is free.
func (s *Store) compact() error {
	now := s.clock.now()
	used, err := s.db.used()
	if err != nil {
		return err
	}
	size := s.db.size()
	full := size+s.profileBytes() > s.options.MaxBytes
	if full && size < used*21/20 || !full && (size < used*5/4 || s.compacted != 0 && now-s.compacted < compactEvery) {
		return nil
	}
	s.compacted = now
	return s.db.compact()
}

// measure notes what the database takes on disk, and how old the oldest record is.
func (s *Store) measure() int64 {
	n := s.db.size()
	for _, f := range s.db.aside() {
		if st, err := os.Stat(f); err == nil {
			n += bytesOnDisk(st)
		}
	}
	s.bytes.Store(n)
	oldest := s.clock.now()
	for _, t := range tiers {
		if span, err := s.firstSpan(t); err == nil && span >= 0 {
			oldest = min(oldest, span*t.span)
		}
	}
	s.mu.RLock()
	if len(s.order) > 0 {
		oldest = min(oldest, s.order[0].stored)
	}
	if len(s.refusals) > 0 {
		oldest = min(oldest, s.refusals[0].stored)
	}
	s.mu.RUnlock()
	s.oldest.Store(oldest)
	return n
}
