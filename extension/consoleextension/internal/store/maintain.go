// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
)

// maintain thins readings, deletes data that is too old, and makes room.
func (s *Store) maintain() {
	s.room.Lock()
	err := s.thin()
	if err == nil {
		err = s.age()
	}
	if err == nil {
		err = s.dropBlocks(blocksOfPeers, s.options.MaxBytes/20, peerTier, peerTier)
	}
	if err == nil {
		err = s.db.shrink(false)
	}
	s.room.Unlock()
	s.total()
	if err == nil {
		err = s.makeRoom()
	}
	s.measure()
	if err != nil {
		s.found(err)
		s.log.Error("console cannot thin or delete what it keeps", zap.Error(err))
	}
}

// found marks the database as damaged if err is errDamaged. The writer
// then sets the database aside.
func (s *Store) found(err error) {
	if errors.Is(err, errDamaged) {
		s.damaged.Store(true)
		s.poke()
	}
}

// thin merges the readings of old time spans into blocks of the next tier.
func (s *Store) thin() error {
	now := s.clock.now()
	for i := range peerTier - 1 {
		for {
			first, err := s.db.number(now, "SELECT min(at) FROM blocks WHERE tier = ?", i)
			if err != nil {
				return err
			}
			start := first - first%tiers[i+1].span
			if now < start+tiers[i+1].span+tiers[i].keep {
				break
			}
			if err := s.thinSpan(i, start); err != nil {
				return err
			}
		}
	}
	return nil
}

// thinSpan merges the blocks of a time span. Each unit gets one block of the next tier. One
// transaction covers all units whose IDs begin with the same digit.
func (s *Store) thinSpan(tier int, start int64) error {
	var at int64
	var times []int64
	if err := s.db.each(context.Background(), []any{&at}, func() { times = append(times, at) },
		"SELECT DISTINCT at FROM blocks WHERE tier = ? AND at >= ? AND at < ?", tier, start, start+tiers[tier+1].span); err != nil {
		return err
	}
	thinned := 0
	for _, digit := range "0123456789abcdef" {
		err := s.db.update(func(tx *sql.Tx) error {
			of := map[string]map[int][]point{}
			for _, at := range times {
				rows, err := tx.Query("DELETE FROM blocks WHERE tier = ? AND at = ? AND unit >= ? AND unit < ? RETURNING unit, data", tier, at, string(digit), string(digit)+"~")
				var unit string
				var data []byte
				if err := eachRow(rows, err, []any{&unit, &data}, func() {
					if of[unit] == nil {
						of[unit] = map[int][]point{}
					}
					if readBlock(data, collect(of[unit])) != nil {
						s.drop("damaged", 1)
					}
					thinned++
				}); err != nil {
					return err
				}
			}
			var blocks []block
			for unit, points := range of {
				for i, list := range points {
					points[i] = thinOut(list, tiers[tier+1].step)
				}
				blocks = append(blocks, block{tier + 1, start, UnitID(unit), appendBlock(nil, inOrder(points))})
			}
			return putBlocks(tx, blocks)
		})
		if err != nil {
			return err
		}
	}
	if thinned == 0 {
		return fmt.Errorf("%w: blocks are not where the index has them", errDamaged)
	}
	return nil
}

// age deletes data that is older than MaxAge.
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
	return s.db.update(func(tx *sql.Tx) error {
		for i, t := range tiers {
			if _, err := tx.Exec("DELETE FROM blocks WHERE tier = ? AND at <= ?", i, oldest-t.span); err != nil {
				return err
			}
		}
		return nil
	})
}

// makeRoom deletes data until the store is within MaxBytes. First, it deletes databases
// that were set aside. Second, it deletes the oldest readings if all readings together
// take more than a quarter of MaxBytes. Third, it deletes old baselines and then the
// oldest openings, together with their profiles. Last, it deletes the oldest records.
func (s *Store) makeRoom() error {
	limit := s.options.MaxBytes
	if s.bytes.Load()+s.profileBytes() <= limit {
		return nil
	}
	s.room.Lock()
	defer s.room.Unlock()
	if s.total() <= limit {
		return nil
	}
	for _, f := range s.db.aside() {
		if os.Remove(f) == nil {
			s.log.Warn("console's damaged database deleted, there was no room for it", zap.String("path", f))
		}
	}
	if err := s.dropBlocks(blocksOfReadings, limit/4, 0, peerTier-1); err != nil {
		return err
	}
	if err := s.db.shrink(true); err != nil {
		return err
	}
	for s.total() > limit && s.profileBytes() > 0 {
		s.mu.Lock()
		s.evictOpenings(max(1, len(s.order)/evictAtOnce))
		removed := s.removed
		s.removed = nil
		s.mu.Unlock()
		if len(removed) == 0 {
			break
		}
		s.profiles.remove(removed)
	}
	for s.total() > limit && s.forget() {
		if err := s.write(false); err != nil {
			return err
		}
		if err := s.db.shrink(true); err != nil {
			return err
		}
	}
	return nil
}

// forget removes a tenth of the openings, the oldest tenth of the refusals, and all units
// that are gone. It returns false if it removed no records.
func (s *Store) forget() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.dirty)
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
	return len(s.dirty) > before
}

// dropBlocks deletes blocks of the tiers from first to last if all blocks of these tiers
// together take more than limit bytes. It begins with the oldest blocks of the last tier,
// and stops when the remaining blocks take at most nine tenths of limit.
func (s *Store) dropBlocks(what string, limit int64, first, last int) error {
	type part struct{ tier, at, bytes int64 }
	var p part
	var parts []part
	total := int64(0)
	err := s.db.each(context.Background(), []any{&p.tier, &p.at, &p.bytes}, func() {
		parts, total = append(parts, p), total+p.bytes
	}, "SELECT tier, at, sum(length(data) + 64) FROM blocks WHERE tier BETWEEN ? AND ? GROUP BY tier, at ORDER BY tier DESC, at", first, last)
	if err != nil || total <= limit {
		return err
	}
	return s.db.update(func(tx *sql.Tx) error {
		for _, p := range parts {
			if total <= limit*9/10 {
				break
			}
			if _, err := tx.Exec("DELETE FROM blocks WHERE tier = ? AND at = ?", p.tier, p.at); err != nil {
				return err
			}
			total -= p.bytes
			s.drop(what, 1)
		}
		return nil
	})
}

// total measures the disk space of the database. It returns the disk space
// of the whole store, in bytes.
func (s *Store) total() int64 {
	n := s.db.size()
	s.bytes.Store(n)
	return n + s.profileBytes()
}

// measure updates the recorded size of the database, and the time of the oldest record.
func (s *Store) measure() {
	s.total()
	oldest := s.clock.now()
	for i := range tiers[:peerTier] {
		if at, err := s.db.number(oldest, "SELECT min(at) FROM blocks WHERE tier = ?", i); err == nil {
			oldest = min(oldest, at)
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.order) > 0 {
		oldest = min(oldest, s.order[0].stored)
	}
	if len(s.refusals) > 0 {
		oldest = min(oldest, s.refusals[0].stored)
	}
	s.oldest.Store(oldest)
}
