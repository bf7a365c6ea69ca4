// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// The resources for which the kernel measures pressure.
const (
	CPUPressure    = "cpu"
	MemoryPressure = "memory"
	IOPressure     = "io"
)

// A Pressure reads how long at least one of a group's tasks waited for a resource (PSI).
type Pressure struct{ figure }

// OpenPressure opens the pressure on a resource of the group's own cgroup in the v2 tree,
// which has the figure on a hybrid host too. The error is an [Unavailable] if the group has
// no cgroup of its own or the kernel does not measure pressure.
func (r *Reader) OpenPressure(g Group, on string) (*Pressure, error) {
	dir, err := r.tree.Own(g, V2Tree)
	if err != nil {
		return nil, err
	}
	p := &Pressure{r.figure(dir, on+".pressure")}
	_, _, err = p.Read()
	switch {
	case errors.Is(err, ErrGone):
	case isUnsupported(err):
		err = NoPSI
	case isGone(err):
		err = NoPSI
		if b, readErr := procfs.ReadFile(filepath.Join(dir, "cgroup.pressure"), 64); readErr == nil && bytes.HasPrefix(b, []byte("0")) {
			err = NoCgroupPSI // the kernel hides the file then
		}
	default:
		return p, nil // a file that cannot be read now may be readable later
	}
	p.Close()
	return nil, err
}

// Read returns the microseconds since the cgroup was made.
func (p *Pressure) Read() (waited uint64, replaced bool, err error) {
	b, err := p.read()
	if err != nil {
		if isUnsupported(err) {
			err = NoPSI
		}
		return 0, false, err
	}
	some, _ := lineOf(b, []byte("some "))
	_, total, ok := bytes.Cut(some, []byte("total="))
	if !ok {
		return 0, false, fmt.Errorf("read %s: no total of some", p.From())
	}
	if waited, err = p.parse(total); err != nil {
		return 0, false, err
	}
	return waited, p.wasReplaced(), nil
}
