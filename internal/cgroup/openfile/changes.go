// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package openfile

// Changes counts writes to files with inotify, so that an unchanged limit need not be read
// again. inotify does not report changes by the kernel itself or the removal of a cgroup.
// Changes belongs to one goroutine.
type Changes struct {
	fd      int // negative without inotify
	max     int
	watches map[int32]*Watch
	buf     []byte
}

// A Watch counts the writes to a limit, which may have several files. A nil Watch counts no
// writes.
type Watch struct {
	of      *Changes
	ids     []int32 // one per file
	changes uint32
}

// Changes returns the number of writes. The number grows by at least one at each Take if
// a file was written since the previous Take.
func (w *Watch) Changes() uint32 {
	if w == nil {
		return 0
	}
	return w.changes
}
