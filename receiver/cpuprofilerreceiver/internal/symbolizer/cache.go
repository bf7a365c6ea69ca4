// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
)

const (
	// maxFiles bounds what is known about files, whether they could be opened
	// or not.
	maxFiles = 8192
	// checkInterval is how often at most a file is looked at again when it is
	// mapped again: between the looks it is trusted to be the same.
	checkInterval = time.Second
	// retryInterval is how long a file that could not be read is left alone for
	// the same process. Another process is tried at once: it may be readable.
	retryInterval = 30 * time.Second
	// idleTimeout is how long an object is held open without use: an open file
	// keeps the disk space of an image that was deleted.
	idleTimeout = 10 * time.Minute
)

// fileKey is a file as the kernel's record of a mapping names it.
type fileKey struct {
	major, minor uint32
	inode        uint64
}

func keyOf(m *samples.Mapping) fileKey { return fileKey{m.DeviceMajor, m.DeviceMinor, m.Inode} }

// identity tells a file from another one that has its inode number later, or
// from itself with other content.
type identity struct {
	size         int64
	mtime, ctime int64
}

// image is what all files of one build have in common. The size tells a
// stripped copy from one with symbols.
type image struct {
	buildID string
	size    int64
}

// file is what is known about one file. The fields below ready are set before
// ready is closed, and read after.
type file struct {
	ready chan struct{}
	// checked is guarded by the cache's lock.
	checked time.Time

	object *object
	id     identity
	// pid is the process that err happened with.
	pid     int
	err     error
	outcome Outcome
}

func (f *file) loading() bool {
	select {
	case <-f.ready:
		return false
	default:
		return true
	}
}

// cache is the object files that are open, and how they are found. Its methods
// are called with the Symbolizer's lock held, except load and verify.
type cache struct {
	files  *simplelru.LRU[fileKey, *file]
	images map[image]*object
	open   map[*object]struct{}

	bytes, maxBytes int64
	// descriptors is what the open objects hold, maxObjects how many they may.
	descriptors, maxObjects int
	clock                   uint64
	evictions               uint64
}

func newCache(maxBytes int64, maxObjects int) (*cache, error) {
	c := &cache{
		images: make(map[image]*object), open: make(map[*object]struct{}),
		maxBytes: maxBytes, maxObjects: maxObjects,
	}
	var err error
	c.files, err = simplelru.NewLRU(maxFiles, func(k fileKey, f *file) {
		if !f.loading() && f.object != nil {
			delete(f.object.keys, k)
		}
	})
	return c, err
}

// use marks o as used just now.
func (c *cache) use(o *object, now time.Time) {
	c.clock++
	o.used, o.at = c.clock, now
}

// add takes o in under a build of its own, and makes room for it.
func (c *cache) add(o *object, size int64, now time.Time) {
	c.open[o] = struct{}{}
	c.descriptors += o.descriptors()
	if o.buildID != "" {
		c.images[image{o.buildID, size}] = o
	}
	c.use(o, now)
	c.account(o)
}

// account counts what o holds now and evicts others where that is too much.
func (c *cache) account(o *object) {
	if _, ok := c.open[o]; !ok {
		return // evicted meanwhile
	}
	n := o.bytes()
	c.bytes += n - o.size
	o.size = n
	for c.bytes > c.maxBytes || c.descriptors > c.maxObjects {
		var oldest *object
		for other := range c.open {
			if other != o && (oldest == nil || other.used < oldest.used) {
				oldest = other
			}
		}
		if oldest == nil {
			return
		}
		c.evict(oldest)
		c.evictions++
	}
}

// expire evicts what was not used for long.
func (c *cache) expire(now time.Time) {
	for o := range c.open {
		if now.Sub(o.at) >= idleTimeout {
			c.evict(o)
		}
	}
}

func (c *cache) evict(o *object) {
	delete(c.open, o)
	c.descriptors -= o.descriptors()
	for k := range o.keys {
		c.files.Remove(k)
	}
	for i, other := range c.images {
		if other == o {
			delete(c.images, i)
		}
	}
	c.bytes -= o.size
	o.close()
}

// tracked opens the file of a mapping that was seen, or makes sure that it is
// still the file that is open.
func (s *Symbolizer) tracked(m *samples.Mapping) {
	now := s.cfg.Now()
	key := keyOf(m)
	s.mu.Lock()
	f, ok := s.cache.files.Get(key)
	switch {
	case !ok || !f.loading() && f.retry(m, now):
		f = s.cache.newFile(key, now)
		s.mu.Unlock()
		s.load(key, f, m)
		return
	case f.loading() || f.err != nil || now.Sub(f.checked) < checkInterval:
		s.mu.Unlock()
		return
	}
	f.checked = now
	s.mu.Unlock()
	r, id, err := openMapping(s.cfg.Root, m)
	if err != nil {
		return // what is open is as good as before
	}
	if id == f.id {
		r.Close()
		return
	}
	s.mu.Lock()
	f = s.cache.newFile(key, now)
	s.mu.Unlock()
	s.loadFrom(key, f, m, r, id)
}

// retry says whether a file that could not be read may be readable through m.
func (f *file) retry(m *samples.Mapping, now time.Time) bool {
	return f.err != nil && (f.outcome == Unreadable && f.pid != m.PID || now.Sub(f.checked) >= retryInterval)
}

// newFile puts a file that is being loaded in the cache, in the place of what
// was known of it.
func (c *cache) newFile(key fileKey, now time.Time) *file {
	c.files.Remove(key)
	f := &file{ready: make(chan struct{}), checked: now}
	c.files.Add(key, f)
	return f
}

// load opens and indexes the file of m. It runs on the worker.
func (s *Symbolizer) load(key fileKey, f *file, m *samples.Mapping) {
	r, id, err := openMapping(s.cfg.Root, m)
	if err != nil {
		f.pid, f.err, f.outcome = m.PID, err, Unreadable
		s.log.Debug("file not readable", zap.Error(err))
		close(f.ready)
		return
	}
	s.loadFrom(key, f, m, r, id)
}

func (s *Symbolizer) loadFrom(key fileKey, f *file, m *samples.Mapping, r *os.File, id identity) {
	defer close(f.ready)
	f.id = id
	o, err := newObject(r, id.size, r)
	if err != nil {
		r.Close()
		f.pid, f.err, f.outcome = m.PID, fmt.Errorf("read symbols of %q: %w", m.Path, err), Invalid
		if errors.Is(err, elffile.ErrNotELF) {
			f.outcome = NoFile
		}
		s.log.Debug("no symbols", zap.Error(f.err))
		return
	}
	if o.buildID != "" {
		s.mu.Lock()
		same, ok := s.cache.images[image{o.buildID, id.size}]
		if ok {
			s.cache.use(same, s.cfg.Now())
			s.adopt(key, f, same)
		}
		s.mu.Unlock()
		if ok {
			r.Close()
			return
		}
	}
	o.separate = func() *symbolFile { return debugFileOf(s.cfg.Root, m, o) }
	if err := o.index(s.cfg.CacheBytes / 2); err != nil {
		// Shown even where another source works: the names are not as good as
		// they could be.
		s.log.Debug("some symbols not readable", zap.String("file", m.Path), zap.Error(err))
		if len(o.sources) == 0 {
			f.err, f.outcome = fmt.Errorf("read symbols of %q: %w", m.Path, err), Invalid
		}
	}
	if len(o.sources) == 0 {
		o.close() // nothing will be read from it; its build id is worth keeping
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache.add(o, id.size, s.cfg.Now())
	s.adopt(key, f, o)
}

// adopt makes f a file of o, unless the cache has moved on.
func (s *Symbolizer) adopt(key fileKey, f *file, o *object) {
	f.object = o
	if current, ok := s.cache.files.Peek(key); ok && current == f {
		o.keys[key] = struct{}{}
	}
}
