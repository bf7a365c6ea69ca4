// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"go.uber.org/zap"
)

// The defaults of Options.
const (
	DefaultMaxAge   = 48 * time.Hour
	DefaultMaxBytes = 300 << 20
)

const (
	// flushEvery is the time between two writes of readings: a crash loses those since.
	flushEvery = time.Minute
	// maxNames bounds the names that are kept once for all records that have them.
	maxNames = 10_000
	// maxSetAside is the number of times that a database is set aside while the store is
	// open. After that the store keeps in memory what it can.
	maxSetAside = 3
)

var errRecord = errors.New("record without its unit, or too many")

// Options configure a store.
type Options struct {
	// Directory is made if it does not exist. One store at a time uses it.
	Directory string
	// MaxAge is the time that anything is kept; 0: DefaultMaxAge.
	MaxAge time.Duration
	// MaxBytes bounds the directory on disk; 0: DefaultMaxBytes.
	MaxBytes int64
	// Now is the clock that people read; nil: time.Now. Ages in the store do not
	// depend on it.
	Now func() time.Time
	// Uptime is a clock that never jumps; nil: the time since Open.
	Uptime func() time.Duration
	Logger *zap.Logger // nil: none

	noSync bool // for tests: do not wait for the disk
}

// Store keeps what the console shows. It implements Reader. All methods may be called
// at the same time.
//
// Everything but readings and profiles is in memory, within the bounds of bounds.go, and
// in the database, which is read once, by Open. What the Put methods add is shown at
// once, and is on disk when a Commit that begins later returns; readings within
// flushEvery. If the disk is full, or broken, the store goes on with what is in memory
// and tries again with each write.
type Store struct {
	options Options
	log     *zap.Logger
	lock    *lock
	db      *database
	drops   drops

	profiles *profileFiles

	// Guarded by mu, which is held for moments: never while the disk is waited for.
	mu          sync.RWMutex
	clock       clock
	units       map[UnitID]*unit
	openings    map[string]*opening
	order       []*opening // all openings, in the order in which they arrived
	refusals    []*refusal // likewise
	changes     []*change  // likewise
	instances   map[string]*instance
	names       map[string]string
	series      int    // conditions of all units
	heads       int    // readings that are not on disk
	resources   int    // bytes of the resources of all units
	metrics     int    // of all instances
	peers       int    // of all units
	sequence    uint64 // the last key of a refusal or a change
	noRoomUntil int64  // by the clock: all units are there until then
	dirty       map[ref]struct{}
	removed     []string      // openings whose profiles are to be deleted
	waiting     chan struct{} // closed when the next write ends

	pokes   chan struct{}
	stop    chan struct{}
	done    chan struct{} // nil: the writer does not run
	damaged atomic.Bool   // a reader found the database damaged
	bytes   atomic.Int64  // of the database and what was set aside
	oldest  atomic.Int64  // by the clock

	writing        sync.Mutex // held to write records; guards the following
	setAsides      int
	failing        bool
	metricsWritten int64

	room      sync.Mutex // held to thin, to delete and to compact
	compacted int64      // by the clock
}

// bucketID is a bucket of records.
type bucketID uint8

const (
	bucketUnits bucketID = iota
	bucketOpenings
	bucketRefusals
	bucketChanges
	bucketInstances
	bucketMetrics
)

// records are the buckets of records, in the order in which they are loaded. The name
// of a bucket has the version of what is in it.
var records = [...]struct {
	name []byte
	load func(s *Store, key, value []byte) error
}{
	bucketUnits:     {[]byte("units.1"), (*Store).loadUnit},
	bucketOpenings:  {[]byte("openings.1"), (*Store).loadOpening},
	bucketRefusals:  {[]byte("refusals.1"), (*Store).loadRefusal},
	bucketChanges:   {[]byte("changes.1"), (*Store).loadChange},
	bucketInstances: {[]byte("instances.1"), (*Store).loadInstance},
	bucketMetrics:   {[]byte("metrics.1"), (*Store).loadMetrics},
}

var (
	bucketMeta = []byte("meta.1")
	keyLife    = []byte("life")
)

// ref names a record: of a unit by its UnitID, else by its key.
type ref struct {
	bucket bucketID
	key    string
}

// Open opens the store of a directory. A file that is damaged is set aside and logged,
// and the store begins anew. It fails if the directory cannot be used, or if another
// store uses it.
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
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	s := &Store{
		options: o, log: o.Logger,
		pokes: make(chan struct{}, 1), stop: make(chan struct{}),
		waiting: make(chan struct{}), dirty: map[ref]struct{}{},
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
	if s.db, err = openDatabase(filepath.Join(dir, "console.db"), s.options); err != nil {
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
	if err := s.openProfiles(); err != nil {
		return err
	}
	if err := s.makeSmall(); err != nil { // on a full disk, for instance
		s.found(err)
		s.log.Warn("console's database not compacted", zap.Error(err))
	}
	return nil
}

// load reads the records, and makes the buckets.
func (s *Store) load() error {
	s.units, s.openings, s.instances = map[UnitID]*unit{}, map[string]*opening{}, map[string]*instance{}
	s.names = map[string]string{}
	s.order, s.refusals, s.changes = nil, nil, nil
	s.series, s.resources, s.metrics, s.peers, s.sequence = 0, 0, 0, 0, 0
	bad := 0
	var was life
	read := func(tx *bolt.Tx) error {
		if meta := tx.Bucket(bucketMeta); meta != nil {
			if v, ok := sealed(keyLife, meta.Get(keyLife)); ok {
				_ = json.Unmarshal(v, &was)
			}
		}
		for id, r := range records {
			b := tx.Bucket(r.name)
			if b == nil {
				continue
			}
			if err := b.ForEach(func(k, v []byte) error {
				if value, ok := sealed(k, v); !ok || r.load(s, k, value) != nil {
					s.useless(bucketID(id), k)
					bad++
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	}
	// Only a new database is written: a store on a full disk opens.
	if err := s.db.view(hasBuckets); err != nil {
		if err := s.db.update(createBuckets); err != nil {
			return err
		}
	}
	if err := s.db.view(read); err != nil {
		return err
	}
	s.drop("damaged", bad)
	s.link()
	if err := s.loadNewest(); err != nil {
		return err
	}
	was.Seconds = max(was.Seconds, s.newest())
	s.clock = newClock(was, s.options.Now(), s.options.MaxAge, s.options.Uptime)
	return nil
}

// useless marks a record that cannot be used, to be deleted.
func (s *Store) useless(b bucketID, key []byte) {
	if b == bucketUnits {
		s.touch(b, hex.EncodeToString(key))
	} else {
		s.touch(b, string(key))
	}
}

// createBuckets makes the buckets that there are not.
func createBuckets(tx *bolt.Tx) error {
	for _, name := range buckets() {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return nil
}

func hasBuckets(tx *bolt.Tx) error {
	for _, name := range buckets() {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%w: no bucket %s", errDamaged, name)
		}
	}
	return nil
}

// buckets returns the names of all buckets.
func buckets() [][]byte {
	all := [][]byte{bucketMeta}
	for _, r := range records {
		all = append(all, r.name)
	}
	for _, t := range spans() {
		all = append(all, t.name)
	}
	return all
}

// run writes at each interval and when it is poked, until Close.
func (s *Store) run() {
	defer close(s.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.pokes:
			_ = s.write(s.damaged.Load()) // it logs its errors
		case <-tick.C:
			s.flush()
		case <-s.stop:
			return
		}
	}
}

// poke makes the writer write soon.
func (s *Store) poke() {
	select {
	case s.pokes <- struct{}{}:
	default:
	}
}

// Commit returns when everything that was put before, but readings and metrics, is on
// disk, or could not be written; then it is in memory, the failure is logged, and the
// next write tries again. Its only error is that of the context.
func (s *Store) Commit(ctx context.Context) error {
	s.mu.RLock()
	nothing, written := len(s.dirty) == 0, s.waiting
	s.mu.RUnlock()
	if nothing {
		return nil
	}
	s.poke()
	select {
	case <-written:
		return nil
	case <-s.stop:
		return nil // Close writes it
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close writes what is not yet on disk, and closes the store. It waits for the
// disk, however long that takes.
func (s *Store) Close() error {
	select {
	case <-s.stop:
		return nil
	default:
	}
	s.closeProfiles()
	close(s.stop)
	var err error
	if s.done != nil {
		<-s.done
		s.metricsWritten = -metricsEvery
		err = s.write(true)
		s.drops.log(s.log)
	}
	if s.db != nil {
		err = errors.Join(err, s.db.close())
	}
	s.lock.unlock()
	return err
}

// flush writes readings and records, thins, and drops what is too old or too much.
func (s *Store) flush() {
	if s.write(true) == nil {
		s.maintain()
	}
	s.drops.log(s.log)
}

// touch marks a record as changed. It is written, or deleted if it is gone.
func (s *Store) touch(b bucketID, key string) {
	s.dirty[ref{b, key}] = struct{}{}
}

// touchAll marks all records as changed.
func (s *Store) touchAll() {
	for id := range s.units {
		s.touch(bucketUnits, string(id))
	}
	for id := range s.openings {
		s.touch(bucketOpenings, id)
	}
	for _, r := range s.refusals {
		s.touch(bucketRefusals, sequenceKey(r.id))
	}
	for _, c := range s.changes {
		s.touch(bucketChanges, sequenceKey(c.id))
	}
	for id := range s.instances {
		s.touch(bucketInstances, id)
		s.touch(bucketMetrics, id)
	}
}

// intern returns a name that many records have.
func (s *Store) intern(name string) string {
	if is, ok := s.names[name]; ok {
		return is
	}
	if len(s.names) >= maxNames {
		clear(s.names)
	}
	s.names[name] = name
	return name
}

// operation is a record to write, or to delete if its value is nil.
type operation struct {
	bucket []byte
	key    []byte
	value  []byte
}

// maxWritten bounds the encoded records of one transaction, in bytes.
const maxWritten = 8 << 20

// operations encodes records that changed, up to maxWritten, and removes them from dirty.
// The lock is held.
func (s *Store) operations(dirty map[ref]struct{}) (out []operation, encoded []ref) {
	refusals := map[string]*refusal{}
	changes := map[string]*change{}
	for r := range dirty {
		switch r.bucket {
		case bucketRefusals:
			refusals[r.key] = nil
		case bucketChanges:
			changes[r.key] = nil
		}
	}
	if len(refusals) > 0 {
		for _, r := range s.refusals {
			if k := sequenceKey(r.id); has(refusals, k) {
				refusals[k] = r
			}
		}
	}
	if len(changes) > 0 {
		for _, c := range s.changes {
			if k := sequenceKey(c.id); has(changes, k) {
				changes[k] = c
			}
		}
	}
	size := 0
	for r := range dirty {
		if size >= maxWritten {
			break
		}
		op := s.encode(r, refusals[r.key], changes[r.key])
		out, encoded = append(out, op), append(encoded, r)
		size += len(op.key) + len(op.value)
		delete(dirty, r)
	}
	return out, encoded
}

// encode encodes a record, which is the refusal or the change if it is one.
func (s *Store) encode(r ref, refused *refusal, changed *change) operation {
	op := operation{bucket: records[r.bucket].name, key: []byte(r.key)}
	switch r.bucket {
	case bucketUnits:
		op.key = UnitID(r.key).key()
		if u := s.units[UnitID(r.key)]; u != nil {
			op.value, u.saved = u.encode(), u.seen
		}
	case bucketOpenings:
		if o := s.openings[r.key]; o != nil {
			op.value = o.encode()
		}
	case bucketRefusals:
		if refused != nil {
			op.value = refused.encode()
		}
	case bucketChanges:
		if changed != nil {
			op.value = changed.encode()
		}
	case bucketInstances:
		if i := s.instances[r.key]; i != nil {
			op.value = i.encode()
		}
	case bucketMetrics:
		if i := s.instances[r.key]; i != nil {
			op.value = i.encodeMetrics()
		}
	}
	return op
}

func has[V any](m map[string]V, key string) bool {
	_, ok := m[key]
	return ok
}

// write writes the records that changed; with readings those too, and how old the
// store is.
func (s *Store) write(readings bool) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.damaged.Swap(false) {
		s.startAnew(fmt.Errorf("%w: found when it was read", errDamaged))
	}
	err := s.writeOnce(readings)
	if errors.Is(err, berrors.ErrDatabaseNotOpen) && s.db.reopen() == nil {
		err = s.writeOnce(readings)
	}
	if errors.Is(err, errDamaged) && s.startAnew(err) {
		err = s.writeOnce(readings)
	}
	switch {
	case err != nil && !s.failing:
		s.log.Error("console cannot write its database; what is new is kept in memory, within bounds", zap.String("path", s.db.path), zap.Error(err))
		s.failing = true
	case err == nil && s.failing && readings:
		s.log.Info("console writes its database again", zap.String("path", s.db.path))
		s.failing = false
	}
	return err
}

func (s *Store) writeOnce(readings bool) error {
	s.mu.Lock()
	if readings {
		s.touchSeen()
	}
	dirty, written, removed := s.dirty, s.waiting, s.removed
	s.dirty, s.waiting, s.removed = map[ref]struct{}{}, make(chan struct{}), nil
	var heads []unitHeads
	var peers []operation
	if readings {
		heads = s.encodeHeads()
		peers = s.encodePeers()
	}
	lived, _ := json.Marshal(life{s.clock.now(), s.options.Now().Unix()})
	s.mu.Unlock()
	defer close(written)

	err := s.writeRecords(dirty, func(tx *bolt.Tx) error {
		if err := putPeers(tx, peers); err != nil {
			return err
		}
		if err := putHeads(tx, heads); err != nil {
			return err
		}
		meta := tx.Bucket(bucketMeta)
		if meta == nil {
			return fmt.Errorf("%w: no bucket %s", errDamaged, bucketMeta)
		}
		return put(meta, keyLife, lived)
	})
	s.mu.Lock()
	if err != nil {
		maps.Copy(s.dirty, dirty)
		s.boundDirty()
		s.boundHeads()
		s.drop("peers", len(peers))
	} else {
		s.forgetHeads(heads)
	}
	s.mu.Unlock()
	if len(removed) > 0 {
		s.removeProfiles(removed)
	}
	return err
}

// writeRecords writes and deletes the records that are dirty, in transactions that take
// little memory, and the rest in the last one. What is not written stays dirty.
func (s *Store) writeRecords(dirty map[ref]struct{}, rest func(*bolt.Tx) error) error {
	for {
		s.mu.Lock()
		ops, encoded := s.operations(dirty)
		s.mu.Unlock()
		last := len(dirty) == 0
		err := s.db.update(func(tx *bolt.Tx) error {
			if err := putRecords(tx, ops); err != nil || !last {
				return err
			}
			return rest(tx)
		})
		if err != nil {
			for _, r := range encoded {
				dirty[r] = struct{}{}
			}
		}
		if err != nil || last {
			return err
		}
	}
}

// touchSeen touches the units and collectors whose last data is metricsEvery newer than in
// the database. The lock is held.
func (s *Store) touchSeen() {
	for id, u := range s.units {
		if u.seen-u.saved >= metricsEvery {
			s.touch(bucketUnits, string(id))
		}
	}
	if now := s.clock.now(); now-s.metricsWritten >= metricsEvery {
		s.metricsWritten = now
		for id := range s.instances {
			s.touch(bucketInstances, id)
			s.touch(bucketMetrics, id)
		}
	}
}

// putRecords writes and deletes records.
func putRecords(tx *bolt.Tx, ops []operation) error {
	for _, op := range ops {
		b := tx.Bucket(op.bucket)
		if b == nil {
			return fmt.Errorf("%w: no bucket %s", errDamaged, op.bucket)
		}
		if op.value == nil {
			if err := b.Delete(op.key); err != nil {
				return err
			}
		} else if err := put(b, op.key, op.value); err != nil {
			return err
		}
	}
	return nil
}

// boundDirty forgets records to delete while the disk is full: they are found and
// deleted when the store is opened, as records without their unit or as too old.
func (s *Store) boundDirty() {
	if len(s.dirty) > 2*(maxUnits+maxOpenings+maxRefusals) {
		s.dirty = map[ref]struct{}{}
		s.touchAll()
	}
}

// startAnew sets the database aside, and marks everything as not written.
func (s *Store) startAnew(cause error) bool {
	if s.setAsides >= maxSetAside {
		return false
	}
	s.setAsides++
	if err := s.db.replace(cause); err != nil {
		s.log.Error("console has no database any more; what is new is kept in memory, within bounds", zap.Error(err))
		return false
	}
	err := s.db.update(createBuckets)
	s.mu.Lock()
	s.touchAll()
	s.mu.Unlock()
	return err == nil
}

// Usage implements Reader.
func (s *Store) Usage() Usage {
	s.mu.RLock()
	age := s.clock.now() - s.oldest.Load()
	s.mu.RUnlock()
	return Usage{
		Bytes: s.bytes.Load() + s.profileBytes(), MaxBytes: s.options.MaxBytes, MaxAge: s.options.MaxAge,
		Oldest:  s.options.Now().Add(-time.Duration(max(age, 0)) * time.Second),
		Dropped: s.drops.all(),
	}
}

// drop counts what gave way or was refused.
func (s *Store) drop(what string, n int) { s.drops.add(what, int64(n)) }

// drops counts what was dropped since the start, by what it was.
type drops struct {
	mu     sync.Mutex
	count  map[string]int64
	logged map[string]int64
}

func (d *drops) add(what string, n int64) {
	if n <= 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count == nil {
		d.count = map[string]int64{}
	}
	d.count[what] += n
}

func (d *drops) all() map[string]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.count)
}

// log logs what was dropped since it was called last.
func (d *drops) log(log *zap.Logger) {
	d.mu.Lock()
	var fields []zap.Field
	for what, n := range d.count {
		if n > d.logged[what] {
			fields = append(fields, zap.Int64(what, n-d.logged[what]))
		}
	}
	d.logged = maps.Clone(d.count)
	d.mu.Unlock()
	if len(fields) > 0 {
		log.Warn("console dropped data", fields...)
	}
}
