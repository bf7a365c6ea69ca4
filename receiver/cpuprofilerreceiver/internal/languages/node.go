// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// node is the state of a process of Node.js. JavaScript frames are on the native stack, and
// the sample contains a copy of the stack. Only code objects and names are read from the
// memory of the process, some time after the sample.
type node struct {
	*interpreter.V8
	// builtins holds the addresses of V8's built-in code, which V8 may map several times.
	builtins []interpreter.Range
	// codes maps an instruction's address to the code object that contains the instruction.
	// The address is rounded down to a multiple of codeAlign.
	codes map[uint64]*v8Code
	// named maps a position in the code to the address that represents its frame in a stack.
	// since is the time at which named was last empty. V8 moves objects, so names are read
	// again after nodeNames.
	named map[interpreter.Code]uint64
	since int64
}

// v8Code is a code object and the range of its instructions. check is a checksum of the
// code object. The checksum differs if another code object is now at the same address.
type v8Code struct {
	interpreter.Range
	object  uint64
	check   uint32
	checked int64
}

const (
	nodeNames = time.Minute
	// nodeHeld is the memory in bytes that the driver keeps
	// for a process, without the names.
	nodeHeld = 256 << 10
	// maxCodeSearch is the maximum distance in bytes from an instruction back to its code
	// object. codeAlign is the step in bytes of this search. Each address that the search
	// tries is a multiple of codeAlign.
	maxCodeSearch = 256 << 10
	codeAlign     = 32
)

// findBuiltins finds V8's built-in code in the mappings of the process.
func (n *node) findBuiltins(of *processes.Process) {
	n.builtins = nil
	for _, m := range of.Mapped() {
		from := max(n.Builtins.Start, m.FileOffset)
		to := min(n.Builtins.Limit, m.FileOffset+m.Limit-m.Start)
		if m.Path == n.File && from < to {
			n.builtins = append(n.builtins, interpreter.Range{Start: m.Start + from - m.FileOffset, Limit: m.Start + to - m.FileOffset})
		}
	}
}

func (n *node) isBuiltin(pc uint64) bool {
	return slices.ContainsFunc(n.builtins, func(r interpreter.Range) bool { return r.Has(pc) })
}

// Has implements unwind.Generated.
func (w *Walker) Has(pc uint64) bool { return w.process.node != nil && w.process.node.isBuiltin(pc) }

// stepNode sets the current frame to its caller. All code of V8 has frame pointers. The
// code for single bytecodes and some built-in code have no frame of their own, but run in
// the frame of the function that they belong to.
func (w *walk) stepNode() {
	w.stepName, w.stepOK = 0, false
	f, n := w.frame, w.process.node
	at := f.PC
	if !f.Exact {
		at--
	}
	fp, ok1 := f.Load(f.FP)
	pc, ok2 := f.Load(f.FP + word)
	if !ok1 || !ok2 || f.FP < f.SP {
		return
	}
	var code *v8Code
	if !n.isBuiltin(at) {
		code = w.nodeCode(n, at)
	}
	if code != nil {
		w.stepName = w.nodeName(interpreter.Code{Address: code.object, Position: uint32(at - code.Start), Check: code.check})
	}
	function, _ := f.Load(f.FP - 2*word)
	if of := w.nodeType(function); w.stepName == 0 && of >= n.FirstFunction && of <= n.LastFunction {
		shared, _ := w.memory.word(function - 1 + n.FunctionShared)
		w.stepName = w.nodeName(interpreter.Code{Interpreted: true, Address: shared})
	}
	if w.stepName == 0 {
		w.stepName = f.PC
	}
	f.PC, f.SP, f.FP = pc, f.FP+2*word, fp
	w.stepOK = true
}

// nodeType returns the type of an object, or 0 if the type cannot be read. The lowest
// bits of an object's address are 01. The first word of an object is the address of
// its map, which contains the type.
func (w *walk) nodeType(object uint64) uint16 {
	const typeAt = 12
	if object&3 != 1 || object >= 1<<47 {
		return 0
	}
	of, _ := w.memory.word(object - 1)
	b := w.memory.bytes(of-1+typeAt, 2)
	if of&3 != 1 || b == nil {
		return 0
	}
	return binary.LittleEndian.Uint16(b)
}

// nodeCode returns the code object that contains an instruction, or nil if there is no
// such object. It searches backwards for the header before the instructions, which refers
// to the code object. The function of the frame cannot be used, because a function refers
// only to its newest code. A function also does not refer to code that replaced the code
// of a running loop.
func (w *walk) nodeCode(n *node, at uint64) *v8Code {
	from := at &^ (codeAlign - 1)
	if c := n.codes[from]; c != nil && w.now-c.checked < int64(checkInterval) && c.Has(at) {
		return c
	}
	for start := from; start >= pageSize && at-start < maxCodeSearch && w.memory.load(start/pageSize) != nil; start -= codeAlign {
		if c := w.readCode(n, start); c != nil && c.Has(at) {
			n.codes[from] = c
			w.process.held += codeBytes
			return c
		}
	}
	return nil
}

// readCode returns the code object whose instructions begin at an address. It returns
// nil if there is no such object.
func (w *walk) readCode(n *node, start uint64) *v8Code {
	const pointers = 5 * word // the map and the objects of the code
	for _, before := range n.CodeRefs {
		object := start - n.CodeStart + 1
		if before != 0 {
			object, _ = w.memory.word(start - before)
		}
		if w.nodeType(object) != n.CodeType {
			continue
		}
		raw := w.memory.bytes(object-1, int(max(n.CodeStart, n.CodeSize, n.CodeFlags, pointers))+word)
		if raw == nil || before != 0 && binary.LittleEndian.Uint64(raw[n.CodeStart:]) != start {
			continue
		}
		size := binary.LittleEndian.Uint32(raw[n.CodeSize:])
		check := size ^ binary.LittleEndian.Uint32(raw[n.CodeFlags:])*31
		for at := word; at < pointers; at += word {
			check = check*31 + binary.LittleEndian.Uint32(raw[at:])
		}
		return &v8Code{Range: interpreter.Range{Start: start, Limit: start + uint64(size)}, object: object, check: check, checked: w.now}
	}
	return nil
}

// nodeName returns the synthetic address for a position in the code, or 0 if the position
// belongs to no function.
func (w *walk) nodeName(at interpreter.Code) uint64 {
	n := w.process.node
	name, known := n.named[at]
	if known {
		return name
	}
	functions, held, err := n.Names(at)
	w.process.held += held + codeBytes
	if err == nil && len(functions) > 0 {
		name = w.name(w.process, samples.FrameV8, linesOf(functions)...)
	}
	n.named[at] = name
	return name
}
