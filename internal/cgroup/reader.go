// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
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
	online  level[int]
	quotas  map[string]*level[float64]
	cpusets map[string]*level[int]
	stats   map[string]*level[cpuStat]
	memory  map[string]*level[uint64]
	host    level[uint64] // the host's memory
	buf     []byte
	formula weightFormula // of this host's container runtime; empty if not known
}

// NewReader returns a Reader that keeps its files open in a set.
func (t *Tree) NewReader(files *openfile.Set) *Reader {
	return &Reader{
		tree:    t,
		files:   files,
		online:  level[int]{files: [2]openfile.File{files.File(filepath.Join(t.root, "sys/devices/system/cpu/online"))}},
		quotas:  map[string]*level[float64]{},
		cpusets: map[string]*level[int]{},
		stats:   map[string]*level[cpuStat]{},
		memory:  map[string]*level[uint64]{},
		host:    level[uint64]{files: [2]openfile.File{files.File(filepath.Join(t.root, "proc/meminfo"))}},
		buf:     make([]byte, 16<<10), // a memory.stat has about 2 KiB; longer files are an error
	}
}

// Close closes the reader's own files. Callers close the files that they opened with the reader.
func (r *Reader) Close() {
	r.online.close()
	r.host.close()
}

// A level is one limit of one cgroup. All groups below the cgroup share it.
type level[T any] struct {
	path  string // of the cgroup
	key   string // in the reader's map
	files [2]openfile.File
	refs  int
	at    time.Time
	value T // 0 if this level has no limit
	// missing reports whether the file does not exist, because the controller is not enabled
	// at this level.
	missing bool
	err     error
}

const (
	// sharedFor is the time during which a limit that was read for one group is reused for
	// other groups. It is long enough for a round through all groups, and well below the
	// minimum interval between two rounds.
	sharedFor = 50 * time.Millisecond

	// missingFor is the time after which a limit is read again if its file did not exist.
	missingFor = 5 * time.Second
)

func (l *level[T]) fresh(now time.Time) bool { return l.within(sharedFor, now) }

func (l *level[T]) within(span time.Duration, now time.Time) bool {
	age := now.Sub(l.at)
	return age >= 0 && age < span
}

// get returns a limit. It reads the limit again unless the last value is of this round, so
// that a changed limit counts at once.
func (l *level[T]) get(r *Reader, now time.Time, read func(*Reader, *level[T]) (T, error)) (T, error) {
	if l.fresh(now) || l.missing && l.within(missingFor, now) {
		return l.value, l.err
	}
	l.at = now
	l.value, l.err = read(r, l)
	if l.missing = errors.Is(l.err, fs.ErrNotExist); l.missing {
		l.err = nil
	}
	return l.value, l.err
}

// renew discards the last value.
func (l *level[T]) renew() { l.at = time.Time{} }

func (l *level[T]) close() {
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

// A figure is a file of a cgroup that is read repeatedly.
type figure struct {
	r    *Reader
	file openfile.File
	// replaced stays set across failed reads until wasReplaced returns it.
	replaced bool
}

func (r *Reader) figure(dir, name string) figure {
	return figure{r: r, file: r.files.File(filepath.Join(dir, name))}
}

// read returns the content, which is valid until the reader's next read.
func (f *figure) read() ([]byte, error) {
	n, replaced, err := f.file.Read(f.r.buf)
	f.replaced = f.replaced || replaced
	if err != nil {
		return nil, f.gone(err)
	}
	return f.r.buf[:n], nil
}

// number reads a file that contains one number.
func (f *figure) number() (uint64, error) {
	b, err := f.read()
	if err != nil {
		return 0, err
	}
	return f.parse(b)
}

// parse parses a number in the file's content.
func (f *figure) parse(b []byte) (uint64, error) {
	n, err := parseFigure(b)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", f.From(), err)
	}
	return n, nil
}

// gone returns [ErrGone] instead of err if the whole cgroup was removed, not only the file.
func (f *figure) gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) && !isDir(filepath.Dir(f.file.Path())) {
		return ErrGone
	}
	return err
}

// wasReplaced reports, once, whether a different cgroup took over the path since the last
// call. The counters of the new cgroup began at 0.
func (f *figure) wasReplaced() bool {
	replaced := f.replaced
	f.replaced = false
	return replaced
}

// From returns the path of the file that is read.
func (f *figure) From() string { return f.file.Path() }

// Close closes the file.
func (f *figure) Close() { f.file.Close() }

// exists returns [NoFile] if the file does not exist. It returns nil for other errors,
// because the file may be readable later.
func (f *figure) exists() error {
	switch _, err := f.read(); {
	case errors.Is(err, ErrGone):
		return ErrGone
	case isGone(err):
		return NoFile
	}
	return nil
}
