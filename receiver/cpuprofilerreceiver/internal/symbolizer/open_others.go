// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package symbolizer

import (
	"errors"
	"os"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
)

var errNeedsLinux = errors.New("reading the files of other processes needs Linux")

// VDSO fails: it needs Linux.
func VDSO() ([]byte, error) { return nil, errNeedsLinux }

func openPerfMap(string, int) (*os.File, mappedfile.ID, error) {
	return nil, mappedfile.ID{}, errNeedsLinux
}

func runtimeOf(string, int) samples.FrameType { return "" }
