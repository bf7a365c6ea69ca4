// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package atomicfile writes files that other programs see only when the files are complete.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// The name of a temporary file begins with TemporaryPrefix and ends with TemporarySuffix.
const (
	TemporaryPrefix = ".hotprofile-"
	TemporarySuffix = ".tmp"
)

// Temporary writes a temporary file in a directory, and returns the path of the file. If
// finish is not nil, Temporary calls finish with the written file before closing the file.
// Callers use finish to set the file's mode or to synchronize the file. Without finish,
// only the owner may read the file. After an error, the temporary file is removed.
func Temporary(dir string, content []byte, finish func(*os.File) error) (path string, err error) {
	f, err := os.CreateTemp(dir, TemporaryPrefix+"*"+TemporarySuffix)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(content)
	if err == nil && finish != nil {
		err = finish(f)
	}
	return f.Name(), errors.Join(err, f.Close())
}

// Write replaces the file at a path with a temporary file. Write passes finish to
// Temporary. After an error, the temporary file is removed.
func Write(path string, content []byte, finish func(*os.File) error) error {
	temp, err := Temporary(filepath.Dir(path), content, finish)
	if err != nil {
		return err
	}
	if err = os.Rename(temp, path); err != nil {
		err = errors.Join(err, os.Remove(temp))
	}
	return err
}

// SyncDirectory makes the new names in a directory survive a crash of the host, if the
// system supports it.
func SyncDirectory(dir string) {
	if f, err := os.Open(dir); err == nil {
		_ = f.Sync()
		_ = f.Close()
	}
}

// Full reports whether an error means a full disk or an exceeded quota.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
