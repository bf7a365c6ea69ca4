// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"os"
	"path/filepath"
)

// lock is held by the store that uses a directory. It is a file of its own, so that it
// is held before the database is looked at, and while a damaged one is set aside.
type lock struct{ file *os.File }

// lockDirectory locks a directory. The kernel unlocks it when the process ends, however
// it does.
func lockDirectory(dir string) (*lock, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the console's directory: %w", err)
	}
	locked, err := flock(f)
	if err == nil && locked {
		return &lock{f}, nil
	}
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("lock the console's directory %s: %w", dir, err)
	}
	return nil, inUse(dir)
}

func inUse(dir string) error {
	return fmt.Errorf("the console's directory %s is used by another collector, or by another console of this one: set directory to another for this one", dir)
}

func (l *lock) unlock() {
	if l != nil && l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}
