// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup/openfile"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// ErrGone is returned for a cgroup that was removed.
var ErrGone = errors.New("the cgroup was removed")

// A Reader reads cgroup files repeatedly and keeps them open. It belongs to one goroutine.
type Reader struct {
	tree    *Tree
	files   *openfile.Set
	changes *openfile.Changes
	takenAt time.Time // when changes were last counted
	online  level[int]
	// The maps below hold the limits by the path of their first file.
	quotas  map[string]*level[float64]
	cpusets map[string]*level[int]
	stats   map[string]*level[cpuStat] // cpu.stat and cpuacct.usage
	memory  map[string]*level[uint64]
	host    level[uint64] // the host's memory
	buf     []byte
	formula weightFormula // formula of this host's container runtime; empty if not known
}

// NewReader returns a Reader that keeps its files open in a set.
func (t *Tree) NewReader(files *openfile.Set) *Reader {
	return &Reader{
		tree:    t,
		files:   files,
		changes: openfile.NewChanges(maxWatches),
		online:  level[int]{files: []openfile.File{files.File(filepath.Join(t.root, "sys/devices/system/cpu/online"))}},
		quotas:  map[string]*level[float64]{},
		cpusets: map[string]*level[int]{},
		stats:   map[string]*level[cpuStat]{},
		memory:  map[string]*level[uint64]{},
		host:    level[uint64]{files: []openfile.File{files.File(filepath.Join(t.root, "proc/meminfo"))}},
		buf:     make([]byte, 16<<10), // a memory.stat has about 2 KiB; longer files are an error
	}
}

// Close closes the reader's own files. Callers close the files
// that they opened with the reader.
func (r *Reader) Close() {
	r.changes.Close()
	r.online.close()
	r.host.close()
}

// A level is one limit of one cgroup. All groups below the cgroup share this limit.
type level[T any] struct {
	path  string // path of the cgroup
	files []openfile.File
	refs  int
	at    time.Time
	value T // 0 if this level has no limit
	// missing reports whether the file does not exist.
	missing bool
	err     error

	watch   *openfile.Watch // nil if the limit is not watched
	written uint32          // number of writes before the last read
}

const (
	// maxWatches is the maximum number of limits that are watched for writes. Limits that
	// are not watched are read each time.
	maxWatches = 1 << 15

	// sharedFor is the time during which a limit that was read for one group is reused for
	// other groups. It is long enough for a round through all groups, and well below the
	// minimum interval between two rounds.
	sharedFor = 50 * time.Millisecond

	// heldFor is the time after which a limit is read again even without a write. The
	// kernel does not report that a cgroup was removed and created again.
	heldFor = 2 * time.Minute

	// unseenFor replaces heldFor for limits that the kernel itself may change, and for limits
	// whose file did not exist.
	unseenFor = 5 * time.Second
)

func (l *level[T]) fresh(now time.Time) bool { return l.within(sharedFor, now) }

func (l *level[T]) within(span time.Duration, now time.Time) bool {
	age := now.Sub(l.at)
	return age >= 0 && age < span
}

// holds reports whether the last value is still valid.
func (l *level[T]) holds(r *Reader, now time.Time) bool {
	switch {
	case l.fresh(now):
		return true
	case l.err != nil:
		return false
	case l.missing:
		return l.within(unseenFor, now)
	case l.watch == nil || !l.within(heldFor, now):
		return false
	}
	r.takeChanges(now)
	return l.watch.Changes() == l.written
}

// get returns a limit. It reads the limit again unless the last value is still valid.
func (l *level[T]) get(r *Reader, now time.Time, read func(*Reader, *level[T]) (value T, replaced bool, err error)) (T, error) {
	if l.holds(r, now) {
		return l.value, l.err
	}
	l.at = now
	if l.watch == nil {
		l.watch = r.changes.Watch(l.files...)
	}
	r.takeChanges(now)
	l.written = l.watch.Changes() // any write from now on counts as a change
	var replaced bool
	l.value, replaced, l.err = read(r, l)
	if replaced || l.err != nil {
		l.unwatch() // the watched file is gone
	}
	if l.watch != nil {
		l.closeFiles() // watched files need not stay open
	}
	l.allowMissing()
	return l.value, l.err
}

// allowMissing clears the error if the file does not exist. The file is missing if the
// controller is not enabled at this level.
func (l *level[T]) allowMissing() {
	if l.missing = errors.Is(l.err, fs.ErrNotExist); l.missing {
		l.err = nil
	}
}

func (l *level[T]) unwatch() {
	l.watch.Close()
	l.watch = nil
}

// renew discards the last value.
func (l *level[T]) renew() {
	l.at = time.Time{}
	l.unwatch()
}

// takeChanges counts the writes to watched files. It does so at most once per round.
func (r *Reader) takeChanges(now time.Time) {
	if age := now.Sub(r.takenAt); age < 0 || age >= sharedFor {
		r.takenAt = now
		r.changes.Take()
	}
}

func (l *level[T]) close() {
	l.unwatch()
	l.closeFiles()
}

func (l *level[T]) closeFiles() {
	for i := range l.files {
		l.files[i].Close()
	}
}

// countCPUs returns the number of CPUs in a list like "0-3,7".
func countCPUs(b []byte) (count int, ok bool) {
	ok = procfs.ParseCPUs(b, func(first, last int) { count += last - first + 1 })
	return count, ok
}

func trimSpace(b []byte) []byte { return bytes.TrimRight(b, " \n") }
