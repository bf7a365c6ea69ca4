// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// java is the state of a JVM. Java frames are on the native stack, and the sample contains
// a copy of the stack. Only the code of the frames is read from the memory of the process,
// some time after the sample.
type java struct {
	*interpreter.HotSpot
	blobs map[uint64]*blob
	// named maps a position in the code to the address that represents its frame.
	named map[interpreter.Code]uint64
	// constants maps each method to the address of its first bytecode.
	constants map[uint64]uint64
}

// blobKind is the kind of a blob of code. It determines how
// the caller of a frame is found.
type blobKind uint8

const (
	otherBlob       blobKind = iota // by the size of the frame
	compiledBlob                    // by the size of the frame; the code of a compiled method
	interpreterBlob                 // by the frame pointer; the code of the bytecode interpreter
	stubBlob                        // by the frame pointer
	framelessBlob                   // no frame; the return address is on top of the stack
)

// blob is a piece of generated code, which the JVM calls a CodeBlob.
type blob struct {
	kind    blobKind
	name    string
	checked int64
	code    uint64
	// complete is the offset in the code at which the frame is complete. frame is the
	// size of the complete frame in bytes.
	complete, frame uint64
	// compiled is the id of the compilation. deoptimize is the PC of frames of a
	// deoptimized method. Such a frame stores its original PC at the offset original from
	// the stack pointer.
	compiled             uint32
	deoptimize, original uint64
}

const word = 8

// Step implements unwind.Generated for the process of the last sample.
func (w *Walker) Step(f *unwind.Frame) (name uint64, ok bool) {
	p := w.process
	w.frame = f
	w.walking = true
	step := w.step
	if p.node != nil {
		step = w.stepJS
	}
	w.call.Wait(&p.subject, step)
	w.walking = false
	if !w.counted {
		w.counted = true
		outcome := Walked
		if !w.stepOK {
			outcome = Unreadable
		}
		w.counts[outcome].Add(1)
	}
	return w.stepName, w.stepOK
}

// doStep sets the current frame to its caller.
func (w *walk) doStep() {
	w.stepName, w.stepOK = 0, false
	f, j := w.frame, w.process.java
	at := f.PC
	if !f.Exact {
		at--
	}
	start, ok := w.blobAt(j.HotSpot, at)
	if !ok {
		return
	}
	b := w.blob(j, start)
	if b == nil {
		return
	}
	code := interpreter.Code{Address: start, Position: uint32(f.PC - b.code), Check: b.compiled}
	step := callerOfStub
	switch b.kind {
	case interpreterBlob:
		if code, ok = w.interpretedFrame(j, f); !ok {
			return
		}
		step = callerOfInterpreted
	case stubBlob:
	case framelessBlob:
		step = callerOfFrameless
	default:
		if f.PC == b.deoptimize {
			if pc, ok := f.Load(f.SP + b.original); ok && pc-b.code < 1<<28 {
				code.Position = uint32(pc - b.code)
			}
		}
		size := b.frame
		if f.Exact {
			size = w.leafSize(f, b)
		}
		step = func(f *unwind.Frame) bool { return callerBySize(f, size) }
	}
	if !step(f) {
		return
	}
	w.stepName, w.stepOK = w.javaName(w.process, b, code), true
}

// blobAt finds the start of the blob at an address through the segment map of its heap.
// The map has one byte per segment. The byte is the distance to an earlier segment of the
// blob. It is 0 for the first segment.
func (w *walk) blobAt(l *interpreter.HotSpot, at uint64) (start uint64, ok bool) {
	const free, most = 0xff, 1 << 12
	for _, h := range l.Heaps {
		if !h.Has(at) {
			continue
		}
		segment := (at - h.Start) >> l.SegmentShift
		for range most {
			b := w.memory.bytes(h.Segments+segment, 1)
			switch {
			case b == nil, b[0] == free, uint64(b[0]) > segment:
				return 0, false
			case b[0] == 0:
				return h.Start + segment<<l.SegmentShift + l.HeapBlock, true
			}
			segment -= uint64(b[0])
		}
	}
	return 0, false
}

// blob returns the blob at an address, or nil if no blob is known there.
func (w *walk) blob(j *java, start uint64) *blob {
	b := j.blobs[start]
	if b != nil && w.now-b.checked < int64(checkInterval) {
		return b
	}
	const header = 512
	raw := w.memory.bytes(start, header)
	if raw == nil {
		return nil
	}
	u32 := func(at uint64) uint64 { return uint64(binary.LittleEndian.Uint32(raw[at:])) }
	u64 := func(at uint64) uint64 { return binary.LittleEndian.Uint64(raw[at:]) }
	now := &blob{checked: w.now, frame: u32(j.BlobFrame) * word, complete: u32(j.BlobComplete), compiled: uint32(u32(j.CompileID))}
	if j.Version >= 23 {
		now.complete &= 0xffff // the field has 16 bits
	}
	if now.code, now.deoptimize = u64(j.BlobCode), u64(j.Deoptimize); j.CodeOffsets {
		now.code, now.deoptimize = start+u32(j.BlobCode), start+u32(j.Deoptimize)
	}
	now.original = u32(j.OriginalPC)
	if b != nil && b.code == now.code && b.frame == now.frame && (b.kind != compiledBlob || b.compiled == now.compiled) {
		b.checked = w.now
		return b
	}
	name, _, _ := bytes.Cut(w.memory.block(u64(j.BlobName), 64), []byte{0})
	now.name = string(name)
	now.kind = kindOf(now)
	if now.kind != compiledBlob {
		now.compiled, now.deoptimize = 0, 0
	}
	w.process.held += codeBytes
	j.blobs[start] = now
	return now
}

// kindOf returns the kind of a blob by its name.
func kindOf(b *blob) blobKind {
	is := func(names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(b.name, n) })
	}
	switch {
	case is("nmethod", "native nmethod"):
		return compiledBlob
	case is("Interpreter"):
		return interpreterBlob
	case is("vtable", "itable", "I2C/C2I"):
		return framelessBlob
	case is("StubRoutines", "Stub Generator"), b.frame == 0, b.frame > 1<<20:
		return stubBlob
	}
	return otherBlob
}

// callerBySize finds the caller by the size of the frame. The size is 0 before the function
// has made its frame and after the function has removed it.
func callerBySize(f *unwind.Frame, size uint64) bool {
	if size == 0 {
		return callerOfFrameless(f)
	}
	sp := f.SP + size
	pc, ok1 := f.Load(sp - word)
	fp := f.FP
	ok2 := true
	if size >= 2*word {
		fp, ok2 = f.Load(sp - 2*word)
	}
	if ok1 && ok2 {
		f.PC, f.SP, f.FP = pc, sp, fp
	}
	return ok1 && ok2
}

func callerOfFrameless(f *unwind.Frame) bool {
	pc, ok := f.Load(f.SP)
	if ok {
		f.PC, f.SP = pc, f.SP+word
	}
	return ok
}

// callerOfStub finds the caller by the frame pointer.
func callerOfStub(f *unwind.Frame) bool {
	fp, ok1 := f.Load(f.FP)
	pc, ok2 := f.Load(f.FP + word)
	if !ok1 || !ok2 || f.FP < f.SP {
		return f.Exact && callerOfFrameless(f)
	}
	f.PC, f.SP, f.FP = pc, f.FP+2*word, fp
	return true
}

// callerOfInterpreted finds the caller of an interpreted method. It reads the caller's
// stack pointer from the frame, because the method's arguments are on the caller's stack.
func callerOfInterpreted(f *unwind.Frame) bool {
	fp, ok1 := f.Load(f.FP)
	pc, ok2 := f.Load(f.FP + word)
	sp, ok3 := f.Load(f.FP - word)
	if !ok1 || !ok2 || !ok3 || sp <= f.FP {
		return false
	}
	f.PC, f.SP, f.FP = pc, sp, fp
	return true
}

// leafSize returns the current size of the innermost frame of a compiled method. Compiled
// code creates its frame with
//
//	push rbp; sub rsp, size      or      sub rsp, size; mov [rsp+…], rbp
//
// and removes it with
//
//	add rsp, size; pop rbp; cmp rsp, [r15+…]; ja …; ret
//
// Since Java 17, the code contains the comparison.
func (w *walk) leafSize(f *unwind.Frame, b *blob) uint64 {
	const pushRBP, popRBP = 0x55, 0x5d
	if f.PC-b.code < b.complete {
		if before := w.memory.bytes(f.PC-1, 1); f.PC > b.code && before != nil && before[0] == pushRBP {
			return 2 * word
		}
		return 0
	}
	next := w.memory.bytes(f.PC, 16)
	switch {
	case next == nil:
	case next[0] == popRBP && returns(next[1:]):
		return 2 * word
	case returns(next):
		return 0
	}
	return b.frame
}

// returns reports whether code starts with a return, or with a safepoint poll and a return.
func returns(code []byte) bool {
	const ret = 0xc3
	switch {
	case bytes.HasPrefix(code, []byte{0x49, 0x3b, 0xa7}): // cmp rsp, [r15+4 bytes]
		code = code[7:]
	case bytes.HasPrefix(code, []byte{0x49, 0x3b, 0x67}): // cmp rsp, [r15+1 byte]
		code = code[4:]
	}
	if bytes.HasPrefix(code, []byte{0x0f, 0x87}) { // ja
		code = code[min(6, len(code)):]
		return len(code) == 0 || code[0] == ret
	}
	return len(code) > 0 && code[0] == ret
}

// interpretedFrame returns the method of an interpreted frame and the position in the
// method's bytecode.
func (w *walk) interpretedFrame(j *java, f *unwind.Frame) (at interpreter.Code, ok bool) {
	method, ok := f.Load(f.FP - 3*word)
	if !ok {
		return at, false
	}
	first, ok := w.firstBytecode(j, method)
	if !ok {
		return at, false
	}
	const mostBytecodes = 1 << 16
	in, _ := f.Load(f.FP + uint64(j.Bytecode*word))
	if f.BCP-first < mostBytecodes {
		in = f.BCP
	}
	if in-first >= mostBytecodes {
		in = first
	}
	return interpreter.Code{Interpreted: true, Address: method, Position: uint32(in - first)}, true
}

// firstBytecode returns the address of a method's first bytecode.
func (w *walk) firstBytecode(j *java, method uint64) (uint64, bool) {
	if first, ok := j.constants[method]; ok {
		return first, true
	}
	constant, ok := w.memory.word(method + j.MethodConst)
	if !ok || constant == 0 {
		return 0, false
	}
	w.process.held += codeBytes / 8
	j.constants[method] = constant + j.ConstSize
	return constant + j.ConstSize, true
}

// javaName returns the address that represents a frame at a position in the code of b.
func (w *walk) javaName(p *process, b *blob, at interpreter.Code) uint64 {
	if b.kind != compiledBlob && b.kind != interpreterBlob {
		at.Position, at.Check = 0, 0
	}
	j := p.java
	if name, ok := j.named[at]; ok {
		return name
	}
	lines := []samples.Line{{Function: b.name}}
	if b.kind == compiledBlob || b.kind == interpreterBlob {
		if functions, err := j.Names(at); err == nil && len(functions) > 0 {
			lines = linesOf(functions)
		}
	}
	name := w.name(p, samples.FrameJVM, lines...)
	j.named[at] = name
	return name
}

func linesOf(functions []interpreter.Function) (lines []samples.Line) {
	for _, f := range functions {
		lines = append(lines, samples.Line{Function: f.Name, File: f.File, StartLine: f.StartLine, Line: f.Line})
	}
	return lines
}
