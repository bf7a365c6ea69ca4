// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package symbolizer

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

const (
	// maxFiles is the maximum number of files in the cache, including unreadable files.
	maxFiles = 8192
	// checkInterval is the minimum time between two checks of whether a file has changed. A
	// check happens when the file is mapped again.
	checkInterval = time.Second
	// retryInterval is the time until an unreadable file is opened again through the
	// same process. The file is opened through another process without waiting,
	// because that process may have access.
	retryInterval = 30 * time.Second
	// idleTimeout is the time until an unused object is closed. Objects are closed because
	// the disk space of a deleted file is not freed while the file stays open.
	idleTimeout = 10 * time.Minute
	// A failed search for a debug file is repeated when a process next maps the file or has
	// samples in it. The minimum time between two searches starts at twice checkInterval and
	// doubles up to maxLookInterval. After warnLooks failures, a warning is logged, at most
	// once per warnInterval.
	maxLookInterval = time.Minute
	warnLooks       = 4
	warnInterval    = 10 * time.Minute
)

// image identifies an object by its file and by its debug file, if it has one.
type image struct{ file, debug mappedfile.ID }

// file is the state of one file. Unless noted otherwise, the fields are written before
// ready is closed, and read afterwards.
type file struct {
	ready chan struct{}
	// checked is guarded by the Symbolizer's lock.
	checked time.Time
	// late reports that loading the file timed out. Loading continues, and may still
	// succeed.
	late atomic.Bool

	object *object
	image  image
	// failed reports that the file could not be read through the process pid. outcome is
	// kept instead of the error, because error texts contain long paths.
	failed  bool
	pid     int
	outcome Outcome
	// looks counts the consecutive failed searches for the debug file. It is reset to 0 when
	// the debug file has been found, or is known not to exist. lookAt is the time of the next
	// search. After ready is closed, the Symbolizer's lock guards looks and lookAt.
	looks  int
	lookAt time.Time
}

func (f *file) loading() bool { return pending(f.ready) }

// pending reports whether a channel is not closed yet.
func pending(ready <-chan struct{}) bool {
	select {
	case <-ready:
		return false
	default:
		return true
	}
}

// tracked opens the file of a mapping, or checks whether an open file was replaced.
func (s *Symbolizer) tracked(m *samples.Mapping) {
	now := s.cfg.Now()
	key := mappedfile.FileOf(m)
	s.mu.Lock()
	f, ok := s.files.Get(key)
	switch {
	case !ok || !f.loading() && f.retry(m, now):
		f = s.newFile(key, now)
		s.mu.Unlock()
		s.load(key, f, m)
		return
	case f.loading() || f.failed || now.Sub(f.checked) < checkInterval:
		s.mu.Unlock()
		return
	}
	f.checked = now
	looks, look := f.looks, f.look(now)
	s.mu.Unlock()
	_ = s.run(m, func(c *stuckread.Call) *file { // after a timeout, the open file stays
		r, id, err := mappedfile.Open(c, s.cfg.Root, m)
		if err != nil {
			return nil // the open file stays
		}
		if id == f.image.file && f.image.debug == (mappedfile.ID{}) && !look {
			c.Wait(nil, func() { r.Close() })
			return nil
		}
		s.mu.Lock()
		f := s.newFile(key, now)
		s.mu.Unlock()
		f.looks = looks
		s.loadFrom(c, key, f, m, r, id)
		return f
	})
}

// run runs work, which opens and reads the file of a mapping. It charges the CPU time to
// the budget, and then closes the ready channel of the file that work returns. A
// goroutine that waits for ready thus checks its next file against the updated budget.
// run returns an error if the file does not answer, or did not answer before.
func (s *Symbolizer) run(m *samples.Mapping, work func(*stuckread.Call) *file) error {
	if s.cfg.Runner.Refuses(mappedfile.Reading(m)) {
		return stuckread.ErrRefused
	}
	return s.cfg.Runner.Run(mappedfile.Opening(m), m.Path, stuckread.ReadLimit, func(c *stuckread.Call) {
		var loaded *file
		s.cfg.Spend(m.PID, func() { loaded = work(c) })
		if loaded != nil {
			close(loaded.ready)
		}
	})
}

// retry reports whether to try a failed file again through m.
func (f *file) retry(m *samples.Mapping, now time.Time) bool {
	return f.failed && (f.outcome == Unreadable && f.pid != m.PID || now.Sub(f.checked) >= retryInterval)
}

// look reports whether to search for the debug file again.
func (f *file) look(now time.Time) bool {
	return !f.loading() && f.looks > 0 && !now.Before(f.lookAt)
}

// looked records the result of the search for the debug file of f. A search that failed
// because the process has ended does not lengthen the interval, because another process may
// have the debug file.
func (s *Symbolizer) looked(f *file, m *samples.Mapping, found bool, err error) {
	outcome := DebugFileAbsent
	switch {
	case err != nil:
		outcome = DebugFileUnknown
	case found:
		outcome = DebugFileFound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.debugFiles[outcome]++
	if err == nil {
		f.looks = 0
		return
	}
	wait := checkInterval
	if f.looks++; !errors.Is(err, mappedfile.ErrNoRoot) {
		wait = min(checkInterval<<min(f.looks, 10), maxLookInterval)
	}
	now := s.cfg.Now()
	f.lookAt = now.Add(wait)
	if f.looks >= warnLooks && now.Sub(s.warned) >= warnInterval {
		s.warned = now
		s.log.Warn("the debug file of a file that programs share could not be looked for; its functions have only exported names until it can",
			zap.String("file", m.Path), zap.Int("looks", f.looks), zap.Error(err))
	}
}

// newFile creates the state of a file that is about to be loaded. It replaces the old state
// of the file. The caller must hold the lock.
func (s *Symbolizer) newFile(key mappedfile.File, now time.Time) *file {
	s.files.Remove(key)
	f := &file{ready: make(chan struct{}), checked: now}
	s.files.Add(key, f)
	return f
}

// dropFile is the eviction callback of files.
func (s *Symbolizer) dropFile(key mappedfile.File, f *file) {
	if !f.loading() && f.object != nil {
		delete(f.object.keys, key)
	}
}

// use marks o as the most recently used object. The caller must hold the lock.
func (s *Symbolizer) use(o *object, now time.Time) {
	s.objects.Get(o)
	o.at = now
}

// dropObject is called for each object that leaves objects. It forgets the object's files,
// so that they are opened again on demand.
func (s *Symbolizer) dropObject(o *object) {
	for k := range o.keys {
		s.files.Remove(k)
	}
	if s.images[o.image] == o { // an image may have been loaded twice after a timeout
		delete(s.images, o.image)
	}
	for _, f := range o.files {
		s.discard(f)
	}
}

// load opens and indexes the file of m. It runs on the worker.
func (s *Symbolizer) load(key mappedfile.File, f *file, m *samples.Mapping) {
	err := s.run(m, func(c *stuckread.Call) *file {
		r, id, err := mappedfile.Open(c, s.cfg.Root, m)
		if err != nil {
			s.unreadable(f, m, err)
		} else {
			s.loadFrom(c, key, f, m, r, id)
		}
		return f
	})
	switch {
	case errors.Is(err, stuckread.ErrLate):
		f.late.Store(true)
	case err != nil:
		s.unreadable(f, m, fmt.Errorf("reading symbols of %q: %w", m.Path, err))
		close(f.ready)
	}
}

// unreadable sets the outcome for a file that could not be opened.
func (s *Symbolizer) unreadable(f *file, m *samples.Mapping, err error) {
	f.pid, f.failed, f.outcome = m.PID, true, Unreadable
	s.log.Debug("file not readable", zap.Error(err))
}

func (s *Symbolizer) loadFrom(c *stuckread.Call, key mappedfile.File, f *file, m *samples.Mapping, file *os.File, id mappedfile.ID) {
	r := mappedfile.NewReader(file, mappedfile.Reading(m), m.Path)
	r.Use(c)
	f.image.file = id
	o, err := newObject(r, id.Size)
	if err != nil {
		r.Close()
		f.pid, f.failed, f.outcome = m.PID, true, Invalid
		if errors.Is(err, elffile.ErrNotELF) {
			f.outcome = NoFile
		}
		s.log.Debug("no symbols", zap.Error(fmt.Errorf("reading symbols of %q: %w", m.Path, err)))
		return
	}
	o.files = append(o.files, r)
	if isStripped(o.f) {
		o.separate, err = debugFileOf(c, s.cfg.Root, m, o, func(debug mappedfile.ID) bool { return s.same(image{id, debug}) != nil })
		s.looked(f, m, o.separate != nil, err)
		if o.separate != nil {
			f.image.debug = o.separate.id
			o.files = append(o.files, o.separate.file)
		}
	}
	if same := s.same(f.image); same != nil {
		o.close()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.use(same, s.cfg.Now())
		s.adopt(key, f, same)
		return
	}
	if err := o.index(s.cfg.CacheBytes / 2); err != nil {
		// Even if another source works, some names are missing.
		s.log.Debug("some symbols not readable", zap.String("file", m.Path), zap.Error(err))
	}
	o.use(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		f.failed, f.outcome = true, Unreadable
		for _, r := range o.files {
			s.discard(r)
		}
		return // the Symbolizer is closed
	}
	s.images[f.image], o.image = o, f.image
	s.objects.Add(o, o)
	s.use(o, s.cfg.Now())
	s.objects.account(o, o)
	s.adopt(key, f, o)
}

// same returns the open object of an image, or nil.
func (s *Symbolizer) same(i image) *object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.images[i]
}

// adopt sets o as the object of f. It links o to the key only if f is still in the cache.
func (s *Symbolizer) adopt(key mappedfile.File, f *file, o *object) {
	f.object = o
	if current, ok := s.files.Peek(key); ok && current == f {
		o.keys[key] = struct{}{}
	}
}
