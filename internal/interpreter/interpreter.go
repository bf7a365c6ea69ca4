// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package interpreter is the contract between the receiver, which walks the stacks of
// interpreted programs, and a driver, which knows where an interpreter keeps them. A driver
// registers itself, as drivers of database/sql do. The driver in
// extension/languagesextension needs many modules, and a collector without the driver does
// not need them.
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
	// which may not answer, and does not trust their content.
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

// Layout describes where an interpreter keeps its stacks. The language that is not nil is
// the process's language. All languages are nil if the process has no known language.
type Layout struct {
	Python  *Python
	HotSpot *HotSpot
}

// Range is a range of addresses.
type Range struct{ Start, Limit uint64 }

// Has reports whether an address is in the range.
func (r Range) Has(address uint64) bool { return address-r.Start < r.Limit-r.Start }

// Python is the layout of CPython. Offsets are in bytes, and addresses are in the process.
type Python struct {
	// Minor is the version: 12 is Python 3.12.
	Minor int
	// Loop is the code of the interpreter's loop.
	Loop []Range
	// ThreadID is the offset of the thread's id from the thread pointer.
	ThreadID uint64
	// StateTLS is the offset of the thread's state from the thread pointer. It is 0 if the
	// state is thread-specific data. Then it is at the offset TSD, with StateKey's value
	// times TSDSize added, from the thread pointer or from the address that is stored at
	// TSD.
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

	// CodeType is the address of the type of code objects. The other fields are offsets in
	// a code object, except CodeSize, which is the size of a code object without its
	// instructions.
	CodeType                                                                  uint64
	CodeSize, CodeFirstLine, CodeFile, CodeName, CodeQualifiedName, CodeLines uint64
}

// HotSpot is the layout of the JVM HotSpot. Offsets are in bytes.
type HotSpot struct {
	// Version is the version of Java.
	Version int
	// Heaps have the generated code. A blob of code begins at a multiple of
	// 1<<SegmentShift, and is preceded by a header of HeapBlock bytes.
	Heaps        []CodeHeap
	SegmentShift uint
	HeapBlock    uint64

	// Offsets in a blob. BlobName is the offset of the address of its name, and BlobCode of
	// the begin of its code. BlobComplete is the offset of the number of bytes of code
	// after which its frame is complete, and BlobFrame of the size of the frame in words.
	// CodeOffsets reports whether Code and Deoptimize have offsets from the blob, and not
	// addresses.
	BlobName, BlobCode, BlobComplete, BlobFrame uint64
	CodeOffsets                                 bool
	// Offsets in a blob with a compiled method. CompileID is the offset of the number of
	// its compilation. Deoptimize is the offset of the code that frames return to if the
	// method was deoptimized. OriginalPC is the offset of the offset of the original return
	// address in such a frame.
	CompileID, Deoptimize, OriginalPC uint64

	// MethodConst is the offset in a method of the address of its constant part. ConstSize
	// is the size in bytes of the constant part before the bytecodes.
	MethodConst, ConstSize uint64
	// Bytecode is the word of an interpreted frame, counted from the frame pointer, that has
	// the address of its bytecode.
	Bytecode int

	// Names returns the functions of a frame, the innermost first.
	Names func(Code) ([]Function, error)
}

// CodeHeap is a heap of code. Segments has, for each of its segments, a byte that leads to
// the begin of the blob.
type CodeHeap struct {
	Range
	Segments uint64
}

// Code is a place in the code of a Java program.
type Code struct {
	// Interpreted reports whether the code is interpreted. Then Address is the address of a
	// method, and Position the number of a bytecode. Otherwise the code is compiled. Then
	// Address is the address of a method's blob, Position the number of bytes of code
	// before the instruction, and Check the CompileID of the blob.
	Interpreted     bool
	Address         uint64
	Position, Check uint32
}

// Function is a function at one of its lines.
type Function struct {
	Name, File      string
	StartLine, Line int64
}

var (
	mu     sync.Mutex
	driver Driver
)

// Register sets the driver to use. The driver's package calls it when it is initialized.
func Register(d Driver) {
	mu.Lock()
	defer mu.Unlock()
	driver = d
}

// Registered returns the driver. It returns nil without a driver.
func Registered() Driver {
	mu.Lock()
	defer mu.Unlock()
	return driver
}
