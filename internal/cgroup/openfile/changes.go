// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package openfile

// Changes counts the writes to files by inotify, so that an unchanged limit need not be
// read again. Changes by the kernel itself and the removal of a cgroup are not reported. It
// belongs to one goroutine.
type Changes struct {
	fd      int // below 0 without inotify
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

// Changes returns the number of writes. It grows by at least one for each Take with a write
// to the file since the Take before.
func (w *Watch) Changes() uint32 { return w.changes }
