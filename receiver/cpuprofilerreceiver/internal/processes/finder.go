// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import "context"

// Finder looks for the processes that targets name. It belongs to one
// goroutine.
type Finder struct{ cfg FinderConfig }

// FinderConfig is what a Finder needs to know.
type FinderConfig struct {
	Config
	// OwnUser finds only processes that this process may sample without a right.
	OwnUser bool
}

// Match is a process that was found.
type Match struct {
	PID     int
	Threads int
	// Start is when the process was forked, in clock ticks since the host
	// booted: with the pid it tells a process from an earlier one.
	Start uint64
}

// NewFinder returns a Finder.
func NewFinder(cfg FinderConfig) *Finder { return &Finder{cfg: cfg} }

// Find returns the processes that are there now and wanted, by pid, and the
// targets that nothing was found for.
func (f *Finder) Find(ctx context.Context) (found []Match, missing []Target, err error) {
	return nil, nil, nil
}
