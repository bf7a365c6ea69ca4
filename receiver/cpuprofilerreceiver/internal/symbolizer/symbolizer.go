// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package symbolizer turns code addresses into functions, files and lines.
//
// The sources of an object file are, in this order: Go's pclntab, which survives
// stripping and knows inlined calls, then the ELF symbols of .symtab and .dynsym. A
// stripped .symtab is searched in a separate debug file, by build id, then by
// .gnu_debuglink, then in .gnu_debugdata (MiniDebugInfo). Code that no object file
// backs has the names of the perf map that its process writes; see package perfmap.
// Names of the kernel come from kallsyms, those of the vdso from the collector's own
// copy. An address without a name keeps its mapping and build id, so that a backend can
// symbolize it later.
//
// A worker opens a file as soon as a mapping is first seen, while the process still
// lives, and only through /proc/PID/map_files or /proc/PID/root: the path alone may be
// another container's file. Files are not mapped into memory, since a file that shrinks
// would then kill the collector. Their tables are indexed compactly, and the rest is
// read on demand.
package symbolizer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/token"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/deadline"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
)

// DefaultCacheBytes is the memory for indexes and lines where Config has 0.
const DefaultCacheBytes = 64 << 20

// Config configures a Symbolizer.
type Config struct {
	// Root is the directory where the host's root is mounted; "" is "/".
	Root string
	// CacheBytes bounds the indexes and lines of object files; 0 is
	// DefaultCacheBytes.
	CacheBytes int64
	// MaxObjects bounds the open object files, one descriptor each; 0 is
	// DefaultMaxObjects.
	MaxObjects int
	// Logger may be nil. A file that cannot be read is logged at debug level.
	Logger *zap.Logger
	// Meter measures the worker, not Resolve. It may be nil.
	Meter *cputime.Meter
	// Budget bounds what Meter measures. It may be nil.
	Budget *cputime.Budget
	// Runner runs what reads files. It may be nil.
	Runner *deadline.Runner
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Outcome is the outcome of one location.
type Outcome int

// The outcomes.
const (
	// Resolved: it has at least one line.
	Resolved Outcome = iota
	// NoSymbol: its file has no name for the address.
	NoSymbol
	// NoFile: no object file backs the code; it is compiled just in time, or anonymous.
	NoFile
	// Unreadable: the file could not be opened, because the process has ended or the
	// collector lacks the right.
	Unreadable
	// Invalid: the file is not a valid object file, or too large for the cache.
	Invalid
	// Hidden: the kernel hides its symbols from the collector.
	Hidden
	// Pending: the file was not open in time. The location is tried again with the next
	// batch.
	Pending

	numOutcomes
)

// String returns the outcome as the attribute value of a metric.
func (o Outcome) String() string {
	return [...]string{"resolved", "no_symbol", "no_file", "unreadable", "invalid", "hidden", "pending"}[o]
}

// Outcomes returns every outcome, in order.
func Outcomes() []Outcome {
	out := make([]Outcome, numOutcomes)
	for i := range out {
		out[i] = Outcome(i)
	}
	return out
}

// DebugFile is the outcome of the search for the debug file of a stripped file.
type DebugFile int

// The outcomes.
const (
	// DebugFileFound: it is used.
	DebugFileFound DebugFile = iota
	// DebugFileAbsent: the root of a process that maps the file has none.
	DebugFileAbsent
	// DebugFileUnknown: that root could not be searched, such as where the process has
	// ended. It is searched again through another process.
	DebugFileUnknown

	numDebugFiles
)

// String returns the outcome as the attribute value of a metric.
func (d DebugFile) String() string { return [...]string{"found", "absent", "unknown"}[d] }

// Counters are the counters of a Symbolizer since it was made, and its content.
type Counters struct {
	// Locations counts the locations given to Resolve, by Outcome. Those that were
	// resolved before are not counted again.
	Locations [numOutcomes]uint64
	// DebugFiles counts the searches for debug files, by DebugFile.
	DebugFiles [numDebugFiles]uint64
	// Dropped counts mappings that found Track's queue full, or whose process has caused
	// too much reading. Their files are opened when they are needed.
	Dropped uint64
	// Evictions counts object files and perf maps that were evicted for others.
	Evictions uint64
	// Objects and PerfMaps are the numbers of open files, Bytes the memory for them and
	// for the kernel's symbols.
	Objects, PerfMaps int
	Bytes             int64
	// FileBytes, MapBytes and KernelBytes are its parts.
	FileBytes, MapBytes, KernelBytes int64
}

const (
	kernelPath = "[kernel.kallsyms]"
	// queueLength bounds the mappings that wait for the worker: those of a few hundred
	// programs that start at once.
	queueLength = 2048
	// DefaultMaxObjects is the number of open object files where Config has 0.
	DefaultMaxObjects = 512
	// openTimeout bounds how long Resolve waits for the worker, in all for a batch. After
	// it waited in vain, since a file system hangs, it does not wait for the time of
	// patience.
	openTimeout = 2 * time.Second
	patience    = 5 * time.Second
	// kernelInterval is the minimum time between two readings of kallsyms for addresses
	// that are not in it: modules are loaded at any time.
	kernelInterval = time.Minute
	// closeLimit bounds how long the end waits for a file to be closed.
	closeLimit     = 100 * time.Millisecond
	expireInterval = time.Minute
	// budgetInterval is the time until a file is tried again for which there was no CPU
	// time.
	budgetInterval = 100 * time.Millisecond
)

// Symbolizer resolves locations. Track may be called from any goroutine,
// Resolve from one at a time.
type Symbolizer struct {
	cfg Config
	log *zap.Logger

	queue   chan *samples.Mapping
	urgent  chan request
	done    chan struct{}
	stop    sync.Once
	worker  sync.WaitGroup
	dropped atomic.Uint64

	mu         sync.Mutex
	cache      *cache
	locations  [numOutcomes]uint64
	debugFiles [numDebugFiles]uint64
	// warned is the time at which a debug file that could not be looked for was last
	// logged.
	warned time.Time

	// generated has the processes that generate code, by pid. generatedOpen of them have
	// an open perf map, generatedBytes is the memory of all.
	generated          *simplelru.LRU[int, *generated]
	generatedOpen      int
	generatedBytes     int64
	generatedEvictions uint64
	maxMaps            int
	maxGeneratedBytes  int64

	kernel *kernelSymbols

	// closing are the files that are to be closed; discarded receives when there are.
	closing   []*mappedfile.Reader
	discarded chan struct{}
	closed    bool

	// batch is the number of the current batch, from 1; hot has the processes of hot
	// units in it, with the names of these. Both change with the lock held.
	batch uint64
	hot   map[int]string

	kernelShown error

	// These are Resolve's.

	// call has the waits of the current Take.
	call *deadline.Call

	// made is the effort for the names of this batch, madeBy the same by pid.
	made   effort
	madeBy map[int]effort
	// waited is the time that was waited for the worker in this batch.
	waited time.Duration

	vdso        *object
	openTimeout time.Duration
	giveUpUntil time.Time
	// kernelReady is closed when the requested reading of kallsyms is over; nil before
	// the first request.
	kernelReady chan struct{}
	kernelAsked time.Time
}

// request is for the worker, while Resolve waits: a file, a process's perf map or,
// without either, the kernel's symbols.
type request struct {
	file      *file
	key       mappedfile.File
	mapping   *samples.Mapping
	generated *generated
	ready     chan struct{}
}

// New returns a Symbolizer whose worker runs until Close.
func New(cfg Config) (*Symbolizer, error) {
	s, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	s.start()
	return s, nil
}

// prepare returns a Symbolizer whose worker does not run.
func prepare(cfg Config) (*Symbolizer, error) {
	cfg.Root = cmp.Or(cfg.Root, "/")
	cfg.CacheBytes = cmp.Or(cfg.CacheBytes, DefaultCacheBytes)
	cfg.MaxObjects = cmp.Or(cfg.MaxObjects, DefaultMaxObjects)
	cfg.Logger = cmp.Or(cfg.Logger, zap.NewNop())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	// Perf maps, which processes write, must not evict object files, which processes
	// share.
	maxGeneratedBytes, maxMaps := cfg.CacheBytes/2, max(1, cfg.MaxObjects/4)
	c, err := newCache(cfg.CacheBytes-maxGeneratedBytes, cfg.MaxObjects-cfg.MaxObjects/4)
	if err != nil {
		return nil, fmt.Errorf("making the symbol cache: %w", err)
	}
	s := &Symbolizer{
		cfg: cfg, log: cfg.Logger, cache: c, openTimeout: openTimeout,
		maxMaps: maxMaps, maxGeneratedBytes: maxGeneratedBytes,
		queue:       make(chan *samples.Mapping, queueLength),
		urgent:      make(chan request, 1),
		done:        make(chan struct{}),
		discarded:   make(chan struct{}, 1),
		kernelShown: kernelSymbolsShown(cfg.Root),
		batch:       1,
		madeBy:      make(map[int]effort),
	}
	c.discard = s.discard
	c.standing = func(o *object) standing { return s.standing(o.batch, o.hot+1 >= s.batch && o.hot > 0, o.size) }
	if s.generated, err = simplelru.NewLRU(maxGenerated, s.dropGenerated); err != nil {
		return nil, fmt.Errorf("making room for %d processes that generate code: %w", maxGenerated, err)
	}
	if image, err := VDSO(); err != nil {
		s.log.Debug("no symbols of the vdso", zap.Error(err))
	} else if s.vdso, err = newObject(bytes.NewReader(image), int64(len(image)), nil); err == nil {
		_ = s.vdso.index(int64(len(image))) // without symbols it still has its build id
	}
	return s, nil
}

func (s *Symbolizer) start() { s.worker.Go(s.work) }

// Close stops the worker, waits for it, and closes all files. Those that do not answer
// are left behind.
func (s *Symbolizer) Close() {
	s.stop.Do(func() { close(s.done) })
	s.worker.Wait()
	s.mu.Lock()
	s.closed = true
	for o := range s.cache.open {
		s.cache.evict(o)
	}
	s.generated.Purge()
	s.mu.Unlock()
	s.closeEvicted(closeLimit)
}

// closeEvicted closes the files that are not used any more, but for those that do not
// answer.
func (s *Symbolizer) closeEvicted(limit time.Duration) {
	s.mu.Lock()
	closing := s.closing
	s.closing = nil
	s.mu.Unlock()
	for _, f := range closing {
		if f.Stuck() || errors.Is(s.cfg.Runner.Run(f.Key(), f.Name(), limit, func(c *deadline.Call) {
			_ = f.CloseIn(c) // opened for reading: nothing to lose
		}), deadline.ErrRefused) {
			s.mu.Lock()
			s.closing = append(s.closing, f)
			s.mu.Unlock()
		}
	}
}

// discard makes the worker close a file. It is called with the lock held.
func (s *Symbolizer) discard(f *mappedfile.Reader) {
	s.closing = append(s.closing, f)
	token.Put(s.discarded)
}

func (s *Symbolizer) work() {
	tick := time.NewTicker(expireInterval)
	defer tick.Stop()
	var next *samples.Mapping // of the queue
	for {
		// Resolve waits, so it goes first.
		select {
		case r := <-s.urgent:
			s.serve(r)
			continue
		case <-s.done:
			return
		default:
		}
		queue := s.queue
		var later <-chan time.Time
		switch {
		case next == nil:
		case s.cfg.Budget.May(next.PID):
			s.tracked(next)
			next = nil
			continue
		case !s.cfg.Budget.Light(next.PID):
			s.dropped.Add(1)
			next = nil
		default: // it waits, and those behind it
			queue, later = nil, time.After(budgetInterval)
		}
		select {
		case r := <-s.urgent:
			s.serve(r)
		case next = <-queue:
		case <-later:
		case <-tick.C:
			s.mu.Lock()
			s.cache.expire(s.cfg.Now())
			s.expireGenerated(s.cfg.Now())
			s.mu.Unlock()
			s.closeEvicted(deadline.ReadLimit) // those that did not answer before
		case <-s.discarded:
			s.closeEvicted(deadline.ReadLimit)
		case <-s.done:
			return
		}
	}
}

// spend does work for a process; 0 is the host.
func (s *Symbolizer) spend(pid int, work func()) { s.cfg.Budget.Spend(pid, s.cfg.Meter.Do(work)) }

func (s *Symbolizer) serve(r request) {
	switch {
	case r.file != nil:
		s.load(r.key, r.file, r.mapping)
	case r.generated != nil:
		s.serveGenerated(r)
	default:
		s.spend(0, s.readKernel)
		close(r.ready)
	}
}

func (s *Symbolizer) readKernel() {
	k, err := loadKernelSymbols(s.cfg.Root)
	if err != nil {
		s.log.Debug("no kernel symbols", zap.Error(err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kernel = k
	// They take a part of what is for files, and at most three quarters.
	all := s.cfg.CacheBytes - s.maxGeneratedBytes
	s.cache.maxBytes = max(all-k.bytes(), all/4)
}

// Track requests that the file behind m be opened, while its process lives. It never
// blocks: where the queue is full, the file is opened when it is first needed.
func (s *Symbolizer) Track(m *samples.Mapping) {
	if !backed(m) {
		return
	}
	select {
	case s.queue <- m:
	default:
		s.dropped.Add(1)
	}
}

// backed reports whether there may be a file behind m.
func backed(m *samples.Mapping) bool { return m.Inode != 0 && strings.HasPrefix(m.Path, "/") }

// standing decides what gives way first when memory is short. What had no
// samples in the current batch or the last one gives way first, in the order of its last
// use; then the largest; what hot units use gives way last.
type standing struct {
	class int // 0 idle, 1 in use, 2 of a hot unit
	batch uint64
	size  int64
}

func (s *Symbolizer) standing(batch uint64, hot bool, size int64) standing {
	switch {
	case batch+1 < s.batch:
		return standing{batch: batch}
	case hot:
		return standing{class: 2, size: size}
	}
	return standing{class: 1, size: size}
}

// before reports whether a gives way before b.
func (a standing) before(b standing) bool {
	switch {
	case a.class != b.class:
		return a.class < b.class
	case a.batch != b.batch:
		return a.batch < b.batch
	}
	return a.size > b.size
}

// effort is the cost of making names: memory, and time. The time is CPU time, or the wait
// for a file that does not answer, since other names wait meanwhile.
type effort struct {
	bytes int64
	time  time.Duration
}

func (e *effort) add(of effort) { e.bytes, e.time = e.bytes+of.bytes, e.time+of.time }

func (e effort) within(parts, of int64) bool {
	return e.bytes < maxMade*parts/of && e.time < maxMaking*time.Duration(parts)/time.Duration(of)
}

// What names may be made in one batch, in bytes and in time. A process may take an
// eighth of it, one of a hot unit half; those of hot units together may take it once more.
// At the bound an address stays without a name until the next batch.
const (
	maxMade   = 16 << 20
	maxMaking = 2 * time.Second
)

// mayName reports whether another name of a process may be made in this batch.
func (s *Symbolizer) mayName(pid int) bool {
	if s.hot[pid] != "" {
		return s.made.within(2, 1) && s.madeBy[pid].within(1, 2)
	}
	return s.made.within(1, 1) && s.madeBy[pid].within(1, 8)
}

// named counts names that were made for a process.
func (s *Symbolizer) named(pid int, took effort) {
	s.made.add(took)
	by := s.madeBy[pid]
	by.add(took)
	s.madeBy[pid] = by
}

// Begin begins a batch. hot has the processes of hot units, whose names and files give
// way last, with the names of these units.
func (s *Symbolizer) Begin(hot map[int]string) {
	s.made, s.waited = effort{}, 0
	clear(s.madeBy)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batch++
	s.hot = hot
}

// Release takes the names of a location back once its batch was emitted. They are
// remembered here alone, where they are counted: a stack that nobody sees again must
// not keep them. A name that Resolve did not make, such as [no stack], stays.
func Release(l *samples.Location) {
	if len(l.Lines) > 0 && l.Counted != 0 {
		l.Lines, l.Resolved = nil, false
	}
}

// Take runs work that calls Resolve and nothing else of s. It returns an error where a
// file does not answer: then the work ended in the middle, and no location has a name
// of that file any more until it answers.
func (s *Symbolizer) Take(work func()) error {
	began := s.cfg.Now()
	err := s.cfg.Runner.Take(deadline.ReadLimit, func(c *deadline.Call) {
		s.call = c
		work()
		s.call = nil
	})
	if err != nil {
		s.made.time += s.cfg.Now().Sub(began)
	}
	return err
}

// Resolve sets l.Lines, l.Type, the build ids of l.Mapping, and l.Resolved. l is a
// location of the process pid; 0 is an unknown one. A location of the kernel has Type
// samples.FrameKernel and may have no mapping.
//
// Where the file is not open yet, Resolve waits, for at most openTimeout in a batch; then
// l.Resolved stays false, and the caller tries again with the next batch. It also stays
// false for code that the process generates, which may be replaced by another function.
func (s *Symbolizer) Resolve(pid int, l *samples.Location) {
	if l.Resolved {
		return
	}
	pc := l.Address
	if !l.Leaf && pc > 0 {
		pc-- // into the call before the return address
	}
	var outcome Outcome
	var again bool
	if l.Type == samples.FrameKernel || l.Mapping != nil && l.Mapping.Path == kernelPath {
		l.Type = samples.FrameKernel
		outcome = s.resolveKernel(l, pc)
	} else {
		if outcome = s.resolveUser(pid, l, pc); outcome == NoFile && (l.Mapping == nil || l.Mapping.Path != VDSOPath) {
			outcome, again = s.resolveGenerated(pid, l, pc)
		}
	}
	l.Resolved = outcome != Pending && !again
	if l.Counted == uint8(outcome)+1 {
		return
	}
	l.Counted = uint8(outcome) + 1
	s.mu.Lock()
	s.locations[outcome]++
	s.mu.Unlock()
}

func (s *Symbolizer) resolveUser(pid int, l *samples.Location, pc uint64) Outcome {
	l.Type = cmp.Or(l.Type, samples.FrameNative)
	m := l.Mapping
	if m == nil {
		return NoFile
	}
	o, outcome := s.objectOf(pid, m)
	if o == nil {
		return outcome
	}
	if m.BuildID == "" && m.GoBuildID == "" {
		m.BuildID, m.GoBuildID = o.buildID, o.goBuildID
	}
	if outcome != Resolved {
		return outcome
	}
	addr, ok := o.f.Address(pc - m.Start + m.FileOffset)
	if !ok {
		return NoSymbol
	}
	if o.stuck() {
		return Pending
	}
	a, ok := o.known[addr]
	var err error
	if !ok {
		if !s.mayName(pid) || s.cfg.Runner.Refuses(mappedfile.Reading(m)) {
			return Pending
		}
		o.use(s.call)
		var made effort
		span := cputime.Begin()
		a, made.bytes, err = o.lookup(addr)
		made.time = span.End()
		s.named(pid, made)
		if o != s.vdso {
			s.mu.Lock()
			s.cache.account(o)
			s.mu.Unlock()
		}
	}
	switch {
	case errors.Is(err, os.ErrClosed):
		return Pending // it was just evicted
	case err != nil:
		return Invalid
	case len(a.lines) == 0:
		return NoSymbol
	}
	l.Lines, l.Type = a.lines, a.kind
	return Resolved
}

// objectOf finds or opens the object file behind m. An object with another outcome
// than Resolved has a build id and no names.
func (s *Symbolizer) objectOf(pid int, m *samples.Mapping) (*object, Outcome) {
	if m.Path == VDSOPath && s.vdso != nil {
		return s.vdso, Resolved
	}
	if !backed(m) {
		return nil, NoFile
	}
	key := mappedfile.FileOf(m)
	s.mu.Lock()
	f, ok := s.cache.files.Get(key)
	if !ok || !f.loading() && f.failed {
		now := s.cfg.Now()
		if !ok || f.retry(m, now) {
			if len(s.urgent) == cap(s.urgent) || !s.cfg.Budget.May(m.PID) { // Resolve is the only sender
				s.mu.Unlock()
				return nil, Pending
			}
			f = s.cache.newFile(key, now)
			s.urgent <- request{file: f, key: key, mapping: m}
		}
	}
	s.mu.Unlock()
	if f.late.Load() && f.loading() || !s.await(f.ready) {
		return nil, Pending
	}
	if f.failed {
		return f.object, f.outcome
	}
	s.mu.Lock()
	now := s.cfg.Now()
	if f.look(now) {
		s.Track(m) // this process lives, probably
	}
	s.cache.use(f.object, now)
	f.object.batch = s.batch
	if s.hot[pid] != "" {
		f.object.hot = s.batch
	}
	s.mu.Unlock()
	return f.object, Resolved
}

// await waits until ready is closed. It does not wait again for the time of patience
// after that was in vain.
func (s *Symbolizer) await(ready <-chan struct{}) bool {
	select {
	case <-ready:
		return true
	default:
	}
	began := s.cfg.Now()
	if began.Before(s.giveUpUntil) || s.waited >= s.openTimeout {
		return false
	}
	defer func() { s.waited += s.cfg.Now().Sub(began) }()
	timeout := time.NewTimer(s.openTimeout - s.waited)
	defer timeout.Stop()
	select {
	case <-ready:
		return true
	case <-s.done:
	case <-timeout.C:
		s.giveUpUntil = s.cfg.Now().Add(patience)
	}
	return false
}

func (s *Symbolizer) resolveKernel(l *samples.Location, pc uint64) Outcome {
	if s.kernelShown != nil {
		return Hidden
	}
	if s.kernelReady == nil && !s.askKernel() {
		return Pending
	}
	s.mu.Lock()
	k := s.kernel
	s.mu.Unlock()
	if k == nil {
		if !s.await(s.kernelReady) {
			return Pending
		}
		s.mu.Lock()
		k = s.kernel
		s.mu.Unlock()
		if k == nil {
			return Hidden
		}
	}
	if m := l.Mapping; m != nil && m.BuildID == "" {
		m.BuildID = k.buildID
	}
	if l.Lines = k.lines(pc); len(l.Lines) > 0 {
		return Resolved
	}
	if s.cfg.Now().Sub(s.kernelAsked) >= kernelInterval {
		s.askKernel()
	}
	return NoSymbol
}

// askKernel makes the worker read kallsyms.
func (s *Symbolizer) askKernel() bool {
	ready := make(chan struct{})
	select {
	case s.urgent <- request{ready: ready}:
		s.kernelReady, s.kernelAsked = ready, s.cfg.Now()
		return true
	default:
		return false
	}
}

// KernelSymbols returns why there are no names of kernel functions, and what would
// allow them; nil where there are.
func (s *Symbolizer) KernelSymbols() error { return s.kernelShown }

// Counters returns the current counters.
func (s *Symbolizer) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := Counters{
		Locations: s.locations, DebugFiles: s.debugFiles, Dropped: s.dropped.Load(), Evictions: s.cache.evictions + s.generatedEvictions,
		Objects: len(s.cache.open), PerfMaps: s.generatedOpen,
		FileBytes: s.cache.bytes, MapBytes: s.generatedBytes,
	}
	if s.kernel != nil {
		c.KernelBytes = s.kernel.bytes()
	}
	c.Bytes = c.FileBytes + c.MapBytes + c.KernelBytes
	return c
}
