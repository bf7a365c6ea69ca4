// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package stuckread runs work that reads files of other processes, and gives up waiting if
// a read does not return. A file system whose server has ended blocks its readers
// forever. A read of a process's memory blocks while the lock of that memory is held.
// Such a read cannot be cancelled, so it occupies its goroutine and thread until it
// returns. The number of such threads is limited and counted.
package stuckread

import (
	"cmp"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Subject is a file or process that the work waits for.
type Subject struct {
	Key Key
	// Name is the name of the file or process in the log.
	Name string

	stuck atomic.Bool
}

// Stuck reports whether a wait for the subject was given up and has not ended. While
// Stuck returns true, the data that the work uses must not be accessed.
func (s *Subject) Stuck() bool { return s.stuck.Load() }

// Key identifies the cgroup, process, root or device that a wait belongs to. While work
// is late, further work with the same key is limited. The values come from the kernel, so
// a process cannot choose the key of another process.
type Key struct {
	// Cgroup is the content of the process's cgroup file. PID is the process's pid. The
	// processes of a cgroup also have a common limit.
	Cgroup string
	PID    int
	// Root is the result of [procfs.FS.Root]. Device is a device number.
	Root, Device uint64
}

var (
	// ErrLate is returned if the work did not end in time. The work may still end later.
	ErrLate = errors.New("it does not answer")
	// ErrRefused is returned if the work was not started, because other work with the
	// same key was late or too much work is late.
	ErrRefused = errors.New("it did not answer before")
)

// ReadLimit is the maximum wait for one read from a file of another process.
const ReadLimit = time.Second

const (
	// These limits restrict the number of lost threads. maxLate applies to all late work
	// together. The other limits apply to one key.
	maxLate          = 64
	maxLateOfFiles   = 2
	maxLateOfProcess = 1
	maxLateOfCgroup  = 8
	// pause is the time after late work during which no work with the same key starts. If a
	// subject answers only sometimes, it costs at most one deadline per pause.
	pause = 10 * time.Second
	// ticks is the number of consecutive ticks that a wait may last before it is late.
	// Ticks are counted instead of time, because no ticks occur while this process gets no
	// CPU time.
	ticks = 4
	// maxTicks is the maximum number of ticks for all waits of one piece of work
	// together. It ensures that a slow file system does not delay other work for long.
	maxTicks = 4 * ticks
	// quiet is the minimum time between two log lines about one key.
	quiet = 5 * time.Minute
)

// Runner runs work. A nil Runner runs it without a deadline. The methods are safe for
// concurrent use.
type Runner struct {
	log *zap.Logger
	now func() time.Time
	// changed is called without a lock when the number of late pieces of work changes.
	changed func(late int)

	// troubled is the length of keys. It can be read without the lock.
	troubled atomic.Int32

	mu    sync.Mutex
	keys  map[Key]*trouble
	stats Stats
}

// trouble is the state of a key with late work.
type trouble struct {
	late   int
	until  time.Time // no work starts before this time
	logged time.Time
}

// Stats contains counters since the creation of the Runner.
type Stats struct {
	// Stuck is the number of pieces of work that are late now.
	Stuck int
	// Late counts late pieces of work. Refused counts pieces
	// of work that were not started.
	Late, Refused uint64
}

// New returns a Runner. changed and now may be nil.
func New(log *zap.Logger, changed func(late int), now func() time.Time) *Runner {
	if now == nil {
		now = time.Now
	}
	if changed == nil {
		changed = func(int) {}
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

// Refuses reports whether work with this key would be refused now.
func (r *Runner) Refuses(key Key) bool {
	if r == nil || r.troubled.Load() == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats.Stuck >= maxLate || slices.ContainsFunc(key.all(), func(key Key) bool {
		k, ok := r.keys[key]
		return ok && (k.late >= key.bound() || r.now().Before(k.until))
	})
}

// all returns the key itself, and the key of its cgroup if the key names a process.
func (k Key) all() []Key {
	if k.PID == 0 {
		return []Key{k}
	}
	of := k
	of.PID = 0
	return []Key{k, of}
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

// A Call is work in progress. Its methods are called only on the goroutine that runs the
// work. The goroutine that waits in Run reads waits and subject, and may give up a wait.
// The methods of a nil Call only run their functions.
type Call struct {
	runner *Runner
	// of is the subject of Run. It is nil for Take.
	of *Subject
	// waits is the sequence number of the wait in progress. It is 0 if there is no wait.
	// Run sets it to givenUp when it gives up the wait.
	waits atomic.Uint64
	count uint64
	// subject is the subject of the wait in progress.
	subject atomic.Pointer[Subject]
	// exits reports whether the goroutine must end after a wait that was given up.
	exits bool
	// late is the subject of a wait that was given up. The runner's lock guards it.
	late *Subject
}

const givenUp = ^uint64(0)

// Wait runs f, which may block forever on the subject. If subject is nil, the subject of
// Run is used.
func (c *Call) Wait(subject *Subject, f func()) {
	if c == nil {
		f()
		return
	}
	subject = cmp.Or(subject, c.of)
	c.count++
	c.subject.Store(subject)
	c.waits.Store(c.count)
	f()
	if c.waits.CompareAndSwap(c.count, 0) {
		return
	}
	c.runner.mu.Lock() // give sets stuck while it holds the lock
	subject.stuck.Store(false)
	c.runner.mu.Unlock()
	if c.exits {
		runtime.Goexit()
	}
	c.waits.Store(0)
}

// Run runs work on another goroutine and waits until the work ends. It returns ErrLate
// if one wait lasts longer than limit, or if all waits together last longer than four
// times limit. In that case, the work continues when its wait ends. name is the name of
// the file or process in the log.
func (r *Runner) Run(key Key, name string, limit time.Duration, work func(*Call)) error {
	if r.Refuses(key) {
		r.mu.Lock()
		r.stats.Refused++
		r.mu.Unlock()
		return ErrRefused
	}
	return r.run(limit, &Call{runner: r, of: &Subject{Key: key, Name: name}}, work)
}

// Take is like Run, but for work on shared data that another goroutine takes over
// after ErrLate. The goroutine of the late work exits when its wait ends. Each wait
// of the work must have a subject.
func (r *Runner) Take(limit time.Duration, work func(*Call)) error {
	return r.run(limit, &Call{runner: r, exits: true}, work)
}

func (r *Runner) run(limit time.Duration, c *Call, work func(*Call)) error {
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
		if r.give(c, seen) {
			return ErrLate
		}
	}
}

// give gives up a wait. It returns false if the wait has just ended.
func (r *Runner) give(c *Call, wait uint64) bool {
	of := c.subject.Load()
	r.mu.Lock()
	if !c.waits.CompareAndSwap(wait, givenUp) {
		r.mu.Unlock()
		return false
	}
	of.stuck.Store(true)
	c.late = of
	now := r.now()
	for other, k := range r.keys {
		if k.late == 0 && now.After(k.until) && now.Sub(k.logged) > quiet {
			delete(r.keys, other)
		}
	}
	var k *trouble // the state of the cgroup, if the key names a process
	for _, key := range of.Key.all() {
		if k = r.keys[key]; k == nil {
			k = new(trouble)
			r.keys[key] = k
		}
		k.late++
		k.until = now.Add(pause)
	}
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
	r.changed(n)
	return true
}

// ended is called when work ends, whether it was late or not.
func (r *Runner) ended(c *Call) {
	r.mu.Lock()
	if c.late == nil {
		r.mu.Unlock()
		return
	}
	for _, key := range c.late.Key.all() {
		k := r.keys[key]
		k.late--
		k.until = r.now().Add(pause)
	}
	r.stats.Stuck--
	n := r.stats.Stuck
	r.mu.Unlock()
	if n == 0 {
		r.log.Info("no read of a file is waiting any more", zap.String("last", c.late.Name))
	}
	r.changed(n)
}
