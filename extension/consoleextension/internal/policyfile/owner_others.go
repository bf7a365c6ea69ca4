// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package policyfile

import (
	"io/fs"
	"os"
)

func own(*os.File, fs.FileInfo) error { return nil }

func writable(string) error { return nil }
