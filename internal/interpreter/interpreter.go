// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package interpreter is the contract between the receiver, which walks the stacks of
// interpreted programs, and a driver, which knows where an interpreter keeps them. A
// driver registers itself, as drivers of database/sql do: the one in
// extension/languagesextension needs many modules, which a collector without it does not
// have.
package interpreter

import (
	"io"
	"sync"
)

// Driver finds the interpreters of processes.
type Driver interface {
	// Knows reports whether a file may be an interpreter, by its path.
	Knows(path string) bool
	// Attach finds the interpreter of a process. It reads files and memory of the process,
	// which may not answer, and trusts nothing in them.
	Attach(p Process) (Layout, error)
}

// Process is a process to attach to.
type Process struct {
	PID int
	// Mappings are the executable mappings of files, by address.
	Mappings []Mapping
	// Open opens the file of a mapping, by its index.
	Open func(i int) (File, error)
	// Memory reads the memory of the process by address.
	Memory io.ReaderAt
}

// File is an open file.
type File interface {
	io.ReaderAt
	io.Closer
}

// Mapping is an executable mapping of a file.
type Mapping struct {
	Start, Limit, FileOffset uint64
	Path                     string
}

// Layout tells where an interpreter keeps its stacks. The language that is not nil is the
// one of the process; all are nil if it has none that is known.
type Layout struct {
	Python *Python
}

// Range is a range of addresses.
type Range struct{ Start, Limit uint64 }

// Has reports whether an address is in the range.
func (r Range) Has(address uint64) bool { return address-r.Start < r.Limit-r.Start }

// Python is the layout of CPython. Offsets are in bytes; addresses are the process's.
type Python struct {
	// Minor is the version: 12 is Python 3.12.
	Minor int
	// Loop is the code of the interpreter's loop.
	Loop []Range
	// ThreadID is the offset of the thread's id from the thread pointer.
	ThreadID uint64
	// StateTLS is the offset of the thread's state from the thread pointer; 0 if the state
	// is thread-specific data: then it is at the offset TSD, with StateKey's value times
	// TSDSize added, from the thread pointer or from the address that is stored at TSD.
	StateTLS    int64
	StateKey    uint64
	TSD         int64
	TSDSize     uint64
	TSDIndirect bool

	// StateFrame is the offset of the current frame in a thread's state. If CFrame is set,
	// it is the address of a structure that has the frame at the offset CFrameCurrent.
	StateFrame    uint64
	CFrame        bool
	CFrameCurrent uint64

	// These are offsets in a frame: of the caller, the code object and the instruction.
	FrameBack, FrameCode, FrameLast uint64
	// FrameEntry is the offset of a byte that is FrameEntryIs in the first frame of a call
	// of the loop. Both are 0 if each frame has a call of its own.
	FrameEntry   uint64
	FrameEntryIs byte

	// CodeType is the address of the type of code objects. The offsets are in a code object,
	// whose size without its instructions is CodeSize.
	CodeType                                                                  uint64
	CodeSize, CodeFirstLine, CodeFile, CodeName, CodeQualifiedName, CodeLines uint64
}

var (
	mu     sync.Mutex
	driver Driver
)

// Register makes a driver the one to use. It is called by the driver's package when it is
// initialized.
func Register(d Driver) {
	mu.Lock()
	defer mu.Unlock()
	driver = d
}

// Registered returns the driver; nil without one.
func Registered() Driver {
	mu.Lock()
	defer mu.Unlock()
	return driver
}
