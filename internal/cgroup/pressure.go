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

// The resources whose pressure the kernel measures.
const (
	CPUPressure    = "cpu"
	MemoryPressure = "memory"
	IOPressure     = "io"
)

// A Pressure reads how long at least one task of a group waited for a resource (PSI).
type Pressure struct{ figure }

// OpenPressure opens the pressure file of a resource in the group's own cgroup in the v2
// tree. On a hybrid host, the v2 tree has this file too. The error is an [Unavailable] if
// the group has no separate cgroup or the kernel does not measure pressure.
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
			err = NoCgroupPSI // the kernel then hides the file
		}
	default:
		return p, nil // the file may be readable later
	}
	p.Close()
	return nil, err
}

// Read returns the microseconds that tasks waited since the cgroup was created.
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
