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
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
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
	named int64 // the memory of known
	open  bool  // whether file is open
	cached

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
	g, ok := s.maps.Get(pid)
	if !ok {
		g = &generated{Process: procfs.Process{PID: pid}}
		s.maps.Add(pid, g)
	}
	g.at, g.batch = now, s.batch
	interval := mapInterval
	if g.index == nil {
		interval = retryMapInterval
	}
	if g.ready == nil || now.Sub(g.asked) >= interval && !pending(g.ready) {
		// The send does not block, because only Resolve sends to urgent. If other work is
		// waiting, the current index is used.
		if len(s.urgent) < cap(s.urgent) && s.cfg.Budget.May(pid) {
			g.ready, g.asked = make(chan struct{}), now
			ready := g.ready
			s.urgent <- func() { s.serveGenerated(g, ready) }
		}
	}
	ready := g.ready
	s.mu.Unlock()
	waited := ready != nil && s.await(ready, g.late.Load())
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
		if g.known == nil || g.named+size > s.maps.maxBytes/4 {
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

// holdNames records the memory that a process's known names use. It drops other processes to
// make room.
func (s *Symbolizer) holdNames(g *generated, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.named = size
	s.maps.account(g.PID, g)
}

// uses returns the memory of the index and of the known names, and the number of file
// descriptors.
func (g *generated) uses() (bytes int64, descriptors int) {
	if g.index != nil {
		bytes = g.index.Bytes()
	}
	if g.open {
		descriptors = 1
	}
	return bytes + g.named, descriptors
}

// release drops the index of a process, and discards its perf map if the map is open. The
// caller must hold the lock.
func (s *Symbolizer) release(g *generated) {
	g.index = nil
	if g.open {
		g.open = false
		s.discard(g.file)
	}
}

// serveGenerated reads the perf map of a process, and closes ready. It returns early if a
// read times out.
func (s *Symbolizer) serveGenerated(g *generated, ready chan struct{}) {
	root, _ := procfs.At(s.cfg.Root).Root(g.PID) // no file is opened for a process that has ended
	g.late.Store(false)
	err := s.cfg.Runner.Run(stuckread.Key{Root: root}, fmt.Sprintf("perf map of process %d", g.PID), stuckread.ReadLimit, func(c *stuckread.Call) {
		defer close(ready)
		s.cfg.Spend(g.PID, func() { s.readGenerated(c, root, g) })
	})
	switch {
	case errors.Is(err, stuckread.ErrLate):
		g.late.Store(true)
	case err != nil:
		s.mu.Lock()
		g.outcome = Unreadable // used only if there is no index
		s.mu.Unlock()
		close(ready)
	}
}

// readGenerated reads the new part of a process's perf map.
func (s *Symbolizer) readGenerated(c *stuckread.Call, root uint64, g *generated) {
	if g.file != nil {
		g.file.Use(c)
	}
	err := s.follow(c, root, g)
	if err == nil {
		return
	}
	none, ended, outcome := errors.Is(err, errNoMap), errors.Is(err, os.ErrNotExist), Invalid
	switch {
	case none:
		outcome = NoFile
	case ended, errors.Is(err, os.ErrPermission):
		outcome = Unreadable
	}
	s.setIndex(g, nil, outcome)
	if !none && !ended {
		s.log.Debug("perf map not readable", zap.Int("pid", g.PID), zap.Error(err))
	}
}

// follow opens the perf map of a process, unless it is open already, and reads its new
// part.
func (s *Symbolizer) follow(c *stuckread.Call, root uint64, g *generated) error {
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
	r := mappedfile.NewReader(f, stuckread.Key{Root: root}, f.Name())
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
	if !s.maps.has(g.PID, g) {
		return false
	}
	g.file, g.id, g.runtime, g.open = f, id, runtime, true
	s.maps.account(g.PID, g)
	return true
}

// closeMap closes the perf map of a process.
func (s *Symbolizer) closeMap(g *generated) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(g)
	s.maps.account(g.PID, g)
	g.file, g.read, g.offset, g.tail = nil, nil, 0, nil
}

// readOn reads the new part of the perf map.
func (s *Symbolizer) readOn(g *generated) error {
	info, err := g.file.Stat()
	if err != nil {
		return fmt.Errorf("examining the perf map of process %d: %w", g.PID, err)
	}
	size := min(info.Size(), maxMapFile)
	if g.read == nil || size < g.offset || !g.unchanged() {
		g.read, g.offset, g.tail = perfmap.New(s.maps.maxBytes), 0, nil
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
	if s.maps.has(g.PID, g) {
		g.index, g.outcome = index, outcome
		s.maps.account(g.PID, g)
	}
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

// perfMapSlack is the time by which a perf map may seem older than its process, because the
// kernel uses different clocks for processes and files.
const perfMapSlack = 2 * time.Second

// openPerfMap opens /tmp/perf-PID.map in the root directory of a process. PID is the
// process's pid in its innermost pid namespace. Because any user may write to /tmp, the
// file must be a regular file of the process's user or of root, and not older than the
// process.
func openPerfMap(root string, pid int) (*os.File, mappedfile.ID, error) {
	proc := procfs.At(root)
	self, err := proc.Status(pid)
	if err != nil {
		return nil, mappedfile.ID{}, fmt.Errorf("reading the pid and user of process %d: %w", pid, err)
	}
	path := fmt.Sprintf("/tmp/perf-%d.map", self.PID)
	f, id, err := mappedfile.OpenChecked(path, func() (int, error) { return mappedfile.OpenInRoot(proc, pid, 0, path, unix.O_NOFOLLOW) }, func(st *unix.Stat_t) error {
		if st.Uid != 0 && !slices.Contains(self.UIDs[:], st.Uid) {
			return fmt.Errorf("it belongs to user %d, who is not the process's", st.Uid)
		}
		now, err := proc.Process(pid)
		if err == nil && time.Unix(0, st.Mtim.Nano()).Before(procfs.TimeOf(procfs.BootTime(), now.Start).Add(-perfMapSlack)) {
			return errNoMap // the file of an earlier process with that pid
		}
		return nil
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, mappedfile.ID{}, errNoMap
	case err != nil:
		return nil, mappedfile.ID{}, fmt.Errorf("opening %s of process %d in its root: %w", path, pid, err)
	}
	id.Size, id.Modified, id.Changed = 0, 0, 0 // these change when the file grows
	return f, id, nil
}

// runtimeOf returns the language runtime whose library a process has mapped.
func runtimeOf(root string, pid int) samples.FrameType {
	maps, err := procfs.ReadFile(procfs.At(root).File(pid, "maps"), procfs.MaxMaps)
	if err != nil && !errors.Is(err, procfs.ErrTooLarge) {
		return ""
	}
	return runtimeIn(maps)
}
