// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package procfs

import (
	"errors"
	"os"
	"time"
)

// sinceBoot returns the time since 1970, because only Linux
// counts start times from the boot.
func sinceBoot() time.Duration { return time.Duration(time.Now().UnixNano()) }

// File is an open file.
type File struct{ *os.File }

// Open opens a file for reading.
func Open(path string) (File, error) {
	f, err := os.Open(path)
	return File{f}, err
}

// OpenFileLimit returns 0, because it needs Linux.
func OpenFileLimit() int { return 0 }

var errNotLinux = errors.New("namespaces need Linux")

// Namespace returns an error, because namespaces exist only on Linux.
func (FS) Namespace(int, string) (Namespace, error) { return Namespace{}, errNotLinux }

// ThreadNamespace returns an error, because it needs Linux.
func ThreadNamespace(string) (Namespace, error) { return Namespace{}, errNotLinux }

// OpenNamespace returns an error, because it needs Linux.
func (FS) OpenNamespace(int, string) (*os.File, Namespace, error) {
	return nil, Namespace{}, errNotLinux
}

// AddSockets returns false, because it needs Linux.
func (FS) AddSockets(map[uint32]bool, int, int, time.Time) (whole bool) { return false }
