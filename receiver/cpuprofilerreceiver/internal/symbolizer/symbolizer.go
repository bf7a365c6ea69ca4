// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package symbolizer turns code addresses into functions, files and lines.
//
// Go's pclntab is the first source of names for an object file, because it survives
// stripping and lists inlined calls. The second source is the ELF symbols in .symtab and
// .dynsym. If .symtab is stripped, the symbolizer looks for its symbols in a separate
// debug file, by build id and then by .gnu_debuglink, and after that in .gnu_debugdata
// (MiniDebugInfo). Code without an object file gets its names from the perf map of its
// process (package perfmap). Kernel names come from kallsyms, and names of the vdso come
// from the collector's own copy. An address without a name keeps its mapping and build
// id, so that a backend can symbolize it later.
//
// A worker opens a file as soon as a mapping is first seen, while the process is alive.
// It opens files only through /proc/PID/map_files or /proc/PID/root, because the same
// path in the collector's container may be a different file. Files are not mapped into
// memory, because the collector would crash if a mapped file shrank. The symbolizer keeps
// a compact index of each file in memory and reads the rest on demand.
package symbolizer

import (
	"bytes"
	"cmp"
	"errors"
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
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// DefaultCacheBytes is used if Config.CacheBytes is 0.
const DefaultCacheBytes = 64 << 20

// Config configures a Symbolizer.
type Config struct {
	// Access measures and limits the CPU time of the worker, but not of Resolve.
	mappedfile.Access
	// CacheBytes bounds the memory for indexes and names. 0 means DefaultCacheBytes.
	CacheBytes int64
	// MaxObjects bounds the file descriptors of open files. 0 means DefaultMaxObjects.
	MaxObjects int
	// Logger may be nil. A file that cannot be read is logged at debug level.
	Logger *zap.Logger
	// Now is the clock. nil means time.Now.
	Now func() time.Time
}

// Outcome is the result of resolving one location.
type Outcome int

// The outcomes.
const (
	// Resolved means that the location has at least one line.
	Resolved Outcome = iota
	// NoSymbol means that the file has no name for the address.
	NoSymbol
	// NoFile means that the code has no object file, such as code compiled just in time.
	NoFile
	// Unreadable means that the file could not be opened, because the process has ended or
	// the collector lacks permission.
	Unreadable
	// Invalid means that the file is not a valid object file, or is too large for the
	// cache.
	Invalid
	// Hidden means that the kernel hides its symbols from the collector.
	Hidden
	// Pending means that the file was not opened in time. The location is resolved again in
	// the next batch.
	Pending

	numOutcomes
)

// String returns the outcome as the attribute value of a metric.
func (o Outcome) String() string {
	return [...]string{"resolved", "no_symbol", "no_file", "unreadable", "invalid", "hidden", "pending"}[o]
}

// DebugFile is the outcome of the search for the debug file of a stripped file.
type DebugFile int

// The outcomes.
const (
	// DebugFileFound means that a debug file is used.
	DebugFileFound DebugFile = iota
	// DebugFileAbsent means that the process's root directory has no debug file.
	DebugFileAbsent
	// DebugFileUnknown means that the root directory could not be searched, for example
	// because the process has ended. The search is repeated through another process.
	DebugFileUnknown

	numDebugFiles
)

// String returns the outcome as the attribute value of a metric.
func (d DebugFile) String() string { return [...]string{"found", "absent", "unknown"}[d] }

// Counters contains the counters of a Symbolizer since its
// creation, and its current memory use.
type Counters struct {
	// Locations counts the locations passed to Resolve, by Outcome. Locations that were
	// resolved before are not counted again.
	Locations [numOutcomes]uint64
	// DebugFiles counts the searches for debug files, by DebugFile.
	DebugFiles [numDebugFiles]uint64
	// Dropped counts mappings whose files the worker did not open in advance. A mapping
	// is dropped if the queue is full, or if CPU time is short and the mapping's process
	// has used much of it. The file of a dropped mapping is opened on first use.
	Dropped uint64
	// Evictions counts object files and perf maps that were evicted to make room.
	Evictions uint64
	// Objects is the number of open object files. PerfMaps is the number of open perf maps.
	// Bytes is the memory of all indexes and names, including the kernel's symbols.
	Objects, PerfMaps int
	Bytes             int64
	// FileBytes, MapBytes and KernelBytes are the parts of Bytes for object files, perf maps
	// and the kernel's symbols.
	FileBytes, MapBytes, KernelBytes int64
}

const (
	kernelPath = "[kernel.kallsyms]"
	// queueLength is large enough for a few hundred programs that start at once.
	queueLength = 2048
	// DefaultMaxObjects is used if Config.MaxObjects is 0.
	DefaultMaxObjects = 512
	// openTimeout limits the total time that Resolve waits for the worker in a batch. If a
	// wait times out because a file system hangs, Resolve does not wait again until patience
	// has passed.
	openTimeout = 2 * time.Second
	patience    = 5 * time.Second
	// kernelInterval is the minimum time between two reads of kallsyms for
	// unknown addresses. An unknown address may belong to a module that
	// was loaded after the last read.
	kernelInterval = time.Minute
	// closeLimit is the time that Close waits for each file to be closed.
	closeLimit     = 100 * time.Millisecond
	expireInterval = time.Minute
	// budgetInterval is the retry interval for a mapping that has to wait for CPU time.
	budgetInterval = 100 * time.Millisecond
)

// Symbolizer resolves locations. Any goroutine may call Track, but only one goroutine at a
// time may call Resolve.
type Symbolizer struct {
	cfg Config
	log *zap.Logger

	queue   chan *samples.Mapping
	urgent  chan func() // work for which Resolve waits
	done    chan struct{}
	stop    sync.Once
	worker  sync.WaitGroup
	dropped atomic.Uint64

	mu         sync.Mutex
	locations  [numOutcomes]uint64
	debugFiles [numDebugFiles]uint64
	// warned is the time of the last log message about a failed search for a debug file.
	warned time.Time

	// files contains the state of files. objects contains the open object files, and maps
	// contains the processes that generate code, by pid. images finds an object by its image.
	files   *simplelru.LRU[mappedfile.File, *file]
	objects bounded[*object, *object]
	maps    bounded[int, *generated]
	images  map[image]*object

	kernel atomic.Pointer[kernelSymbols]

	// closing lists the files that the worker has to close. discarded wakes up the worker.
	closing   []*mappedfile.Reader
	discarded chan struct{}
	closed    bool

	// batch is the number of the current batch, starting at 1. hot maps the processes
	// of hot units in the batch to the names of their units. batch and hot are
	// written only with the lock held.
	batch uint64
	hot   map[int]string

	kernelShown error

	// After New, only Begin, Take and Resolve use the fields below.

	// call is the stuckread.Call of the current Take. All file
	// reads that may block use this call.
	call *stuckread.Call

	// made is the effort spent on names in this batch. madeBy is the part of this
	// effort for each process, by pid.
	made   effort
	madeBy map[int]effort
	// waited is the time spent waiting for the worker in this batch.
	waited time.Duration

	vdso        *object
	openTimeout time.Duration
	giveUpUntil time.Time
	// kernelReady is closed when the worker has read kallsyms. It is nil before the first
	// request.
	kernelReady chan struct{}
	kernelAsked time.Time
}

// New returns a Symbolizer with a worker that runs until Close.
func New(cfg Config) *Symbolizer {
	s := prepare(cfg)
	s.start()
	return s
}

// prepare returns a Symbolizer without a running worker.
func prepare(cfg Config) *Symbolizer {
	cfg.Root = cmp.Or(cfg.Root, "/")
	cfg.CacheBytes = cmp.Or(cfg.CacheBytes, DefaultCacheBytes)
	cfg.MaxObjects = cmp.Or(cfg.MaxObjects, DefaultMaxObjects)
	cfg.Logger = cmp.Or(cfg.Logger, zap.NewNop())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	// Perf maps have separate limits, because any process can write a large perf map. A perf
	// map must not evict object files that many processes share.
	s := &Symbolizer{
		cfg: cfg, log: cfg.Logger, openTimeout: openTimeout,
		objects:     bounded[*object, *object]{maxBytes: cfg.CacheBytes - cfg.CacheBytes/2, maxDescriptors: cfg.MaxObjects - cfg.MaxObjects/4},
		maps:        bounded[int, *generated]{maxBytes: cfg.CacheBytes / 2, maxDescriptors: max(1, cfg.MaxObjects/4)},
		queue:       make(chan *samples.Mapping, queueLength),
		urgent:      make(chan func(), 1),
		done:        make(chan struct{}),
		discarded:   make(chan struct{}, 1),
		kernelShown: kernelSymbolsShown(cfg.Root),
		batch:       1,
		madeBy:      make(map[int]effort),
		images:      make(map[image]*object),
	}
	s.files, _ = simplelru.NewLRU(maxFiles, s.dropFile) // fails only for a size below 1
	s.objects.init(maxFiles, s.dropObject, func(o *object) standing { return s.standing(&o.cached, o.hot+1 >= s.batch && o.hot > 0) })
	s.maps.init(maxGenerated, s.release, func(g *generated) standing { return s.standing(&g.cached, s.hot[g.PID] != "") })
	if image, err := mappedfile.VDSO(); err != nil {
		s.log.Debug("no symbols of the vdso", zap.Error(err))
	} else if s.vdso, err = newObject(bytes.NewReader(image), int64(len(image))); err == nil {
		_ = s.vdso.index(int64(len(image))) // even without symbols, the vdso has a build id
	}
	return s
}

func (s *Symbolizer) start() { s.worker.Go(s.work) }

// Close stops the worker, waits for it, and closes all files. A file stays open if
// its file system does not answer.
func (s *Symbolizer) Close() {
	s.stop.Do(func() { close(s.done) })
	s.worker.Wait()
	s.mu.Lock()
	s.closed = true
	s.objects.Purge()
	s.maps.Purge()
	s.mu.Unlock()
	s.closeEvicted(closeLimit)
}

// closeEvicted closes the files in closing. It keeps a file in the list if its file system
// does not answer.
func (s *Symbolizer) closeEvicted(limit time.Duration) {
	s.mu.Lock()
	closing := s.closing
	s.closing = nil
	s.mu.Unlock()
	for _, f := range closing {
		if f.Stuck() || errors.Is(s.cfg.Runner.Run(f.Key(), f.Name(), limit, func(c *stuckread.Call) {
			_ = f.CloseIn(c) // the file was only read, so no data can be lost
		}), stuckread.ErrRefused) {
			s.mu.Lock()
			s.closing = append(s.closing, f)
			s.mu.Unlock()
		}
	}
}

// discard makes the worker close a file. The caller must hold the lock.
func (s *Symbolizer) discard(f *mappedfile.Reader) {
	s.closing = append(s.closing, f)
	token.Put(s.discarded)
}

func (s *Symbolizer) work() {
	tick := time.NewTicker(expireInterval)
	defer tick.Stop()
	var next *samples.Mapping // the next mapping of the queue
	for {
		// Resolve waits for urgent work, so it goes first.
		select {
		case serve := <-s.urgent:
			serve()
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
		default: // the mapping waits, and so does the rest of the queue
			queue, later = nil, time.After(budgetInterval)
		}
		select {
		case serve := <-s.urgent:
			serve()
		case next = <-queue:
		case <-later:
		case <-tick.C:
			s.mu.Lock()
			s.objects.expire(s.cfg.Now())
			s.maps.expire(s.cfg.Now())
			s.mu.Unlock()
			s.closeEvicted(stuckread.ReadLimit) // retry files that did not answer before
		case <-s.discarded:
			s.closeEvicted(stuckread.ReadLimit)
		case <-s.done:
			return
		}
	}
}

func (s *Symbolizer) readKernel() {
	k, err := loadKernelSymbols(s.cfg.Root)
	if err != nil {
		s.log.Debug("no kernel symbols", zap.Error(err))
		return
	}
	s.kernel.Store(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	// The kernel's symbols use at most three quarters of the memory for object files.
	all := s.cfg.CacheBytes - s.maps.maxBytes
	s.objects.maxBytes = max(all-k.bytes(), all/4)
}

// Track asks the worker to open the file of m while the process is alive. It never blocks.
// If the queue is full, the file is opened on first use.
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

// backed reports whether m may map a file.
func backed(m *samples.Mapping) bool { return m.Inode != 0 && strings.HasPrefix(m.Path, "/") }

// effort is the cost of creating names. time is the CPU time plus the time spent
// waiting for a file that does not answer. The waiting time counts because no other
// names are created during the wait.
type effort struct {
	bytes int64
	time  time.Duration
}

func (e *effort) add(of effort) { e.bytes, e.time = e.bytes+of.bytes, e.time+of.time }

func (e effort) within(parts, of int64) bool {
	return e.bytes < maxMade*parts/of && e.time < maxMaking*time.Duration(parts)/time.Duration(of)
}

// maxMade and maxMaking limit the effort for names in one batch. A process may use one
// eighth of the limit. A process of a hot unit may use half of the limit, and the limit of
// the batch is twice as high for such processes. An address that exceeds a limit has to wait
// for a later batch.
const (
	maxMade   = 16 << 20
	maxMaking = 2 * time.Second
)

// mayName reports whether the limits on effort permit another name for a process in this
// batch.
func (s *Symbolizer) mayName(pid int) bool {
	if s.hot[pid] != "" {
		return s.made.within(2, 1) && s.madeBy[pid].within(1, 2)
	}
	return s.made.within(1, 1) && s.madeBy[pid].within(1, 8)
}

// named records the effort for names that were made for a process.
func (s *Symbolizer) named(pid int, took effort) {
	s.made.add(took)
	by := s.madeBy[pid]
	by.add(took)
	s.madeBy[pid] = by
}

// Begin starts a batch. hot maps the processes of hot units to the names of their units.
// Files with samples of these processes are evicted last.
func (s *Symbolizer) Begin(hot map[int]string) {
	s.made, s.waited = effort{}, 0
	clear(s.madeBy)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batch++
	s.hot = hot
}

// Release removes the names of a location after its batch was emitted. Only the symbolizer
// counts the memory of names, so stacks must not keep names alive. A name that Resolve did
// not make, such as [no stack], stays.
func Release(l *samples.Location) {
	if len(l.Lines) > 0 && l.Counted != 0 {
		l.Lines, l.Resolved = nil, false
	}
}

// Take runs work, which may call Resolve but no other method of s. If a file does not
// answer, Take returns an error before work has finished. Locations then get no names
// from that file until it answers.
func (s *Symbolizer) Take(work func()) error {
	began := s.cfg.Now()
	err := s.cfg.Runner.Take(stuckread.ReadLimit, func(c *stuckread.Call) {
		s.call = c
		work()
		s.call = nil
	})
	if err != nil {
		s.made.time += s.cfg.Now().Sub(began)
	}
	return err
}

// Resolve sets l.Lines, l.Type, l.Resolved and the build ids of l.Mapping. pid is the
// process of l, or 0 if the process is unknown. A location of the kernel has the type
// samples.FrameKernel and may have no mapping.
//
// If the file is not open yet, Resolve waits for the file, for at most openTimeout
// per batch. After that time, l.Resolved stays false, and the caller tries again in
// the next batch. l.Resolved also stays false for generated code, because another
// function may replace the code.
func (s *Symbolizer) Resolve(pid int, l *samples.Location) {
	if l.Resolved {
		return
	}
	pc := l.Address
	if !l.Leaf && pc > 0 {
		pc-- // move from the return address into the call
	}
	var outcome Outcome
	var again bool
	if l.Type == samples.FrameKernel || l.Mapping != nil && l.Mapping.Path == kernelPath {
		l.Type = samples.FrameKernel
		outcome = s.resolveKernel(l, pc)
	} else {
		if outcome = s.resolveUser(pid, l, pc); outcome == NoFile && (l.Mapping == nil || l.Mapping.Path != mappedfile.VDSOPath) {
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
			s.objects.account(o, o)
			s.mu.Unlock()
		}
	}
	switch {
	case errors.Is(err, os.ErrClosed):
		return Pending // the file was just evicted
	case err != nil:
		return Invalid
	case len(a.lines) == 0:
		return NoSymbol
	}
	l.Lines, l.Type = a.lines, a.kind
	return Resolved
}

// objectOf finds or opens the object file of m. If there is no
// object, the outcome is the reason.
func (s *Symbolizer) objectOf(pid int, m *samples.Mapping) (*object, Outcome) {
	if m.Path == mappedfile.VDSOPath && s.vdso != nil {
		return s.vdso, Resolved
	}
	if !backed(m) {
		return nil, NoFile
	}
	key := mappedfile.FileOf(m)
	s.mu.Lock()
	f, ok := s.files.Get(key)
	if !ok || !f.loading() && f.failed {
		now := s.cfg.Now()
		if !ok || f.retry(m, now) {
			if len(s.urgent) == cap(s.urgent) || !s.cfg.Budget.May(m.PID) { // no other goroutine sends
				s.mu.Unlock()
				return nil, Pending
			}
			f = s.newFile(key, now)
			s.urgent <- func() { s.load(key, f, m) }
		}
	}
	s.mu.Unlock()
	if !s.await(f.ready, f.late.Load()) {
		return nil, Pending
	}
	if f.failed {
		return nil, f.outcome
	}
	s.mu.Lock()
	now := s.cfg.Now()
	if f.look(now) {
		s.Track(m) // this process is probably alive
	}
	s.use(f.object, now)
	f.object.batch = s.batch
	if s.hot[pid] != "" {
		f.object.hot = s.batch
	}
	s.mu.Unlock()
	return f.object, Resolved
}

// await waits until ready is closed. It does not wait if the work is late already. All
// waits of a batch together take at most openTimeout. After a wait that timed out, await
// does not wait again until patience has passed.
func (s *Symbolizer) await(ready <-chan struct{}, late bool) bool {
	if !pending(ready) {
		return true
	}
	began := s.cfg.Now()
	if late || began.Before(s.giveUpUntil) || s.waited >= s.openTimeout {
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
	if s.kernel.Load() == nil && !s.await(s.kernelReady, false) {
		return Pending
	}
	k := s.kernel.Load()
	if k == nil {
		return Hidden
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

// askKernel asks the worker to read kallsyms. It returns false if other urgent work is
// waiting.
func (s *Symbolizer) askKernel() bool {
	ready := make(chan struct{})
	select {
	case s.urgent <- func() { s.cfg.Spend(0, s.readKernel); close(ready) }:
		s.kernelReady, s.kernelAsked = ready, s.cfg.Now()
		return true
	default:
		return false
	}
}

// KernelSymbols returns nil if kernel functions have names. Otherwise it returns an error
// that contains the reason and the remedy.
func (s *Symbolizer) KernelSymbols() error { return s.kernelShown }

// Counters returns the current counters.
func (s *Symbolizer) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := Counters{
		Locations: s.locations, DebugFiles: s.debugFiles, Dropped: s.dropped.Load(), Evictions: s.objects.evictions + s.maps.evictions,
		Objects: s.objects.Len(), PerfMaps: s.maps.descriptors,
		FileBytes: s.objects.bytes, MapBytes: s.maps.bytes,
	}
	if k := s.kernel.Load(); k != nil {
		c.KernelBytes = k.bytes()
	}
	c.Bytes = c.FileBytes + c.MapBytes + c.KernelBytes
	return c
}
