// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"

	"github.com/google/pprof/profile"
)

// openProfiles finds the profile files of the directory. It is called once, by Open,
// when the database is open and the openings are loaded.
func (*Store) openProfiles() error { return nil }

// profilesOf returns what is kept of the profiles of an opening.
func (*Store) profilesOf(string) []ProfileInfo { return nil }

// profileBytes returns what all profile files take on disk.
func (*Store) profileBytes() int64 { return 0 }

// removeProfiles deletes the profile files of openings that are no longer kept. It is
// called without a lock.
func (*Store) removeProfiles([]string) {}

// Profile implements Reader.
func (*Store) Profile(context.Context, string, ProfileKey) (*profile.Profile, error) {
	return nil, ErrNotFound
}
