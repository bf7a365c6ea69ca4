// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package symbolizer turns code addresses into functions, files and lines.
//
// The first source of an object file is Go's pclntab, which survives stripping and has
// inlined calls. The second source is the ELF symbols of .symtab and .dynsym. A stripped
// .symtab is searched in a separate debug file, by build id, then by .gnu_debuglink, then
// in .gnu_debugdata (MiniDebugInfo). Code without an object file has the names of its
// process's perf map, see package perfmap. Names of the kernel come from kallsyms, and
// names of the vdso come from the collector's own copy. An address without a name keeps its
// mapping and build id, so that a backend can symbolize it later.
//
// A worker opens a file as soon as a mapping is first seen, while the process is alive. It
// opens files only through /proc/PID/map_files or /proc/PID/root, because the path alone
// may be the file of another container. Files are not mapped into memory, because a file
// that shrinks would then kill the collector. Their tables are indexed compactly, and the
// rest is read on demand.
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

// DefaultCacheBytes is the memory for indexes and lines if Config has 0.
const DefaultCacheBytes = 64 << 20

// Config configures a Symbolizer.
type Config struct {
	// Root is the directory where the host's root is mounted. "" means "/".
	Root string
	// CacheBytes bounds the indexes and lines of object files. 0 means DefaultCacheBytes.
	CacheBytes int64
	// MaxObjects bounds the open object files, one descriptor each. 0 means
	// DefaultMaxObjects.
	MaxObjects int
	// Logger may be nil. A file that cannot be read is logged at debug level.
	Logger *zap.Logger
	// Meter measures the worker, but not Resolve. It may be nil.
	Meter *cputime.Meter
	// Budget bounds the time of Meter. It may be nil.
	Budget *cputime.Budget
	// Runner runs reads of files. It may be nil.
	Runner *deadline.Runner
	// Now is the clock. nil means time.Now.
	Now func() time.Time
}

// Outcome is the outcome of one location.
type Outcome int

// The outcomes.
const (
	// Resolved means that the location has at least one line.
	Resolved Outcome = iota
	// NoSymbol means that the file has no name for the address.
	NoSymbol
	// NoFile means that the code has no object file. It is compiled just in time, or
	// anonymous.
	NoFile
	// Unreadable means that the file could not be opened, because the process has ended or
	// the collector lacks the right.
	Unreadable
	// Invalid means that the file is not a valid object file, or too large for the cache.
	Invalid
	// Hidden means that the kernel hides its symbols from the collector.
	Hidden
	// Pending means that the file was not open in time. The location is tried again in the
	// next batch.
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
	// DebugFileFound means that a debug file is used.
	DebugFileFound DebugFile = iota
	// DebugFileAbsent means that the root of a process with the file has no debug file.
	DebugFileAbsent
	// DebugFileUnknown means that the root could not be searched, for example after the
	// process has ended. The search is repeated through another process.
	DebugFileUnknown

	numDebugFiles
)

// String returns the outcome as the attribute value of a metric.
func (d DebugFile) String() string { return [...]string{"found", "absent", "unknown"}[d] }

// Counters are the counters of a Symbolizer since it was made, and its content.
type Counters struct {
	// Locations counts the locations passed to Resolve, by Outcome. Locations that were
	// resolved before are not counted again.
	Locations [numOutcomes]uint64
	// DebugFiles counts the searches for debug files, by DebugFile.
	DebugFiles [numDebugFiles]uint64
	// Dropped counts mappings when Track's queue was full, or their process had caused too
	// much reading. Their files are opened when they are needed.
	Dropped uint64
	// Evictions counts object files and perf maps that were evicted for others.
	Evictions uint64
	// Objects and PerfMaps are the numbers of open files. Bytes is the memory for them and
	// for the kernel's symbols.
	Objects, PerfMaps int
	Bytes             int64
	// FileBytes, MapBytes and KernelBytes are the parts of Bytes.
	FileBytes, MapBytes, KernelBytes int64
}

const (
	kernelPath = "[kernel.kallsyms]"
	// queueLength bounds the mappings that wait for the worker. It is enough for a few
	// hundred programs that start at once.
	queueLength = 2048
	// DefaultMaxObjects is the number of open object files if Config has 0.
	DefaultMaxObjects = 512
	// openTimeout bounds the time that Resolve waits for the worker, in total for a batch.
	// After a wait without success, because a file system hangs, it does not wait for the
	// time of patience.
	openTimeout = 2 * time.Second
	patience    = 5 * time.Second
	// kernelInterval is the minimum time between two reads of kallsyms for unknown
	// addresses. Modules may be loaded at any time.
	kernelInterval = time.Minute
	// closeLimit bounds the wait for a file to be closed at the end.
	closeLimit     = 100 * time.Millisecond
	expireInterval = time.Minute
	// budgetInterval is the time until a file is tried again after there was no CPU time
	// for it.
	budgetInterval = 100 * time.Millisecond
)

// Symbolizer resolves locations. Any goroutine may call Track, but only one at a time may
// call Resolve.
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
	// warned is the time of the last log message about a failed search for a debug file.
	warned time.Time

	// generated has the processes that generate code, by pid. generatedOpen is the number
	// of these with an open perf map. generatedBytes is the memory of all.
	generated          *simplelru.LRU[int, *generated]
	generatedOpen      int
	generatedBytes     int64
	generatedEvictions uint64
	maxMaps            int
	maxGeneratedBytes  int64

	kernel *kernelSymbols

	// closing are the files to close. discarded receives when there are any.
	closing   []*mappedfile.Reader
	discarded chan struct{}
	closed    bool

	// batch is the number of the current batch, starting at 1. hot has the processes of hot
	// units in it, with the names of these units. Both change with the lock held.
	batch uint64
	hot   map[int]string

	kernelShown error

	// Only Resolve uses the fields below.

	// call has the waits of the current Take.
	call *deadline.Call

	// made is the effort for the names of this batch, madeBy is the effort by pid.
	made   effort
	madeBy map[int]effort
	// waited is the time spent waiting for the worker in this batch.
	waited time.Duration

	vdso        *object
	openTimeout time.Duration
	giveUpUntil time.Time
	// kernelReady is closed when the requested read of kallsyms has ended. It is nil before
	// the first request.
	kernelReady chan struct{}
	kernelAsked time.Time
}

// request is a request to the worker, while Resolve waits. It has a file or a process's
// perf map. Without both it is for the kernel's symbols.
type request struct {
	file      *file
	key       mappedfile.File
	mapping   *samples.Mapping
	generated *generated
	ready     chan struct{}
}

// New returns a Symbolizer with a worker that runs until Close.
func New(cfg Config) (*Symbolizer, error) {
	s, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	s.start()
	return s, nil
}

// prepare returns a Symbolizer without a running worker.
func prepare(cfg Config) (*Symbolizer, error) {
	cfg.Root = cmp.Or(cfg.Root, "/")
	cfg.CacheBytes = cmp.Or(cfg.CacheBytes, DefaultCacheBytes)
	cfg.MaxObjects = cmp.Or(cfg.MaxObjects, DefaultMaxObjects)
	cfg.Logger = cmp.Or(cfg.Logger, zap.NewNop())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	// Perf maps are written by processes, and must not evict object files, which processes
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

// Close stops the worker, waits for it, and closes all files. Files that do not answer are
// abandoned.
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

// closeEvicted closes the files that are no longer used, except files that do not answer.
func (s *Symbolizer) closeEvicted(limit time.Duration) {
	s.mu.Lock()
	closing := s.closing
	s.closing = nil
	s.mu.Unlock()
	for _, f := range closing {
		if f.Stuck() || errors.Is(s.cfg.Runner.Run(f.Key(), f.Name(), limit, func(c *deadline.Call) {
			_ = f.CloseIn(c) // it was only read, so no data can be lost
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
		// Resolve is waiting, so its requests go first.
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
			s.closeEvicted(deadline.ReadLimit) // the files that did not answer before
		case <-s.discarded:
			s.closeEvicted(deadline.ReadLimit)
		case <-s.done:
			return
		}
	}
}

// spend does work for a process. The pid 0 is the host.
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
	// The kernel's symbols take a part of the memory for files, and at most three quarters.
	all := s.cfg.CacheBytes - s.maxGeneratedBytes
	s.cache.maxBytes = max(all-k.bytes(), all/4)
}

// Track requests to open the file behind m, while its process is alive. It never blocks. If
// the queue is full, the file is opened when it is first needed.
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

// standing decides the order of eviction when memory is short. Objects without samples in
// the current batch or the last one are evicted first, in the order of their last use. Then
// the largest objects are evicted. Objects of hot units are evicted last.
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

// before reports whether a is evicted before b.
func (a standing) before(b standing) bool {
	switch {
	case a.class != b.class:
		return a.class < b.class
	case a.batch != b.batch:
		return a.batch < b.batch
	}
	return a.size > b.size
}

// effort is the cost of making names, as memory and time. The time is CPU time, or the wait
// for a file that does not answer, because other names wait meanwhile.
type effort struct {
	bytes int64
	time  time.Duration
}

func (e *effort) add(of effort) { e.bytes, e.time = e.bytes+of.bytes, e.time+of.time }

func (e effort) within(parts, of int64) bool {
	return e.bytes < maxMade*parts/of && e.time < maxMaking*time.Duration(parts)/time.Duration(of)
}

// The maximum effort for names in one batch, in bytes and in time. A process may take an
// eighth of it, and a process of a hot unit may take half. All processes of hot units
// together may take it a second time. At the bound an address stays without a name until
// the next batch.
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

// Begin begins a batch. hot has the processes of hot units, with the names of these units.
// Their names and files are evicted last.
func (s *Symbolizer) Begin(hot map[int]string) {
	s.made, s.waited = effort{}, 0
	clear(s.madeBy)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batch++
	s.hot = hot
}

// Release removes the names of a location once its batch was emitted. Only the symbolizer
// remembers names, because it counts their memory. A stack that is not seen again must not
// keep them. A name that Resolve did not make, such as [no stack], stays.
func Release(l *samples.Location) {
	if len(l.Lines) > 0 && l.Counted != 0 {
		l.Lines, l.Resolved = nil, false
	}
}

// Take runs work, which calls only Resolve of s. It returns an error if a file does not
// answer. The work then ended in the middle, and locations get no names of that file until
// it answers.
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

// Resolve sets l.Lines, l.Type, the build ids of l.Mapping, and l.Resolved. l is a location
// of the process pid, which is 0 if unknown. A location of the kernel has Type
// samples.FrameKernel and may have no mapping.
//
// If the file is not open yet, Resolve waits, for at most openTimeout in a batch. After
// that l.Resolved stays false, and the caller tries again in the next batch. It also stays
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

// objectOf finds or opens the object file behind m. An object with another outcome than
// Resolved has a build id but no names.
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

// await waits until ready is closed. After a wait without success it does not wait again
// for the time of patience.
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

// KernelSymbols returns the reason why kernel functions have no names, with a remedy. It
// returns nil if they have names.
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
