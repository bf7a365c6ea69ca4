// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package mappedfile opens files of other processes, those behind their mappings above
// all, and identifies them. It identifies them by what the kernel says: what is in a
// file, such as a build id, may be anybody's claim.
package mappedfile

import (
	"errors"
	"os"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/deadline"
)

// ErrNoRoot is returned where the root of a process cannot be opened: it has ended, or
// has another root by now.
var ErrNoRoot = errors.New("its root directory cannot be opened")

// ID identifies a file and its content. No process can give a file the ID of another
// one: the kernel sets the time of the last change.
type ID struct {
	// Layer is the name that overlayfs gives the file in its lowest layer. It is the same in all
	// containers of an image, whose device numbers differ. A copy in a container's own
	// layer keeps it, but has another time of the last change.
	Layer         string
	Device, Inode uint64 // 0 with Layer
	// Size is in bytes, the times are in nanoseconds.
	Size, Modified, Changed int64
}

// Key returns what is waited for while the file is read: its file system.
func (id ID) Key() deadline.Key { return deadline.Key{Device: id.Device} }

// File identifies a file before it is opened, as the kernel's record of a mapping does,
// and the root that it was mapped in: there it may be opened by its path, and there its
// debug file is.
type File struct {
	major, minor uint32
	inode, root  uint64
}

// FileOf returns the file behind a mapping.
func FileOf(m *samples.Mapping) File {
	return File{m.DeviceMajor, m.DeviceMinor, m.Inode, m.Root}
}

// Opening returns what is waited for while the file of a mapping is opened: its file
// system, and the paths of the process's root.
func Opening(m *samples.Mapping) deadline.Key {
	return deadline.Key{Root: m.Root, Device: device(m.DeviceMajor, m.DeviceMinor)}
}

// Reading returns what is waited for while it is read.
func Reading(m *samples.Mapping) deadline.Key {
	return deadline.Key{Device: device(m.DeviceMajor, m.DeviceMinor)}
}

func device(major, minor uint32) uint64 { return uint64(major)<<32 | uint64(minor) }

// Reader reads an open file in the waits of a call.
type Reader struct {
	file    *os.File
	subject deadline.Subject
	call    *deadline.Call
}

// NewReader returns a reader of an open file. name is for the log.
func NewReader(f *os.File, key deadline.Key, name string) *Reader {
	return &Reader{file: f, subject: deadline.Subject{Key: key, Name: name}}
}

// Key and Name return what NewReader was given.
func (r *Reader) Key() deadline.Key { return r.subject.Key }

// Name is documented at Key.
func (r *Reader) Name() string { return r.subject.Name }

// Use makes the following reads waits of a call.
func (r *Reader) Use(c *deadline.Call) { r.call = c }

// Stuck reports whether a read was given up and has not ended: then nothing may be
// read.
func (r *Reader) Stuck() bool { return r.subject.Stuck() }

// ReadAt implements io.ReaderAt.
func (r *Reader) ReadAt(b []byte, off int64) (n int, err error) {
	r.call.Wait(&r.subject, func() { n, err = r.file.ReadAt(b, off) })
	return n, err
}

// Size returns the size of the file.
func (r *Reader) Size() (size int64, err error) {
	r.call.Wait(&r.subject, func() {
		var info os.FileInfo
		if info, err = r.file.Stat(); err == nil {
			size = info.Size()
		}
	})
	return size, err
}

// Close closes the file.
func (r *Reader) Close() error { return r.CloseIn(r.call) }

// CloseIn closes the file in a wait of a call, since some file systems ask their server
// even then. The file may be in use.
func (r *Reader) CloseIn(c *deadline.Call) (err error) {
	c.Wait(&r.subject, func() { err = r.file.Close() })
	return err
}
