// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/token"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// Config configures a Cache. A limit of 0 means its default.
type Config struct {
	mappedfile.Access
	// Open opens and identifies the file of a mapping. It uses the stuckread.Call for all system
	// calls that may block.
	Open func(*stuckread.Call, *samples.Mapping) (*os.File, mappedfile.ID, error)
	// VDSO returns the object file of the vdso. It may be nil.
	VDSO func() ([]byte, error)
	// MaxBytes limits the memory of all tables. The default is 64 MiB. MaxBytes
	// also limits the size of an .eh_frame section that is being read. One table
	// uses at most half of MaxBytes, and rules that do not fit are omitted. When
	// the limit is reached, the tables of short-lived programs are dropped first,
	// and then the least recently used tables.
	MaxBytes int64
	// MaxFiles limits the number of known files, including unreadable files. The default
	// is 4096. When the limit is reached, a file is dropped.
	MaxFiles int
	Logger   *zap.Logger
	// Now is the clock. The default is time.Now.
	Now func() time.Time
}

const (
	defaultMaxBytes = 64 << 20
	defaultMaxFiles = 4096
	// queueLength is the maximum number of requests that wait for the worker.
	queueLength = 1024
	// A request for a file of at least largeFile bytes is queued behind other requests that
	// arrive within largeWait.
	largeFile = 4 << 20
	largeWait = 10 * time.Millisecond
	// checkInterval is the time between two checks of a file in use. A check finds out
	// whether the file has changed or has become readable.
	checkInterval = 30 * time.Second
	// clockInterval is the interval at which Cache.clock advances.
	clockInterval = 5 * time.Second
	// quiet is the minimum time between two log lines about tables that were left out.
	quiet = 10 * time.Minute
)

// Stats holds the counters of a Cache since its creation, and its current size.
type Stats struct {
	// Files and Tables count the known files and their tables. Bytes is the memory of the
	// tables. A file that several containers share has one table.
	Files, Tables int
	Bytes         int64
	// Built counts the tables that were built.
	Built uint64
	// Unreadable counts files that could not be opened or are invalid. Incomplete counts
	// tables in which rules are missing because of the size limit.
	Unreadable, Incomplete uint64
	// Evicted counts files that were dropped because a limit was reached. Dropped counts
	// requests that were dropped because the queue was full or no CPU time was left. A
	// dropped file is requested again when it is needed.
	Evicted, Dropped uint64
	// LeftOut counts tables that were not kept, because the tables of longer running
	// programs use all the memory.
	LeftOut uint64
}

// entry is the state of one file. After publish, only checking, used and often change.
type entry struct {
	table *Table // nil if the file has no table
	id    mappedfile.ID
	at    time.Time // when the file was read
	// checking reports that a check is requested.
	checking atomic.Bool
	used     atomic.Uint32
	// often reports that the file was used at two different values of Cache.clock. In this
	// case, the programs that use the file are not short-lived.
	often atomic.Bool
	// leftOut reports that there was no room for the table.
	leftOut bool
	// ended is the pid of a process that ended before the file could be opened through
	// that process, or 0. Another process may still have the file.
	ended int
}

// idleAfter is the idle time, in seconds, after which the table of a long-running program
// loses its precedence.
const idleAfter = 60

// before reports whether e is dropped before other. now is Cache.clock. Files of
// longer-running programs are dropped last. Otherwise, the least recently used file is
// dropped first.
func (e *entry) before(other *entry, now uint32) bool {
	if of := other.runsOn(now); e.runsOn(now) != of {
		return of
	}
	return e.used.Load() < other.used.Load()
}

// runsOn reports whether the file belongs to a longer running program and is in use.
func (e *entry) runsOn(now uint32) bool { return e.often.Load() && now-e.used.Load() < idleAfter }

// Cache makes and keeps tables. It is safe for concurrent use. Lookup never waits for the
// worker, which reads the files.
type Cache struct {
	cfg Config

	// files points to a map that is never modified. The worker replaces the map with a
	// changed copy.
	files atomic.Pointer[map[mappedfile.File]*entry]
	// clock is the number of seconds since began. The worker updates it every
	// clockInterval.
	clock atomic.Uint32
	began time.Time
	// vdso is the table of the vdso. It is nil if the vdso could not be read.
	vdso *Table

	queue chan request

	// served receives a token after each served request.
	served chan struct{}

	mu      sync.Mutex
	waiting map[mappedfile.File]struct{} // files in the queue, or being served
	logged  time.Time                    // time of the last log line about tables that were left out
	stats   Stats

	once   sync.Once
	done   chan struct{}
	worker sync.WaitGroup
}

type request struct {
	key     mappedfile.File
	mapping *samples.Mapping
	// later reports that the request was put behind other requests.
	later bool
}

// NewCache returns an empty cache with a worker that runs until Close.
func NewCache(cfg Config) *Cache {
	c := newCache(cfg)
	c.worker.Go(c.work)
	return c
}

func newCache(cfg Config) *Cache {
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, defaultMaxBytes)
	cfg.MaxFiles = cmp.Or(cfg.MaxFiles, defaultMaxFiles)
	cfg.Logger = cmp.Or(cfg.Logger, zap.NewNop())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	c := &Cache{
		cfg:     cfg,
		began:   cfg.Now(),
		queue:   make(chan request, queueLength),
		served:  make(chan struct{}, 1),
		waiting: make(map[mappedfile.File]struct{}),
		done:    make(chan struct{}),
	}
	c.files.Store(&map[mappedfile.File]*entry{})
	if cfg.VDSO != nil {
		image, err := cfg.VDSO()
		if err == nil {
			c.vdso, err = c.build(bytes.NewReader(image), int64(len(image)), mappedfile.VDSOPath)
		}
		if err != nil {
			cfg.Logger.Debug("no unwinding through this file", zap.String("file", mappedfile.VDSOPath), zap.Error(err))
		}
	}
	return c
}

// Close stops the worker and waits for it.
func (c *Cache) Close() {
	c.once.Do(func() { close(c.done) })
	c.worker.Wait()
}

// Lookup implements Tables. For an unknown file, it requests the table.
func (c *Cache) Lookup(m *samples.Mapping) (*Table, bool) {
	switch {
	case m.Inode == 0 && m.Path == mappedfile.VDSOPath:
		return c.vdso, true
	case m.Inode == 0 || !strings.HasPrefix(m.Path, "/"):
		return nil, true
	}
	key := mappedfile.FileOf(m)
	e := (*c.files.Load())[key]
	if e == nil {
		c.ask(key, m)
		return nil, false
	}
	now := c.clock.Load()
	if e.used.Load() != now {
		e.used.Store(now)
		e.often.Store(true)
	}
	again := e.table == nil && e.ended != 0 && e.ended != m.PID
	due := now >= uint32(e.at.Sub(c.began)/time.Second)+uint32(checkInterval/time.Second)
	if (again || due) && e.checking.CompareAndSwap(false, true) {
		c.ask(key, m)
	}
	return e.table, !again
}

// Settle implements Tables.
func (c *Cache) Settle(limit time.Duration) time.Duration {
	began := time.Now()
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		c.mu.Lock()
		waiting := len(c.waiting)
		c.mu.Unlock()
		if waiting == 0 {
			return time.Since(began)
		}
		select {
		case <-c.served:
		case <-late.C:
			return limit
		case <-c.done:
			return limit
		}
	}
}

// Root reports whether a location is in a function at which threads start, according to
// the table of its file. It returns false while the file is being read.
func (c *Cache) Root(l *samples.Location) bool {
	if l.Mapping == nil {
		return false
	}
	t, _ := c.Lookup(l.Mapping)
	at := l.Address
	if !l.Leaf {
		at-- // a call may be the last instruction of its function
	}
	return t != nil && at >= l.Mapping.Start && at < l.Mapping.Limit && t.in(l.Mapping, at).flags&flagRoot != 0
}

func (c *Cache) ask(key mappedfile.File, m *samples.Mapping) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.waiting[key]; ok {
		return
	}
	select {
	case c.queue <- request{key: key, mapping: m}:
		c.waiting[key] = struct{}{}
	default:
		c.stats.Dropped++
	}
}

func (c *Cache) work() {
	tick := time.NewTicker(clockInterval)
	defer tick.Stop()
	for {
		select {
		case r := <-c.queue:
			if c.later(r) {
				continue
			}
			c.serve(r)
			token.Put(c.served)
		case <-tick.C:
			c.clock.Store(uint32(c.cfg.Now().Sub(c.began) / time.Second))
		case <-c.done:
			return
		}
	}
}

// later puts the request of a large file behind the other requests, but only once. The
// libraries in which threads start are requested together with their program and have small
// tables. They go first, because the table of a large program may use up all CPU time that
// is left.
func (c *Cache) later(r request) bool {
	if r.later || r.mapping.FileOffset+r.mapping.Limit-r.mapping.Start < largeFile {
		return false
	}
	r.later = true
	time.Sleep(largeWait)
	select {
	case c.queue <- r:
		return true
	default:
		return false
	}
}

// serve opens the file of a request and publishes its table. It waits for at most
// stuckread.ReadLimit, but a result that comes later is also published. If no CPU time is
// left, serve drops the request. The file is then requested again when it is needed.
func (c *Cache) serve(r request) {
	if !c.cfg.Budget.May(r.mapping.PID) {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, r.key)
		if e := (*c.files.Load())[r.key]; e != nil {
			e.checking.Store(false)
		}
		c.stats.Dropped++
		return
	}
	err := c.cfg.Runner.Run(mappedfile.Opening(r.mapping), r.mapping.Path, stuckread.ReadLimit, func(call *stuckread.Call) {
		c.cfg.Spend(r.mapping.PID, func() {
			e, err := c.read(call, r, (*c.files.Load())[r.key])
			c.publish(r, e, err)
		})
	})
	if errors.Is(err, stuckread.ErrRefused) {
		e := &entry{at: c.cfg.Now()}
		if old := (*c.files.Load())[r.key]; old != nil {
			e.table, e.id = old.table, old.id
		}
		c.publish(r, e, err)
	}
}

// publish sets the state of a file.
func (c *Cache) publish(r request, e *entry, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, r.key)
	if err != nil {
		c.stats.Unreadable++
		c.cfg.Logger.Debug("no unwinding through this file", zap.String("file", r.mapping.Path), zap.Error(err))
	}
	e.used.Store(c.clock.Load())
	if old := (*c.files.Load())[r.key]; old != nil {
		e.often.Store(old.often.Load())
	}
	files := maps.Clone(*c.files.Load())
	files[r.key] = e
	c.evict(files, e, c.cfg.Budget.Hot(r.mapping.PID))
	c.files.Store(&files)
}

// read opens a file and returns its new state. If the file has no table, err is the reason.
func (c *Cache) read(call *stuckread.Call, r request, old *entry) (*entry, error) {
	e := &entry{at: c.cfg.Now()}
	file, id, err := c.cfg.Open(call, r.mapping)
	if err != nil {
		if errors.Is(err, mappedfile.ErrNoRoot) {
			e.ended = r.mapping.PID
		}
		if old != nil && old.table != nil && !errors.Is(err, fs.ErrPermission) {
			e.table, e.id = old.table, old.id // other processes may still use the file
			return e, nil
		}
		return e, err
	}
	f := mappedfile.NewReader(file, mappedfile.Reading(r.mapping), r.mapping.Path)
	f.Use(call)
	defer f.Close()
	e.id = id
	for _, other := range *c.files.Load() {
		if other.id == id && other.table != nil {
			e.table = other.table
			return e, nil
		}
	}
	e.table, err = c.build(f, id.Size, r.mapping.Path)
	return e, err
}

func (c *Cache) build(r io.ReaderAt, size int64, path string) (*Table, error) {
	t, err := readTable(r, size, c.cfg.MaxBytes/2, uint64(min(c.cfg.MaxBytes, maxFrames)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if t == nil {
		return nil, err
	}
	c.stats.Built++
	if t.incomplete {
		c.stats.Incomplete++
		c.cfg.Logger.Debug("the unwind table of this file is incomplete, it is too large", zap.String("file", path))
	}
	return t, err
}

// evict drops files until the cache is within its limits. If memory is short, it drops the
// latest table rather than tables of longer-running programs, unless the program of the
// latest table is itself longer-running or hot.
func (c *Cache) evict(files map[mappedfile.File]*entry, latest *entry, hot bool) {
	now := c.clock.Load()
	for {
		bytes, tables := held(files)
		c.stats.Files, c.stats.Tables, c.stats.Bytes = len(files), tables, bytes
		large := bytes > c.cfg.MaxBytes
		if !large && len(files) <= c.cfg.MaxFiles {
			return
		}
		var oldest mappedfile.File
		least := latest
		for k, e := range files {
			if e != latest && (!large || e.table != nil) && (least == latest || e.before(least, now)) {
				oldest, least = k, e
			}
		}
		switch {
		case least == latest:
			return
		case large && least.runsOn(now) && !latest.often.Load() && !hot && latest.table != nil:
			latest.table, latest.leftOut = nil, true
			c.stats.LeftOut++
			if c.logged.IsZero() || latest.at.Sub(c.logged) > quiet {
				c.logged = latest.at
				c.cfg.Logger.Warn("the unwind tables in use do not fit max_memory: stacks of programs that started last have no callers, until they are hot",
					zap.Int64("bytes", c.stats.Bytes), zap.Int("tables", c.stats.Tables))
			}
		default:
			delete(files, oldest)
			c.stats.Evicted++
		}
	}
}

// RetryLeftOut forgets the files whose tables were left out, so that the tables are made
// again on demand. It is called after the set of hot programs has changed.
func (c *Cache) RetryLeftOut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	files := maps.Clone(*c.files.Load())
	maps.DeleteFunc(files, func(_ mappedfile.File, e *entry) bool { return e.leftOut })
	c.files.Store(&files)
}

// held returns the memory and the number of all tables. A table that several files share
// counts once.
func held(files map[mappedfile.File]*entry) (bytes int64, tables int) {
	seen := make(map[*Table]struct{}, len(files))
	for _, e := range files {
		if _, ok := seen[e.table]; !ok && e.table != nil {
			seen[e.table] = struct{}{}
			bytes += e.table.Bytes()
		}
	}
	return bytes, len(seen)
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}
