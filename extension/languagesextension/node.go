// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package languagesextension

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"reflect"
	"regexp"
	"unsafe"

	ebpfinterpreter "go.opentelemetry.io/ebpf-profiler/interpreter"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/hotprofile/hotprofile/internal/interpreter"
)

// oldestV8 is the version of V8 in Node.js 18.
const oldestV8 = 10<<24 | 2<<16

var nodeFiles = regexp.MustCompile(`^(node\d*|libnode\.so(\.\d+)?)$`)

func isNode(file string) bool { return nodeFiles.MatchString(path.Base(file)) }

// nodeLayout returns the layout of Node.js.
func nodeLayout(l *loaded[support.V8ProcInfo]) (*interpreter.V8, error) {
	positions := l.field("DeoptimizationDataIndex", "InliningPositions").Uint()
	n := &node{
		loaded: l, pages: make(map[int64]*[pageSize]byte),
		deoptimization: int64(l.field("Code", "DeoptimizationData").Uint()), array: int64(l.field("FixedArray", "Data").Uint()),
	}
	n.positions = n.array + 8*int64(positions)
	correct(l)
	if err := n.attach(); err != nil {
		return nil, err
	}
	info := l.info
	if info.Version < oldestV8 {
		return nil, fmt.Errorf("V8 %d.%d is not known: 10.2, of Node.js 18, and later are", info.Version>>24, info.Version>>16&0xff)
	}
	// The code has different addresses in the mapping and in the file.
	r, shift := builtins(l.object), l.bias-l.mapping.Start+l.mapping.FileOffset
	if r.Limit-r.Start < leastBuiltins {
		return nil, errors.New("its built-in code was not found")
	}
	refs := []uint64{0}
	if info.Code_instructions_is_pointer != 0 {
		refs = []uint64{8, 24}
	}
	return &interpreter.V8{
		File: l.mapping.Path, Builtins: interpreter.Range{Start: r.Start + shift, Limit: r.Limit + shift},
		CodeType: info.Type_Code, FirstFunction: info.Type_JSFunction_first, LastFunction: info.Type_JSFunction_last,
		FunctionShared: uint64(info.Off_JSFunction_shared), CodeRefs: refs,
		CodeStart: uint64(info.Off_Code_instruction_start), CodeSize: uint64(info.Off_Code_instruction_size), CodeFlags: uint64(info.Off_Code_flags),
		Names: n.names, Forget: func() { _ = n.attach() },
	}, nil
}

// correct sets the values that the library does not know for V8 13, which is part of
// Node.js 24.
func correct(l *loaded[support.V8ProcInfo]) {
	set := func(f reflect.Value, v uint64) {
		reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem().SetUint(v)
	}
	wrapper := l.field("DeoptimizationDataIndex", "SharedFunctionInfoWrapper")
	positions := l.field("DeoptimizationDataIndex", "InliningPositions").Uint()
	if wrapper.Uint() != 0 || l.field("DeoptimizationDataIndex", "SharedFunctionInfo").Uint() >= positions-1 {
		return
	}
	set(wrapper, positions-1)
	set(l.field("Type", "ByteArray"), l.field("Type", "TrustedByteArray").Uint())
	at, err := l.LookupSymbolAddress("v8dbg_type_TrustedWeakFixedArray__TRUSTED_WEAK_FIXED_ARRAY_TYPE")
	var b [4]byte
	if _, readErr := l.ReadAt(b[:], int64(at)); err == nil && readErr == nil {
		set(l.field("Type", "TrustedWeakFixedArray"), uint64(binary.LittleEndian.Uint32(b[:])))
	}
}

// leastBuiltins is the minimum size of V8's built-in code in bytes.
const leastBuiltins = 512 << 10

// builtins returns the address range of the built-in code. The built-in code is the largest
// part of the file that has no unwind tables.
func builtins(o *object) (r interpreter.Range) {
	for _, b := range functions(o).Blocks {
		if b.End-b.Start > r.Limit-r.Start {
			r = interpreter.Range{Start: b.Start, Limit: b.End}
		}
	}
	return r
}

// node reads the names of one process of Node.js.
type node struct {
	*loaded[support.V8ProcInfo]
	instance ebpfinterpreter.Instance
	// deoptimization is the offset, in a code object, of the pointer to the array of
	// deoptimization data. positions is the offset, in this array, of the pointer to the
	// inlined calls' positions. array is the offset of the data in an array.
	deoptimization, positions, array int64
	// pages caches the memory that was read for the current frame. The cache ensures that the
	// contents do not change after a check. left is the number of bytes that may still be read.
	pages map[int64]*[pageSize]byte
	left  int64
}

// attach creates an instance of the library with empty caches.
func (n *node) attach() (err error) {
	n.instance, err = n.loaded.attach(n, nil)
	return err
}

const (
	pageSize = 4096
	// maxNodeRead limits the memory that is read for one frame, in bytes. The library
	// reads the source of a script to find line numbers. Functions of larger scripts
	// therefore have no line numbers.
	maxNodeRead = 2 << 20
)

// ReadAt implements io.ReaderAt.
func (n *node) ReadAt(b []byte, at int64) (int, error) {
	if n.left -= int64(len(b)); n.left < 0 {
		return 0, io.ErrShortBuffer
	}
	done := 0
	for done < len(b) {
		start := (at + int64(done)) &^ (pageSize - 1)
		page := n.pages[start]
		if page == nil {
			page = new([pageSize]byte)
			if _, err := n.process.Memory.ReadAt(page[:], start); err != nil {
				return done, err
			}
			n.pages[start] = page
		}
		done += copy(b[done:], page[at+int64(done)-start:])
	}
	return done, nil
}

func (n *node) word(at int64) int64 {
	var b [8]byte
	if _, err := n.ReadAt(b[:], at); err != nil {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(b[:]))
}

// inlinedInOrder reports whether each inlined call of a code object is
// inlined into an earlier call. The check is needed because the library
// follows the calls without a limit.
func (n *node) inlinedInOrder(code uint64) bool {
	const tag, length, item = 1, 8, 16 // an object's address has a tag
	array := n.word(int64(code) - tag + n.deoptimization)
	positions := n.word(array - tag + n.positions)
	for i := range n.word(positions-tag+length) >> 32 / item {
		parent := uint16(n.word(positions-tag+n.array+i*item) >> 31)
		if n.left < 0 || int64(parent) > i {
			return false
		}
	}
	return true
}

// names returns the functions at a position in a program, including inlined functions.
func (n *node) names(at interpreter.Code) (functions []interpreter.Function, held int64, err error) {
	defer clear(n.pages)
	defer recovered(&err, "reading the names of a JavaScript program")
	n.left = maxNodeRead
	frame := libpf.EbpfFrame(libpf.NewEbpfFrame(libpf.V8Frame, 0, 3, 0))
	kind := uint64(support.V8FileTypeByteCode)
	if !at.Interpreted {
		kind = support.V8FileTypeNativeCode
		if !n.inlinedInOrder(at.Address) {
			return nil, maxNodeRead, errors.New("inlined calls are not in order")
		}
	}
	frame[1] = at.Address&^support.V8FileTypeMask | kind
	frame[2] = uint64(at.Check)<<support.V8LineCookieShift | uint64(at.Position)
	var frames libpf.Frames
	err = n.instance.Symbolize(frame, &frames, libpf.FrameMapping{})
	functions = functionsOf(frames)
	for i := range functions {
		// Since V8 12.8, the library cannot find the first line of a function.
		functions[i].StartLine = 0
		if at.Interpreted {
			functions[i].Line = 0
		}
	}
	return functions, maxNodeRead - n.left, err
}
