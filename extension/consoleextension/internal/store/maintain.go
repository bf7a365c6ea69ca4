// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/series"
)

// maintain thins readings, deletes data that is too old, and makes room.
func (s *Store) maintain() {
	err := s.tidy()
	if err == nil {
		err = s.makeRoom()
	}
	s.measure()
	if err != nil {
		s.log.Error("console cannot thin or delete what it keeps", zap.Error(err))
	}
}

// tidy thins readings, and deletes data that is too old or beyond a limit.
func (s *Store) tidy() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return errors.Join(s.thin(), s.age(), s.dropBlocks(blocksOfPeers, s.options.MaxBytes/20, peerTier, peerTier), s.db.shrink(false))
}

// thin merges the readings of old time spans into blocks of the next tier.
func (s *Store) thin() error {
	now := s.now()
	for i := range peerTier - 1 {
		for {
			first, err := s.db.number("SELECT coalesce(min(at), ?) FROM blocks WHERE tier = ?", now, i)
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
	thinned := 0
	for _, digit := range "0123456789abcdef" {
		err := s.db.update(func(tx *sql.Tx) error {
			of := map[string]map[int][]series.Point{}
			rows, err := tx.Query("DELETE FROM blocks WHERE tier = ? AND at >= ? AND at < ? AND unit >= ? AND unit < ? RETURNING unit, data",
				tier, start, start+tiers[tier+1].span, string(digit), string(digit)+"~")
			var unit string
			var data []byte
			if err := eachRow(rows, err, []any{&unit, &data}, func() {
				thinned++
				points := of[unit]
				if points == nil {
					points = map[int][]series.Point{}
					of[unit] = points
				}
				if readBlock(data, func(condition int, p series.Point) { points[condition] = append(points[condition], p) }) != nil {
					s.drop("damaged", 1)
				}
			}); err != nil {
				return err
			}
			insert, err := tx.Prepare(insertBlock)
			for unit, points := range of {
				for i, list := range points {
					points[i] = series.Thin(list, tiers[tier+1].step)
				}
				if err == nil {
					_, err = insert.Exec(tier+1, start, unit, packer.EncodeAll(series.Pack(points), nil))
				}
			}
			if thinned == 0 && digit == 'f' {
				err = fmt.Errorf("%w: blocks are not where the index has them", errDamaged)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// age deletes data that is older than MaxAge.
func (s *Store) age() error {
	s.mu.Lock()
	oldest := s.now() - int64(s.options.MaxAge/time.Second)
	for len(s.order) > 0 && s.order[0].stored < oldest {
		s.removeOpening(s.order[0])
	}
	s.ageUnits(oldest)
	for _, i := range s.instances {
		if i.seen < oldest {
			s.removeInstance(i)
		}
	}
	if len(s.queued) > 0 {
		s.poke()
	}
	s.mu.Unlock()
	err := s.db.update(func(tx *sql.Tx) error {
		for i, t := range tiers {
			if _, err := tx.Exec("DELETE FROM blocks WHERE tier = ? AND at <= ?", i, oldest-t.span); err != nil {
				return err
			}
		}
		for _, t := range eventTables {
			if _, err := tx.Exec("DELETE FROM "+t.name+" WHERE stored < ?", oldest); err != nil {
				return err
			}
		}
		return nil
	})
	return cmp.Or(err, s.countRefusals())
}

// makeRoom deletes data until the store is within MaxBytes. First, it deletes databases
// that were set aside. Second, it deletes the oldest readings if all readings together
// take more than a quarter of MaxBytes. Third, it deletes the profiles of the oldest
// openings. Last, it deletes old baselines, the oldest openings and the oldest events.
func (s *Store) makeRoom() error {
	limit := s.options.MaxBytes
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.full() {
		return nil
	}
	for _, f := range s.db.aside() {
		if os.Remove(f) == nil {
			s.log.Warn("console's damaged database deleted, there was no room for it", zap.String("path", f))
		}
	}
	if err := errors.Join(s.dropBlocks(blocksOfReadings, limit/4, 0, peerTier-1), s.db.shrink(true)); err != nil {
		return err
	}
	removed := 0
	for s.full() && s.profiles.RemoveOldest("") {
		removed++
	}
	if removed > 0 {
		s.log.Info("console's oldest profiles removed to make room", zap.Int("openings", removed))
	}
	for tries := 0; s.total() > limit && tries < 10; tries++ {
		s.forget()
		if err := errors.Join(s.db.update(s.forgetEvents), s.writeLocked(false), s.db.shrink(true)); err != nil {
			return err
		}
	}
	return nil
}

// forget removes a tenth of the openings, and all units that are gone.
func (s *Store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evictOpenings((len(s.order) + 9) / 10)
	now := s.now()
	for _, u := range s.units {
		if now-u.seen > lively && len(u.openings) == 0 && len(u.refused) == 0 {
			s.removeUnit(u)
			s.drop("units", 1)
		}
	}
}

// dropBlocks deletes blocks of the tiers from first to last if all blocks of these tiers
// together take more than limit bytes. It begins with the oldest blocks of the last tier,
// until the remaining blocks take at most nine tenths of limit.
func (s *Store) dropBlocks(what string, limit int64, first, last int) error {
	return s.db.update(func(tx *sql.Tx) error {
		_, err := s.deleteRows(tx, what, `DELETE FROM blocks WHERE (tier, at) IN (
	SELECT tier, at FROM (
		SELECT tier, at, sum(bytes) OVER () AS total, sum(bytes) OVER (ORDER BY tier, at DESC) AS newest FROM (
			SELECT tier, at, sum(length(data) + 64) AS bytes FROM blocks WHERE tier BETWEEN ?1 AND ?2 GROUP BY tier, at)
	) WHERE total > ?3 AND newest > ?3 * 9 / 10)`, first, last, limit)
		return err
	})
}

// deleteRows executes a query that deletes rows. It counts the rows in Usage.Dropped.
func (s *Store) deleteRows(tx *sql.Tx, dropped, query string, args ...any) (n int64, err error) {
	done, err := tx.Exec(query, args...)
	if err == nil {
		n, err = done.RowsAffected()
		s.drop(dropped, n)
	}
	return n, err
}

// full reports whether the store takes more disk space, or has more profiles, than it may.
func (s *Store) full() bool { return s.total() > s.options.MaxBytes || s.profiles.TooMany() }

// profilesWritten makes room if the files of profiles have filled the store.
func (s *Store) profilesWritten() {
	if s.full() {
		s.poke()
	}
}

// total measures the disk space of the database. It returns the disk space
// of the whole store, in bytes.
func (s *Store) total() int64 {
	n := s.db.size()
	s.bytes.Store(n)
	return n + s.profiles.Size()
}

// measure updates the recorded size of the database, and the time of the oldest record.
func (s *Store) measure() {
	s.total()
	oldest := s.now()
	if at, err := s.db.number(`SELECT coalesce(min(at), ?) FROM (
	SELECT min(at) AS at FROM blocks WHERE tier = 0 UNION ALL SELECT min(at) FROM blocks WHERE tier = 1
	UNION ALL SELECT min(at) FROM blocks WHERE tier = 2
	UNION ALL SELECT stored FROM refusals WHERE id = (SELECT min(id) FROM refusals))`, oldest); err == nil {
		oldest = min(oldest, at)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.order) > 0 {
		oldest = min(oldest, s.order[0].stored)
	}
	s.oldest.Store(oldest)
}
