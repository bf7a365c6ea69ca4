// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package store

import "os"

// flock locks nothing: on this system bbolt's own lock has to do.
func flock(*os.File) (locked bool, err error) { return true, nil }

// bytesOnDisk returns the bytes that a file may take on disk.
func bytesOnDisk(st os.FileInfo) int64 { return st.Size() }
