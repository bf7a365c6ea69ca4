// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package allocs

import (
	"os"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

func (files) identify(int) (fileID, error) { return fileID{}, perfevent.ErrUnsupported }

func (files) open(int, fileID) (*os.File, error) { return nil, perfevent.ErrUnsupported }
