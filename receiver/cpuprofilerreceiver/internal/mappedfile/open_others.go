// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mappedfile

import (
	"errors"
	"os"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/deadline"
)

var errNeedsLinux = errors.New("reading the files of other processes needs Linux")

// Open fails: it needs Linux, as do the others.
func Open(*deadline.Call, string, *samples.Mapping) (*os.File, ID, error) {
	return nil, ID{}, errNeedsLinux
}

// Program fails.
func Program(string, int) (ID, error) { return ID{}, errNeedsLinux }

// OpenProgram fails.
func OpenProgram(string, int, ID) (*os.File, error) { return nil, errNeedsLinux }

// OpenRegular fails.
func OpenRegular(*deadline.Call, string, int, uint64, string) (*os.File, ID, error) {
	return nil, ID{}, errNeedsLinux
}

// IsNone returns false.
func IsNone(error) bool { return false }
