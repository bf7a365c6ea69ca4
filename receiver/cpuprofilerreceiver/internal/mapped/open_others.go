// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mapped

import (
	"errors"
	"os"

	"github.com/hotprofile/hotprofile/internal/samples"
)

var errNeedsLinux = errors.New("reading the files of other processes needs Linux")

// Open fails: it needs Linux, as do the others.
func Open(string, *samples.Mapping) (*os.File, ID, error) { return nil, ID{}, errNeedsLinux }

// OpenRegular fails.
func OpenRegular(string, int, uint64, string) (*os.File, ID, error) { return nil, ID{}, errNeedsLinux }
