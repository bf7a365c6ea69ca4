// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package symbolizer

import (
	"errors"

	"github.com/hotprofile/hotprofile/internal/samples"
)

var errNeedsLinux = errors.New("reading the files of other processes needs Linux")

// VDSO fails: it needs Linux.
func VDSO() ([]byte, error) { return nil, errNeedsLinux }

func openPerfMap(string, int) (perfMapFile, error) { return perfMapFile{}, errNeedsLinux }

func runtimeOf(string, int) samples.FrameType { return "" }
