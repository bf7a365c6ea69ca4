// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package mappedfile opens files of other processes, mainly the files of their mappings,
// and identifies them. An ID consists of data from the kernel, because the content of a
// file, such as a build id, can be forged.
package mappedfile

import (
	"errors"
	"os"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// Access is the way in which a part of the receiver reads the files and the memory of the
// host's processes. The zero value reads the collector's own host without limits.
type Access struct {
	// Root is the directory where the host's root is mounted. "" means "/".
	Root string
	// Runner runs reads with a deadline. It may be nil.
	Runner *stuckread.Runner
	// Meter measures the CPU time of reading. Budget limits this CPU time. Meter and
	// Budget may be nil.
	Budget *cputime.Budget
	Meter  *cputime.Meter
}

// Spend runs work and charges its CPU time to a process. The pid 0 stands for the host.
func (a *Access) Spend(pid int, work func()) { a.Budget.Spend(pid, a.Meter.Do(work)) }

// VDSOPath is the path of the mapping of the vdso.
const VDSOPath = "[vdso]"

// ErrNoRoot means that the root directory of a process cannot be opened. The process may
// have ended or have changed its root directory.
var ErrNoRoot = errors.New("its root directory cannot be opened")

// ID identifies a file and its content. No process can forge the ID of another file,
// because the kernel sets the time of the last change.
type ID struct {
	// Layer is the file handle that overlayfs derives from the file in the lowest layer.
	// It is the same in all containers of an image, although their device numbers
	// differ. A copy in a container's own layer keeps the file handle, but has a
	// different time of the last change.
	Layer         string
	Device, Inode uint64 // both are 0 if Layer is set
	// Size is in bytes. The times are in nanoseconds.
	Size, Modified, Changed int64
}

// Key returns the stuckread.Key for reads of the file. It identifies the file system.
func (id ID) Key() stuckread.Key { return stuckread.Key{Device: id.Device} }

// File identifies the file of a mapping before it is opened. It includes the root directory
// of the process, because the file's path and debug file are below that root.
type File struct {
	major, minor uint32
	inode, root  uint64
}

// FileOf returns the file of a mapping.
func FileOf(m *samples.Mapping) File {
	return File{m.DeviceMajor, m.DeviceMinor, m.Inode, m.Root}
}

// Opening returns the stuckread.Key for opening the file of a mapping. The key
// identifies the file's file system. It also identifies the process's root, because the
// path may cross other file systems.
func Opening(m *samples.Mapping) stuckread.Key {
	return stuckread.Key{Root: m.Root, Device: device(m.DeviceMajor, m.DeviceMinor)}
}

// Reading returns the stuckread.Key for reading the file of a mapping.
func Reading(m *samples.Mapping) stuckread.Key {
	return stuckread.Key{Device: device(m.DeviceMajor, m.DeviceMinor)}
}

func device(major, minor uint32) uint64 { return uint64(major)<<32 | uint64(minor) }

// Reader reads an open file. Each read is a wait of a stuckread.Call.
type Reader struct {
	file    *os.File
	subject stuckread.Subject
	call    *stuckread.Call
}

// NewReader returns a Reader of an open file. name is the file's name in the log.
func NewReader(f *os.File, key stuckread.Key, name string) *Reader {
	return &Reader{file: f, subject: stuckread.Subject{Key: key, Name: name}}
}

// Key returns the stuckread.Key that was passed to NewReader.
func (r *Reader) Key() stuckread.Key { return r.subject.Key }

// Name returns the file's name in the log.
func (r *Reader) Name() string { return r.subject.Name }

// Use sets the stuckread.Call with which the next reads wait for the file.
func (r *Reader) Use(c *stuckread.Call) { r.call = c }

// Stuck reports whether a read timed out and is still running. Until it has ended, do not
// read again.
func (r *Reader) Stuck() bool { return r.subject.Stuck() }

// ReadAt implements io.ReaderAt.
func (r *Reader) ReadAt(b []byte, off int64) (n int, err error) {
	r.call.Wait(&r.subject, func() { n, err = r.file.ReadAt(b, off) })
	return n, err
}

// Stat returns the size and the times of the file.
func (r *Reader) Stat() (info os.FileInfo, err error) {
	r.call.Wait(&r.subject, func() { info, err = r.file.Stat() })
	return info, err
}

// Close closes the file.
func (r *Reader) Close() error { return r.CloseIn(r.call) }

// CloseIn closes the file in a call of c.Wait, because some file systems contact their
// server on close. The file may still be in use.
func (r *Reader) CloseIn(c *stuckread.Call) (err error) {
	c.Wait(&r.subject, func() { err = r.file.Close() })
	return err
}
