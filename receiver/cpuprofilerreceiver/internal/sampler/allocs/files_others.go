// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package allocs

import (
	"errors"
	"os"
)

func (files) identify(int) (fileID, error) { return fileID{}, errors.ErrUnsupported }

func (files) open(int, fileID) (*os.File, error) { return nil, errors.ErrUnsupported }
