// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package interpreter connects the receiver, which walks the stacks of interpreted
// programs, to a driver, which knows where an interpreter keeps its stacks. A driver
// registers itself, as database/sql drivers do. The driver in extension/languagesextension
// needs many modules, and a collector without that extension does not need to link them.
package interpreter

import (
	"io"
	"sync"
)

// Driver finds the interpreters of processes.
type Driver interface {
	// Knows reports whether a file may be an interpreter, judging by its path.
	Knows(path string) bool
	// Attach finds the interpreter of a process. It reads files and memory of the process.
	// The reads may hang, and Attach does not trust their content.
	Attach(p Process) (Layout, error)
	// ThreadContext returns the address of the TLS descriptor of the thread-local variable
	// in which each thread of a process publishes its active span. As in Attach, the reads
	// may hang, and their content is not trusted.
	ThreadContext(p Process) (uint64, error)
}

// Process is a process to attach to.
type Process struct {
	PID int
	// Mappings are the executable mappings of files, sorted by address.
	Mappings []Mapping
	// Open opens the file of mapping i.
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

// Layout describes where an interpreter keeps its stacks. Only the field of the process's
// language is set, and no field is set if the language is unknown.
type Layout struct {
	Python  *Python
	HotSpot *HotSpot
	V8      *V8
	PHP     *PHP
}

// Range is a range of addresses.
type Range struct{ Start, Limit uint64 }

// Has reports whether an address is in the range.
func (r Range) Has(address uint64) bool { return address-r.Start < r.Limit-r.Start }

// Python is the layout of CPython. Offsets are in bytes, and addresses are in the
// process's memory.
type Python struct {
	// Minor is the minor version, such as 12 for Python 3.12.
	Minor int
	// Loop holds the address ranges of the interpreter's loop.
	Loop []Range
	// ThreadID is the offset of the thread's id from the thread pointer.
	ThreadID uint64
	// StateTLS is the offset, from the thread pointer, of the pointer to the thread's
	// state. It is 0 if the pointer is thread-specific data. In that case, StateKey is
	// the address of the key. The block of thread-specific data begins at the thread
	// pointer plus TSD. If TSDIndirect is set, the address of the block is stored there
	// instead. The pointer to the state is in the block, at the offset key times TSDSize.
	StateTLS    int64
	StateKey    uint64
	TSD         int64
	TSDSize     uint64
	TSDIndirect bool

	// StateFrame is the offset of the current frame in a thread's state. If CFrame is set,
	// StateFrame is instead the offset of a pointer to a structure. CFrameCurrent is then
	// the offset of the current frame in that structure.
	StateFrame    uint64
	CFrame        bool
	CFrameCurrent uint64

	// FrameBack, FrameCode and FrameLast are the offsets of the caller, the code object
	// and the last instruction in a frame.
	FrameBack, FrameCode, FrameLast uint64
	// FrameEntry is the offset of a byte in a frame. The byte is FrameEntryIs in the
	// first frame of each call of the interpreter's loop. FrameEntry and FrameEntryIs are
	// 0 if each frame has its own call of the loop.
	FrameEntry   uint64
	FrameEntryIs byte

	// CodeType is the address of the type of code objects. CodeSize is the size of a code
	// object without its instructions. The other fields are offsets in a code object.
	CodeType                                                                  uint64
	CodeSize, CodeFirstLine, CodeFile, CodeName, CodeQualifiedName, CodeLines uint64
}

// HotSpot is the layout of the JVM HotSpot. Offsets are in bytes.
type HotSpot struct {
	// Version is the version of Java.
	Version int
	// Heaps contain the generated code. A code blob begins at a multiple of
	// 1<<SegmentShift, after a header of HeapBlock bytes.
	Heaps        []CodeHeap
	SegmentShift uint
	HeapBlock    uint64

	// The following fields are offsets in a blob. BlobName is the offset of the
	// address of the blob's name. BlobCode is the offset of the start of the blob's
	// code. BlobComplete is the offset of the number of code bytes after which the
	// frame is complete. BlobFrame is the offset of the frame's size in words.
	// CodeOffsets reports whether the fields at BlobCode and Deoptimize contain
	// offsets from the blob instead of addresses.
	BlobName, BlobCode, BlobComplete, BlobFrame uint64
	CodeOffsets                                 bool
	// The following fields are offsets in the blob of a compiled method. CompileID is the
	// offset of the compilation's number. Deoptimize is the offset of the code that
	// frames return to after the method was deoptimized. The offset of such a frame's
	// original return address is stored at OriginalPC.
	CompileID, Deoptimize, OriginalPC uint64

	// A method contains the address of its constant part at the offset MethodConst. ConstSize
	// is the size in bytes of the constant part before the bytecodes.
	MethodConst, ConstSize uint64
	// An interpreted frame contains the address of the current bytecode. Bytecode is the
	// position of this address, counted in words from the frame pointer.
	Bytecode int

	// Names returns the functions of a frame, the innermost first.
	Names func(Code) ([]Function, error)
}

// CodeHeap is a heap of code. Segments is the address of a table with one byte per segment.
// The byte is the number of segments to go back toward the start of the segment's blob.
type CodeHeap struct {
	Range
	Segments uint64
}

// Code is a place in the code of a Java or JavaScript program.
type Code struct {
	// Interpreted reports whether the code is interpreted.
	//
	// In interpreted code, Address is the address of a method, and Position is the number
	// of a bytecode.
	//
	// In compiled code, Address is the address of the method's blob. Position is the offset
	// of the instruction in the blob's code. Check is the CompileID of the blob.
	Interpreted     bool
	Address         uint64
	Position, Check uint32
}

// V8 is the layout of V8 in Node.js. Offsets in objects and frames are in bytes.
type V8 struct {
	// File is the path of the file with the built-in code. Builtins is the range of this
	// code in the file.
	File     string
	Builtins Range

	// CodeType is the type of code objects. The types of functions range from
	// FirstFunction to LastFunction. FunctionShared is the offset, in a function, of the
	// pointer to the object that all functions with the same code share.
	CodeType, FirstFunction, LastFunction uint16
	FunctionShared                        uint64
	// CodeRefs lists the possible distances in bytes from the instructions back to the
	// address of their code object. CodeStart is the offset of the instructions' address in
	// a code object. If a distance is 0, the instructions themselves are at this offset.
	CodeRefs                       []uint64
	CodeStart, CodeSize, CodeFlags uint64

	// Names returns the functions at a place, the innermost first. Address is a code
	// object, or a function's shared part if the code is interpreted. held is the memory in
	// bytes that the driver keeps for the names.
	Names func(Code) (functions []Function, held int64, err error)
	// Forget releases the memory that the driver keeps for names.
	Forget func()
}

// PHP is the layout of PHP. Offsets are in bytes.
type PHP struct {
	// Loop holds the address ranges of the interpreter's loop.
	Loop []Range
	// Current is the address of the pointer to the current frame.
	Current uint64

	// FrameBack, FrameFunction, FrameLast and FrameFlags are the offsets of the caller,
	// the function, the last instruction and the flags in a frame. InstructionLine is the
	// offset of the line in an instruction.
	FrameBack, FrameFunction, FrameLast, FrameFlags, InstructionLine uint64
	// FunctionSize is the size of the part of a function that contains the type, the name,
	// the class, the file and the lines. The other values are the offsets of these fields in
	// a function. The last line is stored after the first line.
	FunctionSize, FunctionType, FunctionName, FunctionClass, FunctionFile, FunctionFirstLine uint64
	// ClassName is the offset of the name in a class. Text is the offset of the text in a
	// string.
	ClassName, Text uint64
}

// Function contains the names and the file of a function, and one of its lines.
type Function struct {
	Name, File      string
	StartLine, Line int64
}

var (
	mu     sync.Mutex
	driver Driver
)

// Register sets the driver. The driver's package calls Register in its initialization.
func Register(d Driver) {
	mu.Lock()
	defer mu.Unlock()
	driver = d
}

// Registered returns the driver, or nil if no driver is registered.
func Registered() Driver {
	mu.Lock()
	defer mu.Unlock()
	return driver
}
