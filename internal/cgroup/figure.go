// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/hotprofile/hotprofile/internal/cgroup/keptfile"
)

// A figure is one file of a cgroup that is read many times.
type figure struct {
	r    *Reader
	file keptfile.File
	// replaced is kept over readings that fail, until wasReplaced returns it.
	replaced bool
}

func (r *Reader) figure(dir, name string) figure {
	return figure{r: r, file: r.files.File(filepath.Join(dir, name))}
}

// read returns the content, which is valid until the reader's next reading.
func (f *figure) read() ([]byte, error) {
	n, replaced, err := f.file.Read(f.r.buf)
	f.replaced = f.replaced || replaced
	if err != nil {
		return nil, f.gone(err)
	}
	return f.r.buf[:n], nil
}

// gone returns [ErrGone] for err if the whole cgroup was removed, not only the file.
func (f *figure) gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) && !isDir(filepath.Dir(f.file.Path())) {
		return ErrGone
	}
	return err
}

// wasReplaced reports, once, whether another cgroup has had the path since the last
// call, so that what it counts began at 0.
func (f *figure) wasReplaced() bool {
	replaced := f.replaced
	f.replaced = false
	return replaced
}

// From returns the path of the file that is read.
func (f *figure) From() string { return f.file.Path() }

// Close closes the file.
func (f *figure) Close() { f.file.Close() }

// exists returns [NoFile] if the kernel does not have the file. One that cannot be
// read now may be readable later.
func (f *figure) exists() error {
	switch _, err := f.read(); {
	case errors.Is(err, ErrGone):
		return ErrGone
	case isGone(err):
		return NoFile
	}
	return nil
}
