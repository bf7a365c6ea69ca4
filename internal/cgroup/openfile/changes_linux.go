// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package openfile

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// One collector uses at most 1/watchShare of the user's limit of watches, because
// other programs need watches too.
const watchShare = 4

// NewChanges returns a set of at most maxWatches watches. Without inotify, no file can be
// watched.
func NewChanges(maxWatches int) *Changes {
	c := &Changes{fd: -1, max: maxWatches, watches: map[int32]*Watch{}}
	if n, err := procfs.Sysctl("fs/inotify/max_user_watches"); err == nil {
		c.max = min(c.max, n/watchShare)
	}
	if c.max <= 0 {
		return c
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return c
	}
	c.fd = fd
	c.buf = make([]byte, 4096)
	return c
}

// Watch starts counting writes to files. It returns nil if one of the files cannot be
// watched.
func (c *Changes) Watch(files ...File) *Watch {
	if c.fd < 0 || len(c.watches)+len(files) > c.max {
		return nil
	}
	w := &Watch{of: c}
	for _, f := range files {
		id, err := unix.InotifyAddWatch(c.fd, f.path, unix.IN_MODIFY)
		if err != nil || c.watches[int32(id)] != nil { // another name of a watched file has the same id
			w.Close()
			return nil
		}
		w.ids = append(w.ids, int32(id))
		c.watches[int32(id)] = w
	}
	return w
}

// Close ends the watch.
func (w *Watch) Close() {
	if w == nil {
		return
	}
	for _, id := range w.ids {
		if w.of.watches[id] == w {
			delete(w.of.watches, id)
			_, _ = unix.InotifyRmWatch(w.of.fd, uint32(id))
		}
	}
}

// Take counts the writes since the last call.
func (c *Changes) Take() {
	if c.fd < 0 {
		return
	}
	for {
		n, err := unix.Read(c.fd, c.buf)
		if err == unix.EINTR { //nolint:errorlint // the hot path; unix returns the bare number
			continue
		}
		if n <= 0 {
			return // EAGAIN: no more events
		}
		c.count(c.buf[:n])
	}
}

// count parses records of struct inotify_event. See inotify(7).
func (c *Changes) count(b []byte) {
	const head = unix.SizeofInotifyEvent
	for len(b) >= head {
		id := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[unsafe.Offsetof(unix.InotifyEvent{}.Mask):])
		name := int(binary.NativeEndian.Uint32(b[unsafe.Offsetof(unix.InotifyEvent{}.Len):]))
		switch w := c.watches[id]; {
		case mask&unix.IN_Q_OVERFLOW != 0:
			for _, w := range c.watches {
				w.changes++
			}
		case w != nil:
			w.changes++
			if mask&unix.IN_IGNORED != 0 { // the file was removed
				delete(c.watches, id)
			}
		}
		b = b[min(len(b), head+name):]
	}
}

// Close ends all watches.
func (c *Changes) Close() {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
		c.fd = -1
	}
	clear(c.watches)
}
