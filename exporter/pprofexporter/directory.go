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
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hotprofile/hotprofile/internal/bytesize"
)

// directory is where finished files are, and no others of ours: a file has its
// name once it is complete and on disk.
type directory struct {
	path     string
	maxFiles int
	maxBytes bytesize.Size

	mu sync.Mutex // one file at a time, so that rotation counts right
}

const (
	extension  = ".pb.gz"
	tempPrefix = ".hotprofile-"
	tempSuffix = ".tmp"
	timeLayout = "20060102T150405Z"
)

// ours matches what fileName makes, and little else.
func ours() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9._-]+_[A-Za-z0-9._-]+_[0-9]{8}T[0-9]{6}Z_[A-Za-z0-9._-]+_[A-Za-z0-9._-]+\.pb\.gz$`)
}

// fileName is the name of a file without its extension, in which nothing of
// where it came from can name another directory. With the extension and a
// number it has at most 200 bytes.
func fileName(service, unit string, at time.Time, policy, profileType string) string {
	// A unit is best told by its end: a cgroup's path ends in its own name.
	return strings.Join([]string{
		head(safe(service), 60),
		tail(safe(unit), 64),
		at.UTC().Format(timeLayout),
		head(safe(policy), 24),
		head(safe(profileType), 16),
	}, "_")
}

// safe replaces every byte outside of [A-Za-z0-9._-]. The result is not empty,
// and neither hidden nor an option when it begins a file's name.
func safe(s string) string {
	b := []byte(s)
	for i, c := range b {
		switch {
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			b[i] = '-'
		}
	}
	if len(b) == 0 {
		return "unknown"
	}
	if b[0] == '.' || b[0] == '-' {
		b[0] = '_'
	}
	return string(b)
}

func head(s string, n int) string { return s[:min(n, len(s))] }

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// open makes the directory ready and reports what it removed: leftovers of a
// crash, and files above the limits.
func (d *directory) open() (leftovers, rotated int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.make(); err != nil {
		return 0, 0, fmt.Errorf("directory %s: %w", d.path, err)
	}
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return 0, 0, fmt.Errorf("directory %s: cannot be listed: %w", d.path, err)
	}
	var errs []error
	for _, e := range entries {
		// Half a file holds nothing that can be read, so it is not worth keeping.
		if e.Type().IsRegular() && strings.HasPrefix(e.Name(), tempPrefix) && strings.HasSuffix(e.Name(), tempSuffix) {
			errs = append(errs, os.Remove(filepath.Join(d.path, e.Name())))
			leftovers++
		}
	}
	f, err := os.CreateTemp(d.path, tempPrefix+"*"+tempSuffix)
	if err != nil {
		return leftovers, 0, fmt.Errorf("directory %s: no file can be made there: %w", d.path, err)
	}
	errs = append(errs, f.Close(), os.Remove(f.Name()))
	rotated, err = d.rotate("")
	return leftovers, rotated, errors.Join(append(errs, err)...)
}

func (d *directory) make() error {
	if err := os.MkdirAll(d.path, 0o750); err != nil {
		return fmt.Errorf("cannot be made: %w", err)
	}
	return nil
}

// write makes a file of what content writes, under name or, where that is
// taken, name and a number. Whatever goes wrong, no part of a file stays. An
// error beside a file is of the rotation after it.
func (d *directory) write(name string, content func(io.Writer) error) (file string, rotated int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	file, err = d.place(name, content)
	if errors.Is(err, fs.ErrNotExist) {
		// Someone removed the directory meanwhile, or another collector that
		// starts on it took the unfinished file for a leftover.
		file, err = d.place(name, content)
	}
	if err != nil {
		return "", 0, fmt.Errorf("directory %s: %w", d.path, err)
	}
	d.sync()
	rotated, err = d.rotate(filepath.Base(file))
	return file, rotated, err
}

// place makes a complete file.
func (d *directory) place(name string, content func(io.Writer) error) (file string, err error) {
	if err := d.make(); err != nil { // someone may have removed it
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

// publish gives a complete file its name, unless another has it.
func publish(temp, file string) error {
	err := os.Link(temp, file)
	if err == nil {
		return os.Remove(temp)
	}
	if errors.Is(err, fs.ErrExist) {
		return err
	}
	// A filesystem without links. What takes the name in between is lost.
	if _, err := os.Lstat(file); err == nil {
		return fs.ErrExist
	}
	return os.Rename(temp, file)
}

// sync makes a new name outlast a crash of the host, where the system can.
func (d *directory) sync() {
	if f, err := os.Open(d.path); err == nil {
		_ = f.Sync()
		_ = f.Close()
	}
}

// rotate removes the oldest files of ours until the rest keep both limits, but
// never the one called keep.
func (d *directory) rotate(keep string) (removed int, err error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return 0, fmt.Errorf("directory %s: cannot be listed for rotation: %w", d.path, err)
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
			continue // gone since it was listed
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
			errs = append(errs, fmt.Errorf("rotation: %w", err))
			continue
		}
		count--
		bytes -= bytesize.Size(f.Size())
		removed++
	}
	return removed, errors.Join(errs...)
}
