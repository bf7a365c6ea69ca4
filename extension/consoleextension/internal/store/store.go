// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/profilefiles"
	"github.com/hotprofile/hotprofile/internal/token"
)

// These are the defaults of Options.
const (
	DefaultMaxAge   = 48 * time.Hour
	DefaultMaxBytes = 300 << 20
)

const (
	// flushEvery is the time between two writes of readings. A crash loses the readings
	// since the last write.
	flushEvery = time.Minute
	// maxSetAside is the maximum number of databases that are set aside while the store is
	// open. Once this number is reached, the store keeps new data in memory, within the limits.
	maxSetAside = 3
)

var errRecord = errors.New("record without its unit or its key")

// Options configure a store.
type Options struct {
	// Directory is created if it does not exist. Only one store at a time can use it.
	Directory string
	// MaxAge is the time for which data is kept. The default is DefaultMaxAge.
	MaxAge time.Duration
	// MaxBytes is the maximum disk space of the directory, in bytes. The
	// default is DefaultMaxBytes.
	MaxBytes int64
	// Now returns the wall-clock time that users see. The default is time.Now. Ages in
	// the store do not depend on Now.
	Now func() time.Time
	// Uptime returns the time of a monotonic clock. The default is the time since Open.
	Uptime func() time.Duration
	Logger *zap.Logger // nil means no logging

	noSync bool // in tests: writes do not wait for the disk
}

// Store keeps the data that the console shows. Store implements Reader. All
// methods may be called concurrently.
//
// Units, openings and collectors are in memory, within the limits of bounds.go, and in the
// database. Only Open loads them from the database. Events, which are refusals, policy
// changes and logs, are read from the database. Data from a Put method is visible at once,
// except events, which are visible when they are on disk. Data is on disk when a later call
// of Commit returns. Readings are written to the disk within flushEvery. If the disk is full
// or broken, the store keeps its data in memory and tries again with each write.
type Store struct {
	options Options
	log     *zap.Logger
	lock    *sql.DB
	db      *database
	drops   drops

	profiles *profilefiles.Files
	noGate   sync.Once

	start int64 // value of the clock when Uptime was 0

	// mu guards the fields below. It is held briefly, and never while waiting for the disk.
	mu          sync.RWMutex
	units       map[UnitID]*unit
	openings    map[string]*opening
	order       []*opening // all openings, in order of arrival
	instances   map[string]*instance
	series      int           // number of conditions of all units
	heads       int           // number of readings that are not yet in a block
	resources   int           // bytes of the resources of all units
	metrics     int           // number of metrics of all instances
	peers       int           // number of peers of all units
	noRoomUntil int64         // no unit can be removed until then, by the clock
	queued      []statement   // statements that wait for the next write, oldest first
	queuedBytes int           // bytes of these statements
	dirty       map[item]bool // items whose records the next write saves
	awaited     bool          // Commit waits for the next write
	waiting     chan struct{} // closed when the next write ends
	inFlight    chan struct{} // closed when the last write ends; nil before the first

	pokes  chan struct{}
	stop   chan struct{}
	done   chan struct{} // closed when the writer ends; nil if it does not run
	bytes  atomic.Int64  // size of the database and the files that were set aside
	oldest atomic.Int64  // time of the oldest data, by the clock

	writing       sync.Mutex // held while the database is changed; guards the fields below
	setAsides     int
	failing       bool
	blocksWritten int64 // time of the last blocks, by the clock
}

// These are the kinds of records, in the order in which they are loaded.
const (
	kindLife     = "life" // of the store; there is one record
	kindUnit     = "unit"
	kindOpening  = "opening"
	kindInstance = "instance"
)

// item is a unit, an opening or a collector in memory.
type item interface {
	// record returns the columns of the record that describes the item.
	record() []any
}

// saveRecord writes a record: its kind, its key, the unit that it belongs to, if any, the
// time when it was stored, by the store's clock, and its data.
const saveRecord = "INSERT OR REPLACE INTO records (kind, key, unit, stored, data) VALUES (?, ?, ?, ?, ?)"

// statement changes the database. If it is dropped because the disk is full, it is counted
// in Usage.Dropped as dropped, unless dropped is empty.
type statement struct {
	dropped, query string
	args           []any
	bytes          int
}

// Open opens the store of a directory. A damaged file is set aside and logged, and
// the store starts empty. Open fails if the directory cannot be used, or if
// another store uses the directory.
func Open(o Options) (*Store, error) {
	o.MaxAge = cmp.Or(o.MaxAge, DefaultMaxAge)
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Uptime == nil {
		start := time.Now()
		o.Uptime = func() time.Duration { return time.Since(start) }
	}
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	s := &Store{
		options: o, log: o.Logger,
		pokes: make(chan struct{}, 1), stop: make(chan struct{}),
		waiting: make(chan struct{}), drops: drops{all: map[string]int64{}, fresh: map[string]int64{}},
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.done = make(chan struct{})
	go s.run()
	return s, nil
}

func (s *Store) open() error {
	dir := s.options.Directory
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the console's directory: %w; set directory to one that the collector may write", err)
	}
	var err error
	if s.lock, err = lockDirectory(dir); err != nil {
		return err
	}
	if s.db, err = openDatabase(filepath.Join(dir, "console.db"), s.options, s.poke); err != nil {
		return err
	}
	err = s.load()
	if errors.Is(err, errDamaged) {
		if err = s.db.replace(err); err == nil {
			err = s.load()
		}
	}
	if err != nil {
		return err
	}
	if s.profiles, err = profilefiles.Open(profilefiles.Options{
		Directory: filepath.Join(dir, "profiles"), MaxBytes: s.options.MaxBytes, Logger: s.log, Uptime: s.options.Uptime,
		Keep: s.keepProfiles, Dropped: s.drop, Written: s.profilesWritten,
	}); err != nil {
		return err
	}
	if err := s.db.shrink(false); err != nil { // on a full disk, for instance
		s.log.Warn("console's database not compacted", zap.Error(err))
	}
	s.measure()
	return nil
}

// load reads the records. It counts and deletes records that cannot be used.
func (s *Store) load() error {
	s.units, s.openings, s.instances = map[UnitID]*unit{}, map[string]*opening{}, map[string]*instance{}
	s.dirty, s.order, s.queued, s.queuedBytes, s.blocksWritten = map[item]bool{}, nil, nil, 0, 0
	s.series, s.resources, s.metrics, s.peers = 0, 0, 0, 0
	var was life
	newest, bad := int64(0), int64(0)
	for _, kind := range []struct {
		name string
		load func(key string, unit UnitID, stored int64, data []byte) error
	}{
		{kindLife, func(_ string, _ UnitID, _ int64, data []byte) error { return json.Unmarshal(data, &was) }},
		{kindUnit, s.loadUnit},
		{kindOpening, s.loadOpening},
		{kindInstance, s.loadInstance},
	} {
		var key string
		var unit UnitID
		var stored int64
		var data []byte
		err := s.db.each(context.Background(), []any{&key, &unit, &stored, &data}, func() {
			if kind.load(key, unit, stored, data) == nil {
				newest = max(newest, stored)
			} else {
				s.erase(kind.name, key)
				bad++
			}
		}, "SELECT key, unit, stored, data FROM records WHERE kind = ? ORDER BY stored, key", kind.name)
		if err != nil {
			return err
		}
	}
	s.drop("damaged", bad)
	if err := cmp.Or(s.loadNewest(), s.countRefusals()); err != nil {
		return err
	}
	s.setClock(newest, was)
	return nil
}

// run writes at each interval and after each poke, until Close is called.
func (s *Store) run() {
	defer close(s.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.pokes:
			if s.write(s.db.damaged.Load()) == nil { // write logs its errors
				_ = s.makeRoom() // flush tries again and logs its errors
			}
		case <-tick.C:
			s.flush()
		case <-s.stop:
			return
		}
	}
}

// poke makes the writer write without waiting for the next interval.
func (s *Store) poke() { token.Put(s.pokes) }

// Commit waits until all data from earlier Put calls is written, except readings and
// metrics. If the write fails, the failure is logged, and the data stays in memory for
// the next write. Commit returns an error only if the context ends.
func (s *Store) Commit(ctx context.Context) error {
	s.mu.RLock()
	written := s.inFlight
	if s.awaited {
		written = s.waiting
		s.poke()
	}
	s.mu.RUnlock()
	if written == nil {
		return nil
	}
	select {
	case <-written:
		return nil
	case <-s.stop:
		return nil // Close writes the data
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close writes the data that is not yet on disk, and closes the store. Writing profiles
// may take at most 10 seconds. There is no time limit for other writes.
func (s *Store) Close() error {
	select {
	case <-s.stop:
		return nil
	default:
	}
	if s.done != nil {
		s.profiles.Close()
	}
	close(s.stop)
	var err error
	if s.done != nil {
		<-s.done
		s.mu.Lock()
		for _, i := range s.instances {
			s.touch(i)
		}
		s.mu.Unlock()
		s.failing = false
		err = s.write(true)
		s.logDrops()
	}
	if s.db != nil {
		err = errors.Join(err, s.db.close())
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// flush writes readings and records. Then it thins readings, and
// deletes data beyond the limits.
func (s *Store) flush() {
	if s.write(true) == nil {
		s.maintain()
	}
	s.logDrops()
}

// queue adds a statement to the next write. If too many statements wait because the disk is
// full, it drops the oldest.
func (s *Store) queue(dropped, query string, args ...any) {
	of := statement{dropped: dropped, query: query, args: args, bytes: len(query)}
	for _, a := range args {
		switch a := a.(type) {
		case string:
			of.bytes += len(a)
		case []byte:
			of.bytes += len(a)
		}
	}
	s.queued = append(s.queued, of)
	s.queuedBytes += of.bytes
	for s.queuedBytes > maxQueued {
		oldest := s.queued[0]
		s.queued, s.queuedBytes = s.queued[1:], s.queuedBytes-oldest.bytes
		if oldest.dropped != "" {
			s.drop(oldest.dropped, 1)
		}
	}
}

// touch makes the next write save the record of an item.
func (s *Store) touch(of item) { s.dirty[of] = true }

// erase deletes a record with the next write. If the disk is full for so long that the
// deletion is dropped, the record exists again after a restart, until it is too old.
func (s *Store) erase(kind, key string) {
	s.queue("", "DELETE FROM records WHERE kind = ? AND key = ?", kind, key)
}

func encoded(record any) string {
	data, _ := json.Marshal(record) // cannot fail for texts, times and numbers
	return string(data)
}

// write writes the records that changed, and the store's clock. If readings is true, write
// also writes the readings and the peers.
func (s *Store) write(readings bool) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.writeLocked(readings)
}

func (s *Store) writeLocked(readings bool) error {
	if s.db.damaged.Load() {
		s.startAnew(fmt.Errorf("%w: found when it was read", errDamaged))
	}
	err := s.writeOnce(readings)
	if errors.Is(err, errDamaged) && s.startAnew(err) {
		err = s.writeOnce(true)
	}
	switch {
	case err != nil && !s.failing:
		s.log.Error("console cannot write its database; what is new is kept in memory, within bounds", zap.String("path", s.db.path), zap.Error(err))
		s.failing = true
	case err == nil && s.failing:
		s.log.Info("console writes its database again", zap.String("path", s.db.path))
		s.failing = false
	}
	return err
}

func (s *Store) writeOnce(readings bool) error {
	s.mu.Lock()
	if readings && !s.failing { // else new readings stay where the pages read them
		s.blocksWritten = max(s.now(), s.blocksWritten+1)
		s.encodeHeads(s.blocksWritten)
		s.encodePeers(s.blocksWritten)
	}
	queued, dirty, written := s.queued, s.dirty, s.waiting
	s.queued, s.queuedBytes, s.dirty, s.awaited = nil, 0, map[item]bool{}, false
	s.inFlight, s.waiting = written, make(chan struct{})
	s.mu.Unlock()
	defer close(written)

	err := s.db.update(func(tx *sql.Tx) error {
		prepared := map[string]*sql.Stmt{}
		exec := func(query string, args ...any) (err error) {
			if prepared[query] == nil {
				prepared[query], err = tx.Prepare(query)
			}
			if err == nil {
				_, err = prepared[query].Exec(args...)
			}
			return err
		}
		for _, of := range queued {
			if err := exec(of.query, of.args...); err != nil {
				return err
			}
		}
		for of := range dirty {
			s.mu.RLock()
			record := of.record()
			s.mu.RUnlock()
			if err := exec(saveRecord, record...); err != nil {
				return err
			}
		}
		written := life{s.options.Now().Unix()}
		return cmp.Or(exec(saveRecord, kindLife, "", "", max(s.now(), s.blocksWritten), encoded(written)), s.boundEvents(tx))
	})
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		later := s.queued
		s.queued, s.queuedBytes, s.awaited = nil, 0, true
		for _, of := range append(queued, later...) {
			s.queue(of.dropped, of.query, of.args...)
		}
		maps.Copy(s.dirty, dirty) // the record of an item that was removed meanwhile also exists again
	}
	return err
}

// startAnew sets the database aside, and makes the next write save all records. The events in the
// database are lost. startAnew reports whether there is a new database.
func (s *Store) startAnew(cause error) bool {
	if s.setAsides >= maxSetAside {
		return false
	}
	s.setAsides++
	if err := s.db.replace(cause); err != nil {
		s.log.Error("console has no database any more; what is new is kept in memory, within bounds", zap.Error(err))
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touchAll()
	return true
}

// touchAll makes the next write save all records.
func (s *Store) touchAll() {
	for _, u := range s.units {
		s.touch(u)
	}
	for _, o := range s.order {
		s.touch(o)
	}
	for _, i := range s.instances {
		s.touch(i)
	}
}

// Usage implements Reader.
func (s *Store) Usage() Usage {
	s.drops.mu.Lock()
	defer s.drops.mu.Unlock()
	return Usage{
		Bytes: s.bytes.Load() + s.profiles.Size(), MaxBytes: s.options.MaxBytes, MaxAge: s.options.MaxAge,
		Oldest:  s.options.Now().Add(-time.Duration(max(s.now()-s.oldest.Load(), 0)) * time.Second),
		Dropped: maps.Clone(s.drops.all),
	}
}

// drops counts the data that was dropped, by kind.
type drops struct {
	mu    sync.Mutex
	all   map[string]int64 // since the start
	fresh map[string]int64 // since the last log
}

// drop counts data that was dropped or refused.
func (s *Store) drop(what string, n int64) {
	if n <= 0 {
		return
	}
	s.drops.mu.Lock()
	defer s.drops.mu.Unlock()
	s.drops.all[what] += n
	s.drops.fresh[what] += n
}

// logDrops logs the data that was dropped since the last call.
func (s *Store) logDrops() {
	var fields []zap.Field
	s.drops.mu.Lock()
	for what, n := range s.drops.fresh {
		fields = append(fields, zap.Int64(what, n))
	}
	clear(s.drops.fresh)
	s.drops.mu.Unlock()
	if len(fields) > 0 {
		s.log.Warn("console dropped data", fields...)
	}
}
