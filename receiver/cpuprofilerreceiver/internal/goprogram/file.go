// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package goprogram

import (
	"os"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// File is the open executable of a process. Opening, reading and closing it have deadlines,
// because a file system may not answer.
type File struct {
	*os.File
	// Program contains the parts that the query selects. Err is the error of reading them.
	Program *Program
	Err     error

	key    stuckread.Key
	runner *stuckread.Runner
}

// Identify returns the ID of the executable of a process. key identifies the process.
func Identify(a *mappedfile.Access, key stuckread.Key, pid int) (mappedfile.ID, error) {
	var (
		id  mappedfile.ID
		err error
	)
	late := a.Runner.Run(key, procfs.At(a.Root).File(pid, "exe"), stuckread.ReadLimit, func(c *stuckread.Call) {
		c.Wait(nil, func() { id, err = mappedfile.Program(a.Root, pid) })
	})
	if late != nil {
		return mappedfile.ID{}, late // the wait may still set id and err
	}
	return id, err
}

// Open opens the executable of a process if its ID is still id. If q is not nil, Open also
// reads the parts that q selects.
func Open(a *mappedfile.Access, pid int, id mappedfile.ID, q *Query) (*File, error) {
	f := &File{key: id.Key(), runner: a.Runner}
	var err error
	late := a.Runner.Run(f.key, procfs.At(a.Root).File(pid, "exe"), stuckread.ReadLimit, func(c *stuckread.Call) {
		c.Wait(nil, func() { f.File, err = mappedfile.OpenProgram(a.Root, pid, id) })
		if err != nil || q == nil {
			return
		}
		r := mappedfile.NewReader(f.File, f.key, f.Name())
		r.Use(c)
		a.Spend(pid, func() { f.Program, f.Err = Read(r, id.Size, *q) })
	})
	if late != nil {
		return nil, late // the wait may still set err, and the garbage collector closes the file
	}
	return f, err
}

// Close closes the file. Some file systems contact their server when a file is closed.
func (f *File) Close() {
	_ = f.runner.Run(f.key, f.Name(), stuckread.ReadLimit, func(c *stuckread.Call) {
		c.Wait(nil, func() { _ = f.File.Close() }) // an error does not matter, because the file was only read
	})
}
