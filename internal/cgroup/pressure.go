// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"path/filepath"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// These are the resources whose pressure the kernel measures.
const (
	CPUPressure    = "cpu"
	MemoryPressure = "memory"
	IOPressure     = "io"
)

// OpenPressure opens the time, in microseconds, for which at least one task of a group
// waited for a resource (PSI). It reads the pressure file of the group's own cgroup in the
// v2 tree, which also exists on hybrid hosts. The error is an [Unavailable] if the group
// has no separate cgroup or the kernel does not measure pressure.
func (r *Reader) OpenPressure(g Group, on string) (*Value, error) {
	dir, err := r.tree.Own(g, V2Tree)
	if err != nil {
		return nil, err
	}
	v, err := openValue(r.part(dir, on+".pressure", totalOfSome))
	if errors.Is(err, NoFile) {
		err = NoPSI
		if b, readErr := procfs.ReadFile(filepath.Join(dir, "cgroup.pressure"), 64); readErr == nil && bytes.HasPrefix(b, []byte("0")) {
			err = NoCgroupPSI // the kernel then hides the file
		}
	}
	return v, err
}

// totalOfSome returns the total of the line "some" in a pressure file, in microseconds.
func totalOfSome(content []byte) (uint64, error) {
	some, _ := lineOf(content, []byte("some "))
	_, total, ok := bytes.Cut(some, []byte("total="))
	if !ok {
		return 0, errors.New("no total of some")
	}
	return parseFigure(total)
}
