// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package openfile

import "errors"

var errNeedsLinux = errors.New("reading the kernel's files needs Linux")

// Read returns an error, because it needs Linux.
func (f *File) Read([]byte) (n int, replaced bool, err error) {
	return 0, false, f.fail("read", errNeedsLinux)
}

// ReadHead returns an error, because it needs Linux.
func (f *File) ReadHead([]byte) (n int, err error) { return 0, f.fail("read", errNeedsLinux) }

// Close has no effect, because files are never opened.
func (f *File) Close() {}
