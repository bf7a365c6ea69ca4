// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hotprofile/hotprofile/internal/atomicfile"
	"github.com/hotprofile/hotprofile/internal/bytesize"
)

// directory writes finished files and removes old files. A file gets its final name only
// when it is complete and on disk.
type directory struct {
	path     string
	maxFiles int
	maxBytes bytesize.Size

	mu sync.Mutex // one file is written at a time, so that rotate counts correctly
}

// open creates the directory and checks that it is writable. It removes the unfinished
// files of an earlier run, and the oldest files beyond the limits. leftovers is the number
// of removed unfinished files, and rotated is the number of removed old files.
func (d *directory) open() (leftovers, rotated int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.create(); err != nil {
		return 0, 0, fmt.Errorf("directory %s: %w", d.path, err)
	}
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return 0, 0, fmt.Errorf("directory %s: cannot list it: %w", d.path, err)
	}
	var errs []error
	for _, e := range entries {
		// An incomplete gzip file is useless.
		if e.Type().IsRegular() && strings.HasPrefix(e.Name(), atomicfile.TemporaryPrefix) && strings.HasSuffix(e.Name(), atomicfile.TemporarySuffix) {
			errs = append(errs, os.Remove(filepath.Join(d.path, e.Name())))
			leftovers++
		}
	}
	temp, err := d.temporary(nil)
	if err != nil && !atomicfile.Full(err) { // write makes room on a full disk
		return leftovers, 0, fmt.Errorf("directory %s: cannot create a file: %w", d.path, err)
	}
	if err == nil {
		errs = append(errs, os.Remove(temp))
	}
	rotated, err = d.rotate("")
	return leftovers, rotated, errors.Join(append(errs, err)...)
}

func (d *directory) create() error {
	if err := os.MkdirAll(d.path, 0o750); err != nil {
		return fmt.Errorf("cannot create it: %w", err)
	}
	return nil
}

// written is the result of writing a file.
type written struct {
	// file is the path of the file. It is empty if the file was not written.
	file string
	// removed is the number of old files that were removed because of the limits or to
	// make room on a full disk. disk is the error that reported a full disk, or nil.
	removed int
	disk    error
}

// write creates a file called name, with a number appended if the name is already used. If
// the disk is full, write removes the oldest files to make room, and tries once more.
// After a failed write, no partial file is left. If write returns both a file and an
// error, the file was written, but old files could not be removed.
func (d *directory) write(name string, content []byte) (w written, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w.file, err = d.complete(name, content)
	if errors.Is(err, fs.ErrNotExist) {
		// Either the directory was removed, or the unfinished file was removed by another
		// collector that started with this directory.
		w.file, err = d.complete(name, content)
	}
	if atomicfile.Full(err) {
		w.disk = err
		var failed error
		if w.removed, failed = d.makeRoom(len(content)); w.removed > 0 {
			w.file, err = d.complete(name, content)
		}
		if err != nil {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return written{removed: w.removed, disk: w.disk}, fmt.Errorf("directory %s: %w", d.path, err)
	}
	atomicfile.SyncDirectory(d.path)
	rotated, err := d.rotate(filepath.Base(w.file))
	w.removed += rotated
	return w, err
}

// complete writes content to a temporary file and then publishes the file. If the name is
// already used, complete appends a number. It returns the path of the file.
func (d *directory) complete(name string, content []byte) (file string, err error) {
	if err := d.create(); err != nil {
		return "", err
	}
	temp, err := d.temporary(content)
	if err != nil {
		return "", err
	}
	for i := d.number(name); ; i++ {
		numbered := name
		if i > 1 {
			numbered = fmt.Sprintf("%s-%d", name, i)
		}
		file = filepath.Join(d.path, numbered+extension)
		err = publish(temp, file)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, fs.ErrExist) || i >= maxNumber {
			if failed := os.Remove(temp); !errors.Is(failed, fs.ErrNotExist) {
				err = errors.Join(err, failed)
			}
			return "", err
		}
	}
}

// maxNumber is the highest number that is appended to the name of a file.
const maxNumber = 9999

// number returns the number of the next file called name. The number is one more than the
// highest existing number, so numbers increase even after older files were removed. The
// first file has the number 1, but its name does not contain the number.
func (d *directory) number(name string) int {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return 1 // publish fails, or finds the existing names
	}
	next := 1
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), name)
		rest, complete := strings.CutSuffix(rest, extension)
		if !ours || !complete {
			continue
		}
		n, err := strconv.Atoi(strings.TrimPrefix(rest, "-"))
		switch {
		case rest == "":
			next = max(next, 2)
		case err == nil && rest[0] == '-' && n > 1 && n <= maxNumber:
			next = max(next, n+1)
		}
	}
	return min(next, maxNumber)
}

// temporary creates an unfinished file and returns its path.
func (d *directory) temporary(content []byte) (name string, err error) {
	return atomicfile.Temporary(d.path, content, func(f *os.File) error { return errors.Join(f.Chmod(0o640), f.Sync()) })
}

// publish renames a complete file. If the new name is already used, publish returns
// fs.ErrExist.
func publish(temp, file string) error {
	err := os.Link(temp, file)
	if err == nil {
		if err = os.Remove(temp); errors.Is(err, fs.ErrNotExist) {
			return nil // another collector removed it at its start
		}
		return err
	}
	if errors.Is(err, fs.ErrExist) {
		return err
	}
	// The filesystem has no hard links. If another program creates the file after this
	// check, the file is overwritten.
	if _, err := os.Lstat(file); err == nil {
		return fs.ErrExist
	}
	return os.Rename(temp, file)
}

// rotate removes the oldest files of this exporter until the remaining files are within
// both limits. It never removes the file called keep.
func (d *directory) rotate(keep string) (removed int, err error) {
	files, err := d.oldestFirst()
	if err != nil {
		return 0, err
	}
	count, bytes := len(files), bytesize.Size(0)
	for _, f := range files {
		bytes += bytesize.Size(f.Size())
	}
	files = slices.DeleteFunc(files, func(f fs.FileInfo) bool { return f.Name() == keep })
	return d.remove(files, func() bool { return count <= d.maxFiles && bytes <= d.maxBytes }, func(f fs.FileInfo) {
		count--
		bytes -= bytesize.Size(f.Size())
	})
}

// makeRoom removes the oldest files of this exporter until it has freed need bytes. It
// removes at least one file.
func (d *directory) makeRoom(need int) (removed int, err error) {
	files, err := d.oldestFirst()
	if err != nil {
		return 0, err
	}
	blocks := func(bytes int64) int64 { return (bytes + blockSize - 1) / blockSize }
	left := max(1, blocks(int64(need)))
	return d.remove(files, func() bool { return left <= 0 }, func(f fs.FileInfo) { left -= blocks(f.Size()) })
}

// blockSize is the block size of most filesystems, in bytes.
const blockSize = 4096

// oldestFirst returns the files that this exporter wrote, oldest first.
func (d *directory) oldestFirst() ([]fs.FileInfo, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("directory %s: cannot list it to remove old files: %w", d.path, err)
	}
	match := ours()
	var files []fs.FileInfo
	for _, e := range entries {
		if !e.Type().IsRegular() || !match.MatchString(e.Name()) {
			continue
		}
		if info, err := e.Info(); err == nil { // otherwise the file no longer exists
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	return files, nil
}

// remove removes files until enough returns true. It calls gone for each
// file that it has removed.
func (d *directory) remove(files []fs.FileInfo, enough func() bool, gone func(fs.FileInfo)) (removed int, err error) {
	var errs []error
	for _, f := range files {
		if enough() {
			break
		}
		if err := os.Remove(filepath.Join(d.path, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove an old file: %w", err))
			continue
		}
		gone(f)
		removed++
	}
	return removed, errors.Join(errs...)
}
