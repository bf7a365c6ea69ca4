// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/samples"
)

const (
	// tries is the maximum number of attempts to read valid frames.
	tries = 8
	// maxFrames is the maximum number of frames in a stack. Backends cut
	// off the leaf of deeper stacks.
	maxFrames = 1000
	// maxLines is the maximum size of a function's line table, in bytes. maxText is the
	// maximum length of a name, in characters.
	maxLines = 64 << 10
	maxText  = 1024
)

// pythonCode is a cached code object. identity shows whether the object at the address is
// still the same.
type pythonCode struct {
	identity  [5]uint64
	checked   int64
	name      string
	file      string
	first     int64
	lines     []byte
	addresses map[int64]uint64 // addresses that stand for frames, by bytecode offset
}

// walkPython walks the frames of a thread.
func (w *walk) walkPython(p *process, t *thread) Outcome {
	l := p.python
	slot, ok := w.stateSlot(l, t)
	if !ok {
		return Unreadable
	}
	state, ok := w.memory.word(slot)
	if !ok {
		return Unreadable
	}
	if state == 0 {
		return Walked // the thread runs no Python
	}
	current := func() (uint64, bool) {
		at := state + l.StateFrame
		if !l.CFrame {
			return at, true
		}
		at, ok := w.memory.word(at)
		return at + l.CFrameCurrent, ok
	}
	return w.chain(p, t, current, l.FrameLast, w.pythonFrames)
}

// chain walks a chain of frames. current returns the address of the pointer to the
// innermost frame. last is the offset of the last instruction in a frame. frames appends
// the frames, and returns false if a frame is invalid.
func (w *walk) chain(p *process, t *thread, current func() (uint64, bool), last uint64, frames func(p *process, frame uint64) bool) Outcome {
	for try := 1; ; try++ {
		at, ok := current()
		if !ok {
			return Unreadable
		}
		frame, ok := w.memory.word(at)
		if !ok {
			return Unreadable
		}
		w.memory.word(frame + last)
		w.memory.again(at)
		now, ok := w.memory.word(at)
		w.changed = !ok || now != frame
		valid := frames(p, frame)
		switch {
		case valid && (!w.changed || w.outermost == t.outermost):
			t.outermost = w.outermost
			return Walked
		case try < tries:
		case valid:
			return Walked
		default:
			return Torn
		}
		w.frames, w.ends, w.cut = w.frames[:0], w.ends[:0], false
		w.memory.begin(p.pid)
	}
}

// stateSlot returns the address of the pointer to the thread's PyThreadState.
func (w *walk) stateSlot(l *interpreter.Python, t *thread) (uint64, bool) {
	if l.StateTLS != 0 {
		return t.pointer + uint64(l.StateTLS), true
	}
	b := w.memory.bytes(l.StateKey, 4)
	if b == nil {
		return 0, false
	}
	const maxKey = 32 // values of larger keys are not in the thread's control block
	key := uint64(binary.LittleEndian.Uint32(b))
	at, ok := t.pointer+uint64(l.TSD), key < maxKey
	if l.TSDIndirect {
		at, ok = w.memory.word(at)
	}
	return at + key*l.TSDSize, ok
}

// pythonFrames appends the frames of a thread. It returns false if a frame is invalid.
// frame is the address of the innermost frame.
func (w *walk) pythonFrames(p *process, frame uint64) bool {
	const onCStack = 3 // marks a frame without a function that starts a call of the loop
	l := p.python
	for frame != 0 {
		if len(w.frames) >= maxFrames || len(w.ends) >= maxFrames {
			w.cut = true
			break
		}
		code, ok1 := w.memory.word(frame + l.FrameCode)
		last, ok2 := w.memory.word(frame + l.FrameLast)
		back, ok3 := w.memory.word(frame + l.FrameBack)
		ends := l.FrameEntry == 0
		if !ends {
			b := w.memory.bytes(frame+l.FrameEntry, 1)
			ok3 = ok3 && b != nil
			ends = b != nil && b[0] == l.FrameEntryIs
		}
		if !ok1 || !ok2 || !ok3 {
			return false
		}
		w.outermost = frame
		if !ends || l.FrameEntryIs != onCStack {
			c := w.pythonCode(p, code&^7)
			if c == nil {
				return false
			}
			w.frames = append(w.frames, w.pythonFrame(p, c, offset(l, code&^7, last)))
		}
		// In Python 3.14, each chain ends with a frame that does not belong to a call of the
		// interpreter's loop.
		if n := len(w.ends); ends && (back != 0 || n == 0 || w.ends[n-1] < len(w.frames)) {
			w.ends = append(w.ends, len(w.frames))
		}
		frame = back
	}
	if n := len(w.frames); n > 0 && (len(w.ends) == 0 || w.ends[len(w.ends)-1] < n) {
		w.ends = append(w.ends, n)
	}
	return true
}

// offset returns the offset of a frame's instruction from the start of the bytecode, in
// bytes.
func offset(l *interpreter.Python, code, last uint64) int64 {
	switch {
	case l.Minor >= 11:
		return int64(last - code - l.CodeSize)
	case l.Minor == 10:
		return 2 * int64(int32(last))
	}
	return int64(int32(last))
}

// pythonFrame returns the synthetic address for a frame at an instruction of a
// function.
func (w *walk) pythonFrame(p *process, c *pythonCode, offset int64) uint64 {
	if a, ok := c.addresses[offset]; ok {
		return a
	}
	line := pythonLine(p.python.Minor, c.lines, c.first, offset)
	a := w.name(p, samples.FramePython, samples.Line{Function: c.name, File: c.file, StartLine: c.first, Line: line})
	c.addresses[offset] = a
	return a
}

// pythonCode returns the code object at an address, or nil if there is no valid code
// object.
func (w *walk) pythonCode(p *process, at uint64) *pythonCode {
	c := p.codes[at]
	if c != nil && w.now-c.checked < int64(checkInterval) {
		return c
	}
	l := p.python
	b := w.memory.bytes(at, int(l.CodeSize))
	if b == nil || at == 0 || p.held > 2*maxHeld {
		return nil
	}
	word := func(offset uint64) uint64 { return binary.LittleEndian.Uint64(b[offset:]) }
	if word(8) != l.CodeType {
		return nil
	}
	identity := [...]uint64{uint64(binary.LittleEndian.Uint32(b[l.CodeFirstLine:])), word(l.CodeFile), word(l.CodeName), word(l.CodeLines), 0}
	if l.CodeQualifiedName != 0 {
		identity[4] = word(l.CodeQualifiedName)
	}
	if c != nil && c.identity == identity {
		c.checked = w.now
		return c
	}
	c = &pythonCode{identity: identity, checked: w.now, first: int64(int32(identity[0])), addresses: make(map[int64]uint64)}
	name := identity[4]
	if name == 0 {
		name = identity[2]
	}
	var ok1, ok2 bool
	c.name, ok1 = w.pythonText(l, name)
	c.file, ok2 = w.pythonText(l, identity[1])
	size, ok3 := w.memory.word(identity[3] + 16)
	if !ok1 || !ok2 || !ok3 || c.name == "" {
		return nil
	}
	c.lines = slices.Clone(w.memory.block(identity[3]+32, int(min(size, maxLines))))
	p.held += int64(len(c.lines)+len(c.name)+len(c.file)) + codeBytes
	p.codes[at] = c
	return c
}

// pythonText reads up to maxText characters of a Python string.
func (w *walk) pythonText(l *interpreter.Python, at uint64) (string, bool) {
	const lengthAt, stateAt, compactASCII, compact = 16, 32, 3 << 5, 1 << 5
	b := w.memory.bytes(at, 40)
	if b == nil || at == 0 {
		return "", false
	}
	n := min(binary.LittleEndian.Uint64(b[lengthAt:]), maxText)
	state := binary.LittleEndian.Uint32(b[stateAt:])
	width := int(state >> 2 & 7)
	data := at + 40 // after the header
	if l.Minor < 12 {
		data += 8
	}
	switch {
	case width != 1 && width != 2 && width != 4, state&compact == 0:
		return "", false
	case state&compactASCII != compactASCII:
		data += 16
		if l.Minor < 12 {
			data += 8
		}
	}
	raw := w.memory.block(data, int(n)*width)
	if len(raw) < int(n)*width {
		return "", false
	}
	text := make([]byte, 0, len(raw))
	for ; len(raw) >= width; raw = raw[width:] {
		var r rune
		switch width {
		case 1:
			r = rune(raw[0])
		case 2:
			r = rune(binary.LittleEndian.Uint16(raw))
		case 4:
			r = rune(min(binary.LittleEndian.Uint32(raw), utf8.MaxRune+1))
		}
		text = utf8.AppendRune(text, r)
	}
	return string(text), true
}
