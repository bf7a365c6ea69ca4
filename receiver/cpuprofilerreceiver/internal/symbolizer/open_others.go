// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package symbolizer

import (
	"errors"
	"os"

	"github.com/hotprofile/hotprofile/internal/samples"
)

var errNeedsLinux = errors.New("reading the files of other processes needs Linux")

func openMapping(string, *samples.Mapping) (*os.File, identity, error) {
	return nil, identity{}, errNeedsLinux
}

// VDSO fails: it needs Linux.
func VDSO() ([]byte, error) { return nil, errNeedsLinux }

func openPerfMap(string, int) (perfMapFile, error) { return perfMapFile{}, errNeedsLinux }

func runtimeOf(string, int) samples.FrameType { return "" }

func openRegular(string, int, string) (*os.File, int64, error) { return nil, 0, errNeedsLinux }
