// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hotprofile/hotprofile/internal/bytesize"
)

// directory writes finished files and removes old ones. A file gets its name when it
// is complete and on disk.
type directory struct {
	path     string
	maxFiles int
	maxBytes bytesize.Size

	mu sync.Mutex // one file at a time, so that rotate counts right
}

const (
	tempPrefix = ".hotprofile-"
	tempSuffix = ".tmp"
)

// open creates the directory and checks that it is writable. It removes unfinished
// files of an earlier run and files above the limits, and returns how many.
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
		// Nothing can be read from an incomplete gzip file.
		if e.Type().IsRegular() && strings.HasPrefix(e.Name(), tempPrefix) && strings.HasSuffix(e.Name(), tempSuffix) {
			errs = append(errs, os.Remove(filepath.Join(d.path, e.Name())))
			leftovers++
		}
	}
	f, err := os.CreateTemp(d.path, tempPrefix+"*"+tempSuffix)
	if err != nil {
		return leftovers, 0, fmt.Errorf("directory %s: cannot create a file: %w", d.path, err)
	}
	errs = append(errs, f.Close(), os.Remove(f.Name()))
	rotated, err = d.rotate("")
	return leftovers, rotated, errors.Join(append(errs, err)...)
}

func (d *directory) create() error {
	if err := os.MkdirAll(d.path, 0o750); err != nil {
		return fmt.Errorf("cannot create it: %w", err)
	}
	return nil
}

// write creates a file with what content writes, called name or, if that exists, name
// and a number. After an error no part of the file is left. An error with a file is
// that of removing old files.
func (d *directory) write(name string, content func(io.Writer) error) (file string, rotated int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	file, err = d.complete(name, content)
	if errors.Is(err, fs.ErrNotExist) {
		// Someone has removed the directory, or another collector that started with
		// it has removed the unfinished file.
		file, err = d.complete(name, content)
	}
	if err != nil {
		return "", 0, fmt.Errorf("directory %s: %w", d.path, err)
	}
	d.sync()
	rotated, err = d.rotate(filepath.Base(file))
	return file, rotated, err
}

// complete creates a complete file.
func (d *directory) complete(name string, content func(io.Writer) error) (file string, err error) {
	if err := d.create(); err != nil {
		return "", err
	}
	temp, err := d.temporary(content)
	if err != nil {
		return "", err
	}
	for i := 1; ; i++ {
		numbered := name
		if i > 1 {
			numbered = fmt.Sprintf("%s-%d", name, i)
		}
		file = filepath.Join(d.path, numbered+extension)
		err = publish(temp, file)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, fs.ErrExist) || i == 9999 {
			if failed := os.Remove(temp); !errors.Is(failed, fs.ErrNotExist) {
				err = errors.Join(err, failed)
			}
			return "", err
		}
	}
}

// temporary creates an unfinished file and returns its path.
func (d *directory) temporary(content func(io.Writer) error) (name string, err error) {
	f, err := os.CreateTemp(d.path, tempPrefix+"*"+tempSuffix)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = errors.Join(f.Chmod(0o640), content(f))
	if err == nil {
		err = f.Sync()
	}
	return f.Name(), errors.Join(err, f.Close())
}

// publish renames a complete file, unless the name exists.
func publish(temp, file string) error {
	err := os.Link(temp, file)
	if err == nil {
		return os.Remove(temp)
	}
	if errors.Is(err, fs.ErrExist) {
		return err
	}
	// The filesystem has no links. A file created in between is overwritten.
	if _, err := os.Lstat(file); err == nil {
		return fs.ErrExist
	}
	return os.Rename(temp, file)
}

// sync makes a new name survive a crash of the host, where the system can.
func (d *directory) sync() {
	if f, err := os.Open(d.path); err == nil {
		_ = f.Sync()
		_ = f.Close()
	}
}

// rotate removes the oldest files that this exporter has written until the rest are
// within both limits. It does not remove the file called keep.
func (d *directory) rotate(keep string) (removed int, err error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return 0, fmt.Errorf("directory %s: cannot list it to remove old files: %w", d.path, err)
	}
	match := ours()
	var files []fs.FileInfo
	count, bytes := 0, bytesize.Size(0)
	for _, e := range entries {
		if !e.Type().IsRegular() || !match.MatchString(e.Name()) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // it no longer exists
		}
		count++
		bytes += bytesize.Size(info.Size())
		if e.Name() != keep {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	var errs []error
	for _, f := range files {
		if count <= d.maxFiles && bytes <= d.maxBytes {
			break
		}
		if err := os.Remove(filepath.Join(d.path, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove an old file: %w", err))
			continue
		}
		count--
		bytes -= bytesize.Size(f.Size())
		removed++
	}
	return removed, errors.Join(errs...)
}
