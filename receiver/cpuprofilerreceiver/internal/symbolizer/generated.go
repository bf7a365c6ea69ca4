// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package symbolizer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/deadline"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer/perfmap"
)

const (
	// maxGenerated limits the number of known processes that run code without a file.
	// Processes without a perf map count too.
	maxGenerated = 1024
	// mapInterval is the minimum time between two reads of a perf map. retryMapInterval is
	// the minimum time between two searches for a missing perf map.
	mapInterval      = time.Second
	retryMapInterval = 5 * time.Second
	// maxMapFile is the maximum number of bytes that are read from a perf map. The perf
	// map of a large program has about 10 MiB.
	maxMapFile = 128 << 20
	// maxTail is the maximum length of generated.tail. The tail shows whether a
	// file was rewritten or only grew.
	maxTail = 64
)

// generated describes the generated code of a process. Only the worker uses the fields
// before index, except PID and late.
type generated struct {
	procfs.Process // Start is 0 until it is read

	file *mappedfile.Reader
	id   mappedfile.ID // size and times are 0, because they change
	// late is true if a read for this process timed out. The read may still finish later.
	late atomic.Bool
	read *perfmap.Map
	// offset is the end of the part of the file that was read. tail holds the last bytes
	// before offset.
	offset int64
	tail   []byte

	// The Symbolizer's lock guards the fields below.

	index   *perfmap.Index // nil if there is no index
	runtime samples.FrameType
	// outcome is the outcome of the process's locations if index is nil.
	outcome Outcome
	// ready is closed when the most recently requested read has ended.
	// asked is the time of that request.
	ready chan struct{}
	asked time.Time
	// held is the memory of index, and named is the memory of known.
	held, named int64
	open        bool   // whether file is open
	batch       uint64 // the last batch with samples of the process

	// Only Resolve uses the fields below. known caches answers by
	// their entry in the index answered.

	known    map[int]answer
	answered *perfmap.Index
}

// errNoMap is returned if a process has no perf map.
var errNoMap = errors.New("the process has no perf map")

// resolveGenerated resolves code without an object file. Such code can change, so again
// reports whether the location must be resolved again in the next batch.
func (s *Symbolizer) resolveGenerated(pid int, l *samples.Location, pc uint64) (outcome Outcome, again bool) {
	if pid <= 0 {
		return NoFile, false
	}
	now := s.cfg.Now()
	s.mu.Lock()
	g, ok := s.generated.Get(pid)
	if !ok {
		g = &generated{Process: procfs.Process{PID: pid}}
		s.generated.Add(pid, g)
	}
	g.batch = s.batch
	interval := mapInterval
	if g.index == nil {
		interval = retryMapInterval
	}
	if g.ready == nil || now.Sub(g.asked) >= interval && !pending(g.ready) {
		// The send does not block, because only Resolve sends to urgent. If another
		// request is waiting, the current index is used.
		if len(s.urgent) < cap(s.urgent) && s.cfg.Budget.May(pid) {
			g.ready, g.asked = make(chan struct{}), now
			s.urgent <- request{generated: g, ready: g.ready}
		}
	}
	ready := g.ready
	s.mu.Unlock()
	waited := ready != nil && (!g.late.Load() || !pending(ready)) && s.await(ready)
	s.mu.Lock()
	index, runtime, outcome := g.index, g.runtime, g.outcome
	s.mu.Unlock()
	if index == nil {
		if !waited {
			return Pending, true
		}
		return outcome, true
	}
	if g.answered != index {
		g.known, g.answered = nil, index
		s.holdNames(g, 0)
	}
	entry := index.Entry(pc)
	if entry < 0 {
		return NoSymbol, true
	}
	a, ok := g.known[entry]
	if !ok {
		if !s.mayName(pid) {
			return Pending, true
		}
		line, kind := perfmap.Line(string(index.Name(entry)), runtime)
		a = answer{lines: []samples.Line{line}, kind: kind}
		size := int64(entryOverhead) + a.bytes()
		if g.known == nil || g.named+size > s.maxGeneratedBytes/4 {
			g.known = make(map[int]answer)
			s.holdNames(g, 0)
		}
		g.known[entry] = a
		s.named(pid, effort{bytes: size})
		s.holdNames(g, g.named+size)
	}
	l.Lines, l.Type = a.lines, a.kind
	return Resolved, true
}

// holdNames records the memory that a process's known names use. It
// drops other processes to make room.
func (s *Symbolizer) holdNames(g *generated, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.knows(g) {
		return // the memory of g is already released
	}
	s.generatedBytes += size - g.named
	g.named = size
	s.makeRoom(g)
}

// knows reports whether g was not dropped. The caller must hold the lock.
func (s *Symbolizer) knows(g *generated) bool {
	known, ok := s.generated.Peek(g.PID)
	return ok && known == g
}

// makeRoom drops processes other than g until the perf maps are within their limits.
// The caller must hold the lock.
func (s *Symbolizer) makeRoom(g *generated) {
	for s.generatedOpen > s.maxMaps && s.dropLeast(g, func(g *generated) bool { return g.open }) {
		s.generatedEvictions++
	}
	for s.generatedBytes > s.maxGeneratedBytes && s.dropLeast(g, func(g *generated) bool { return g.held+g.named > 0 }) {
		s.generatedEvictions++
	}
}

// dropLeast drops the process that is first in the order of eviction. It skips the
// process passed as but, and all processes that do not match the filter which. It reports
// whether a process was dropped. The caller must hold the lock.
func (s *Symbolizer) dropLeast(but *generated, which func(*generated) bool) bool {
	var least *generated
	var rank standing
	for _, g := range s.generated.Values() { // the least recently used first
		if g == but || !which(g) {
			continue
		}
		if of := s.standing(g.batch, s.hot[g.PID] != "", g.held+g.named); least == nil || of.before(rank) {
			least, rank = g, of
		}
	}
	return least != nil && s.generated.Remove(least.PID)
}

// dropGenerated is the eviction callback of generated. It releases the
// memory of the dropped process.
func (s *Symbolizer) dropGenerated(_ int, g *generated) {
	s.generatedBytes -= g.named
	g.named = 0
	s.release(g)
}

// release drops the index of a process, and discards its perf map if the map is open. The
// caller must hold the lock.
func (s *Symbolizer) release(g *generated) {
	s.generatedBytes -= g.held
	g.held, g.index = 0, nil
	if g.open {
		s.generatedOpen--
		g.open = false
		s.discard(g.file)
	}
}

// expireGenerated drops processes that were not used for idleTimeout. The caller must hold
// the lock.
func (s *Symbolizer) expireGenerated(now time.Time) {
	for _, g := range s.generated.Values() {
		if now.Sub(g.asked) >= idleTimeout {
			s.generated.Remove(g.PID)
		}
	}
}

// serveGenerated reads the perf map of a process. It returns early if a read times out.
func (s *Symbolizer) serveGenerated(r request) {
	g := r.generated
	root, _ := procfs.At(s.cfg.Root).Root(g.PID) // no file is opened for a process that has ended
	g.late.Store(false)
	err := s.cfg.Runner.Run(deadline.Key{Root: root}, fmt.Sprintf("perf map of process %d", g.PID), deadline.ReadLimit, func(c *deadline.Call) {
		defer close(r.ready)
		s.cfg.Spend(g.PID, func() { s.readGenerated(c, root, g) })
	})
	switch {
	case errors.Is(err, deadline.ErrLate):
		g.late.Store(true)
	case err != nil:
		s.mu.Lock()
		g.outcome = Unreadable // used only if there is no index
		s.mu.Unlock()
		close(r.ready)
	}
}

// readGenerated reads the new part of a process's perf map.
func (s *Symbolizer) readGenerated(c *deadline.Call, root uint64, g *generated) {
	if g.file != nil {
		g.file.Use(c)
	}
	err := s.follow(c, root, g)
	switch {
	case err == nil:
	case errors.Is(err, errNoMap):
		s.setIndex(g, nil, NoFile)
		return
	case errors.Is(err, os.ErrNotExist): // the process has ended
		s.setIndex(g, nil, Unreadable)
		return
	case errors.Is(err, os.ErrPermission):
		s.setIndex(g, nil, Unreadable)
	default:
		s.setIndex(g, nil, Invalid)
	}
	if err != nil {
		s.log.Debug("perf map not readable", zap.Int("pid", g.PID), zap.Error(err))
	}
}

// follow opens the perf map of a process, unless it is open already, and reads its new
// part.
func (s *Symbolizer) follow(c *deadline.Call, root uint64, g *generated) error {
	if now, err := procfs.At(s.cfg.Root).Process(g.PID); err == nil {
		if g.Start != 0 && g.Start != now.Start {
			s.closeMap(g) // another process has reused the pid
		}
		g.Start = now.Start // not the pid, which Resolve reads
	} else if g.file != nil {
		return s.readOn(g) // the process may have written before its end
	} else {
		return err
	}
	var f *os.File
	var id mappedfile.ID
	var err error
	c.Wait(nil, func() { f, id, err = openPerfMap(s.cfg.Root, g.PID) })
	if err != nil {
		if g.file != nil && errors.Is(err, errNoMap) {
			return s.readOn(g) // the file was removed, but the process may still write to it
		}
		s.closeMap(g)
		return err
	}
	r := mappedfile.NewReader(f, deadline.Key{Root: root}, f.Name())
	r.Use(c)
	if g.file != nil && g.id == id {
		r.Close()
		return s.readOn(g)
	}
	s.closeMap(g)
	var runtime samples.FrameType
	c.Wait(nil, func() { runtime = runtimeOf(s.cfg.Root, g.PID) })
	if !s.holdMap(g, r, id, runtime) {
		r.Close()
		return errNoMap
	}
	return s.readOn(g)
}

// holdMap sets the perf map of a process, and drops other processes if too many perf maps
// are open. It returns false if the process was dropped in the meantime.
func (s *Symbolizer) holdMap(g *generated, f *mappedfile.Reader, id mappedfile.ID, runtime samples.FrameType) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.knows(g) {
		return false
	}
	g.file, g.id, g.runtime, g.open = f, id, runtime, true
	s.generatedOpen++
	s.makeRoom(g)
	return true
}

// closeMap closes the perf map of a process.
func (s *Symbolizer) closeMap(g *generated) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(g)
	g.file, g.read, g.offset, g.tail = nil, nil, 0, nil
}

// readOn reads the new part of the perf map.
func (s *Symbolizer) readOn(g *generated) error {
	size, err := g.file.Size()
	if err != nil {
		return fmt.Errorf("examining the perf map of process %d: %w", g.PID, err)
	}
	size = min(size, maxMapFile)
	if g.read == nil || size < g.offset || !g.unchanged() {
		g.read, g.offset, g.tail = perfmap.New(s.maxGeneratedBytes), 0, nil
	} else if size == g.offset {
		return nil
	}
	buf := make([]byte, min(elffile.ChunkSize, size-g.offset))
	for g.offset < size {
		b := buf[:min(int64(len(buf)), size-g.offset)]
		n, err := g.file.ReadAt(b, g.offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("reading the perf map of process %d: %w", g.PID, err)
		}
		taken := g.read.Add(b[:n])
		if taken == 0 {
			if n < len(buf) || len(buf) < elffile.ChunkSize {
				break // the last line is incomplete
			}
			taken = n // a valid line is never that long
		}
		g.offset += int64(taken)
		g.tail = append(g.tail[:0], b[max(0, taken-maxTail):taken]...)
	}
	s.setIndex(g, g.read.Index(), Resolved)
	return nil
}

// unchanged reports whether the file still contains the bytes of tail before offset.
func (g *generated) unchanged() bool {
	var buf [maxTail]byte
	b := buf[:len(g.tail)]
	n, _ := g.file.ReadAt(b, g.offset-int64(len(b)))
	return n == len(b) && bytes.Equal(b, g.tail)
}

// setIndex publishes the index of a process, and drops other processes to make room.
func (s *Symbolizer) setIndex(g *generated, index *perfmap.Index, outcome Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.knows(g) {
		return
	}
	s.generatedBytes -= g.held
	g.index, g.outcome, g.held = index, outcome, 0
	if index != nil {
		g.held = index.Bytes()
	}
	s.generatedBytes += g.held
	s.makeRoom(g)
}

// runtimeIn returns the language runtime whose library is listed in maps, the content of a
// maps file.
func runtimeIn(maps []byte) samples.FrameType {
	for line := range strings.Lines(string(maps)) {
		if i := strings.IndexByte(line, '/'); i >= 0 {
			if r := perfmap.RuntimeOf(strings.TrimRight(line[i:], "\n")); r != "" {
				return r
			}
		}
	}
	return ""
}
