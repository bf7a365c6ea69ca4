// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/hotprofile/hotprofile/internal/cgroup/openfile"
)

// A Value is a number in the files of one cgroup, such as a counter. The numbers of several
// files are added up.
type Value struct{ parts []part }

// part is one file of a Value.
type part struct {
	r     *Reader
	file  openfile.File
	parse func(content []byte) (uint64, error)
	minus bool // the number of the file is subtracted
	// replaced reports whether a different cgroup has taken over the path. It stays set
	// across failed reads.
	replaced bool
}

func (r *Reader) part(dir, name string, parse func(content []byte) (uint64, error)) part {
	return part{r: r, file: r.files.File(filepath.Join(dir, name)), parse: parse}
}

// openValue opens the files of a Value. The error is an [Unavailable] or [ErrGone]. Other
// errors are not returned, because the files may be readable later.
func openValue(parts ...part) (*Value, error) {
	v := &Value{parts}
	for i := range v.parts {
		_, err := v.parts[i].read()
		_, unavailable := errors.AsType[Unavailable](err)
		switch {
		case isGone(err):
			err = NoFile
		case !unavailable && !errors.Is(err, ErrGone):
			continue
		}
		v.Close()
		return nil, err
	}
	return v, nil
}

// read returns the number of the file. The error is [ErrGone] if the whole cgroup was
// removed, not only the file.
func (p *part) read() (uint64, error) {
	size, replaced, err := p.file.Read(p.r.buf)
	p.replaced = p.replaced || replaced
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isDir(filepath.Dir(p.file.Path())):
		return 0, ErrGone
	case isUnsupported(err):
		return 0, NoPSI
	case err != nil:
		return 0, err
	}
	n, err := p.parse(p.r.buf[:size])
	if _, unavailable := errors.AsType[Unavailable](err); err != nil && !unavailable {
		err = fmt.Errorf("read %s: %w", p.file.Path(), err)
	}
	return n, err
}

// Read returns the number. replaced reports whether a different cgroup took over the path
// since the last Read. The counters of the new cgroup began at 0.
func (v *Value) Read() (n uint64, replaced bool, err error) {
	for i := range v.parts {
		p := &v.parts[i]
		of, err := p.read()
		switch {
		case err != nil:
			return 0, false, err
		case p.minus:
			n -= min(of, n) // the files are not read at the same moment
		default:
			n += of
		}
	}
	for i := range v.parts {
		replaced = replaced || v.parts[i].replaced
		v.parts[i].replaced = false
	}
	return n, replaced, nil
}

// From returns the path of the first file that is read.
func (v *Value) From() string { return v.parts[0].file.Path() }

// Close closes the files.
func (v *Value) Close() {
	for i := range v.parts {
		v.parts[i].file.Close()
	}
}
