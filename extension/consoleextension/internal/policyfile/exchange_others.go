// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package policyfile

import (
	"errors"
	"os"
)

func exchange(string, string) error { return errors.ErrUnsupported }

func copyAttributes(string, *os.File) error { return nil }
