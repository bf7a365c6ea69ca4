// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/hotprofile/hotprofile/internal/cgroup/keptfile"
)

// A figure is one file of a cgroup, read again and again.
type figure struct {
	r    *Reader
	file keptfile.File
	// replaced is kept through readings that fail, until one that tells.
	replaced bool
}

func (r *Reader) figure(dir, name string) figure {
	return figure{r: r, file: r.files.File(filepath.Join(dir, name))}
}

// read returns the content, which holds until the reader's next reading.
func (f *figure) read() ([]byte, error) {
	n, replaced, err := f.file.Read(f.r.buf)
	f.replaced = f.replaced || replaced
	if err != nil {
		return nil, f.gone(err)
	}
	return f.r.buf[:n], nil
}

// gone tells a file that a cgroup does not have from a cgroup that was removed.
func (f *figure) gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) && !isDir(filepath.Dir(f.file.Path())) {
		return ErrGone
	}
	return err
}

// wasReplaced says, once, that the cgroup is another one of the same path than
// at the last reading, so that what it counts began anew.
func (f *figure) wasReplaced() bool {
	replaced := f.replaced
	f.replaced = false
	return replaced
}

// From is the file that is read.
func (f *figure) From() string { return f.file.Path() }

// Close closes the file.
func (f *figure) Close() { f.file.Close() }

// exists finds out whether the kernel has the file: an [Unavailable] where it
// has not. One that cannot be read now may be readable later.
func (f *figure) exists() error {
	switch _, err := f.read(); {
	case errors.Is(err, ErrGone):
		return ErrGone
	case isGone(err):
		return NoFile
	}
	return nil
}
