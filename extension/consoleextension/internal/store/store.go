// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
)

// The defaults of Options.
const (
	DefaultMaxAge   = 48 * time.Hour
	DefaultMaxBytes = 300 << 20
)

// Options say where and how much a store keeps.
type Options struct {
	// Directory is made if it does not exist. One store at a time uses it.
	Directory string
	// MaxAge is the time that anything is kept; 0: DefaultMaxAge.
	MaxAge time.Duration
	// MaxBytes is what everything in the directory may take on disk; 0: DefaultMaxBytes.
	MaxBytes int64
	// Now is the clock that people read; nil: time.Now. What is kept how long does not
	// depend on it.
	Now func() time.Time
	// Uptime is a clock that never jumps; nil: the time since Open.
	Uptime func() time.Duration
	Logger *zap.Logger // nil: none
}

// Store keeps what the console shows. It implements Reader. All methods may be called
// at the same time.
type Store struct {
	options Options
	log     *zap.Logger
	lock    *lock
	db      *database

	profiles *profileFiles
}

// Open opens the store of a directory. A file that is damaged is set aside and logged,
// and the store begins anew. It fails if the directory cannot be used, or if another
// store uses it.
func Open(o Options) (*Store, error) {
	o.MaxAge = cmp.Or(o.MaxAge, DefaultMaxAge)
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Uptime == nil {
		start := time.Now()
		o.Uptime = func() time.Duration { return time.Since(start) }
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	s := &Store{options: o, log: o.Logger}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Store) open() error {
	dir := s.options.Directory
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the console's directory: %w; set directory to one that the collector may write", err)
	}
	var err error
	if s.lock, err = lockDirectory(dir); err != nil {
		return err
	}
	if s.db, err = openDatabase(filepath.Join(dir, "console.db"), s.log, s.options.Now); err != nil {
		return err
	}
	return s.openProfiles()
}

// Close writes what is not yet on disk, and closes the store.
func (s *Store) Close() error {
	s.closeProfiles()
	var err error
	if s.db != nil {
		err = s.db.close()
	}
	s.lock.unlock()
	return err
}
