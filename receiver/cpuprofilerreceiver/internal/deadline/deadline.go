// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package deadline runs work that reads files of other processes, and continues without it
// if a read does not return. A file system without its server blocks its readers forever,
// and so does the memory of a process while its lock is held. Such a wait cannot be
// cancelled, so its goroutine and thread are lost until it ends. Their number is bounded
// and counted.
package deadline

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Subject is a file or process that work waits for.
type Subject struct {
	Key Key
	// Name is the name of the file or process in the log.
	Name string

	stuck atomic.Bool
}

// Stuck reports whether a wait for the subject was given up and has not ended. The data
// that the work uses must not be used then.
func (s *Subject) Stuck() bool { return s.stuck.Load() }

// Key is the cgroup, process, root or device of a wait. While a wait lasts, little more
// work with the same key is begun. The key comes from the kernel, so no process can choose
// the key of another process.
type Key struct {
	// Cgroup is the content of the cgroup file of a process, PID its pid. All processes of
	// a cgroup share a bound.
	Cgroup string
	PID    int
	// Root is [procfs.FS.Root], Device a device number.
	Root, Device uint64
}

var (
	// ErrLate is returned if the work did not end in time. It may still end.
	ErrLate = errors.New("it does not answer")
	// ErrRefused is returned if work is not begun, because other work with the same key was
	// late, or there is too much late work.
	ErrRefused = errors.New("it did not answer before")
)

// ReadLimit bounds the wait for one read of a file of another process.
const ReadLimit = time.Second

const (
	// maxLate bounds all late work. The other bounds apply to one key. They bound the
	// number of threads.
	maxLate          = 64
	maxLateOfFiles   = 2
	maxLateOfProcess = 1
	maxLateOfCgroup  = 8
	// pause is the time after late work in which no work with its key is begun. So a
	// subject that answers now and then costs at most the deadline in this time.
	pause = 10 * time.Second
	// ticks is the number of times that a wait is seen in a row before it is late. On a
	// machine without CPU time for this process no tick passes.
	ticks = 4
	// maxTicks bounds the number of times that any waits of one work are seen. So a file
	// system that answers slowly does not delay other work either.
	maxTicks = 4 * ticks
	// quiet is the minimum time between two log lines about one key.
	quiet = 5 * time.Minute
)

// Runner runs work. A nil Runner runs it without a deadline. Its methods may be called
// from any goroutine.
type Runner struct {
	log *zap.Logger
	now func() time.Time
	// changed is called, without a lock, when the number of late work changes. It may be
	// nil.
	changed func(late int)

	// troubled is the number of keys, read without the lock.
	troubled atomic.Int32

	mu    sync.Mutex
	keys  map[Key]*trouble
	stats Stats
}

// trouble is the state of a key with late work.
type trouble struct {
	late   int
	until  time.Time // no work is begun before
	logged time.Time
}

// Stats are counters since the Runner was made.
type Stats struct {
	// Stuck is the number of late work now.
	Stuck int
	// Late counts late work. Refused counts work that was not begun.
	Late, Refused uint64
}

// New returns a Runner. now may be nil.
func New(log *zap.Logger, changed func(late int), now func() time.Time) *Runner {
	if now == nil {
		now = time.Now
	}
	return &Runner{log: log, now: now, changed: changed, keys: make(map[Key]*trouble)}
}

// Stats returns the counters.
func (r *Runner) Stats() Stats {
	if r == nil {
		return Stats{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Refuses reports whether work with a key would not be begun now.
func (r *Runner) Refuses(key Key) bool {
	if r == nil || r.troubled.Load() == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refuses(key)
}

func (r *Runner) refuses(key Key) bool {
	if r.stats.Stuck >= maxLate {
		return true
	}
	for {
		if k, ok := r.keys[key]; ok && (k.late >= key.bound() || r.now().Before(k.until)) {
			return true
		}
		if key.PID == 0 {
			return false
		}
		key.PID = 0
	}
}

func (k Key) bound() int {
	switch {
	case k.PID != 0:
		return maxLateOfProcess
	case k.Cgroup != "":
		return maxLateOfCgroup
	}
	return maxLateOfFiles
}

// A Call is work in progress. Only its own goroutine uses it. The methods of a nil Call
// only run their functions.
type Call struct {
	runner *Runner
	// waits is the number of the wait in progress. It is 0 without a wait, and givenUp
	// after a wait was given up.
	waits atomic.Uint64
	count uint64
	// subject is the subject of the wait in progress.
	subject atomic.Pointer[Subject]
	// exits is set if the goroutine must end after a wait that was given up.
	exits bool
	// late is the subject of a wait that was given up. The runner's lock guards it.
	late *Subject
}

const givenUp = ^uint64(0)

// Wait runs f, which may wait forever for the subject. If subject is nil, it is the subject
// of Run.
func (c *Call) Wait(subject *Subject, f func()) {
	if c == nil {
		f()
		return
	}
	c.count++
	c.subject.Store(subject)
	c.waits.Store(c.count)
	f()
	if c.waits.CompareAndSwap(c.count, 0) {
		return
	}
	if subject != nil {
		c.runner.mu.Lock() // give marks it while it holds the lock
		subject.stuck.Store(false)
		c.runner.mu.Unlock()
	}
	if c.exits {
		runtime.Goexit()
	}
	c.waits.Store(0)
}

// Run runs work on another goroutine until it ends, or until one of its waits lasts longer
// than limit, or all waits four times as long. Then it returns ErrLate, and the work
// continues by itself when the wait ends. name is the name of the file or process in the
// log.
func (r *Runner) Run(key Key, name string, limit time.Duration, work func(*Call)) error {
	if r.Refuses(key) {
		r.mu.Lock()
		r.stats.Refused++
		r.mu.Unlock()
		return ErrRefused
	}
	return r.run(&Subject{Key: key, Name: name}, limit, &Call{runner: r}, work)
}

// Take is Run for work on shared data, which another goroutine takes over after ErrLate.
// The goroutine of the late work ends when the wait ends. Each of its waits has a subject.
func (r *Runner) Take(limit time.Duration, work func(*Call)) error {
	return r.run(nil, limit, &Call{runner: r, exits: true}, work)
}

func (r *Runner) run(of *Subject, limit time.Duration, c *Call, work func(*Call)) error {
	if r == nil {
		work(nil)
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.ended(c)
		work(c)
	}()
	tick := time.NewTimer(limit / ticks)
	defer tick.Stop()
	for seen, times, all := uint64(0), 0, 0; ; {
		select {
		case <-done:
			return nil
		case <-tick.C:
			tick.Reset(limit / ticks)
		}
		now := c.waits.Load()
		if now == 0 {
			continue
		}
		if now != seen {
			seen, times = now, 0
		}
		times, all = times+1, all+1
		if times <= ticks && all <= maxTicks {
			continue
		}
		if r.give(c, seen, of) {
			return ErrLate
		}
	}
}

// give gives up a wait, unless the wait has just ended.
func (r *Runner) give(c *Call, wait uint64, of *Subject) bool {
	subject := c.subject.Load()
	r.mu.Lock()
	if !c.waits.CompareAndSwap(wait, givenUp) {
		r.mu.Unlock()
		return false
	}
	if subject != nil {
		of = subject
		subject.stuck.Store(true)
	}
	c.late = of
	now := r.now()
	for other, k := range r.keys {
		if k.late == 0 && now.After(k.until) && now.Sub(k.logged) > quiet {
			delete(r.keys, other)
		}
	}
	k := r.late(of.Key, now)
	r.troubled.Store(int32(len(r.keys)))
	logs := k.logged.IsZero() || now.Sub(k.logged) > quiet
	if logs {
		k.logged = now
	}
	r.stats.Stuck++
	r.stats.Late++
	n := r.stats.Stuck
	r.mu.Unlock()
	if logs {
		r.log.Warn("a file does not answer; going on without it", zap.String("file", of.Name), zap.Int("waiting_reads", n))
	}
	if r.changed != nil {
		r.changed(n)
	}
	return true
}

// late counts late work of a key, and of the cgroup of the key. It returns the entry that
// decides whether to log.
func (r *Runner) late(key Key, now time.Time) *trouble {
	k := r.keys[key]
	if k == nil {
		k = new(trouble)
		r.keys[key] = k
	}
	k.late++
	k.until = now.Add(pause)
	if key.PID != 0 {
		key.PID = 0
		return r.late(key, now)
	}
	return k
}

// ended is called when work ends, late or not.
func (r *Runner) ended(c *Call) {
	r.mu.Lock()
	if c.late == nil {
		r.mu.Unlock()
		return
	}
	for at := c.late.Key; ; at.PID = 0 {
		k := r.keys[at]
		k.late--
		k.until = r.now().Add(pause)
		if at.PID == 0 {
			break
		}
	}
	r.stats.Stuck--
	n := r.stats.Stuck
	r.mu.Unlock()
	if n == 0 {
		r.log.Info("no read of a file is waiting any more", zap.String("last", c.late.Name))
	}
	if r.changed != nil {
		r.changed(n)
	}
}
