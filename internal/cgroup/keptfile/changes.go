// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package keptfile

// Changes counts the writes to files, as the kernel tells of them, so that a
// limit which nobody touched need not be read again. Only writes are told: what
// the kernel itself changes is not, nor that a cgroup was removed. It belongs to
// one goroutine.
type Changes struct {
	fd      int // below 0 where the kernel tells nothing
	max     int
	watches map[int32]*Watch
	buf     []byte
}

// A Watch counts the writes to one file.
type Watch struct {
	of      *Changes
	id      int32
	changes uint32
}

// Changes is how many there were; it grows by at least one with each round in
// which the file was written to.
func (w *Watch) Changes() uint32 { return w.changes }

// Watched is how many files are watched.
func (c *Changes) Watched() int { return len(c.watches) }
