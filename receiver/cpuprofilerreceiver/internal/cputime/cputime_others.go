// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cputime

import (
	"errors"
	"time"
)

// threadTime returns 0, because sampling needs Linux.
func threadTime() int64 { return 0 }

// OfProcess returns an error, because it needs Linux.
func OfProcess(int) (time.Duration, error) { return 0, errors.ErrUnsupported }
