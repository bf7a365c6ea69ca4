// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package sockdiag

import (
	"errors"
	"os"
)

// A Namespace is a network namespace whose sockets can be read: on Linux only.
type Namespace struct{}

var errNotLinux = errors.New("sockets can be read on Linux only")

// Open fails.
func Open() (*Namespace, error) { return nil, errNotLinux }

// OpenFile fails.
func OpenFile(file *os.File) (*Namespace, error) {
	_ = file.Close()
	return nil, errNotLinux
}

// Each fails.
func (*Namespace) Each(Limits, func(*Socket)) error { return errNotLinux }

// Closed fails.
func (*Namespace) Closed(Limits, func(*Socket)) (lost bool, err error) { return false, errNotLinux }

// ReportsClosed returns false.
func (*Namespace) ReportsClosed() bool { return false }

// Close does nothing.
func (*Namespace) Close() {}
