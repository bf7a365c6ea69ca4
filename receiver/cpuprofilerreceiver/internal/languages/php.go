// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// php is the state of a PHP process. The interpreter runs on one thread.
type php struct {
	*interpreter.PHP
	thread thread
	// named maps each frame to the address that represents the frame.
	named map[phpFrame]uint64
}

// phpFrame identifies a frame. name, class and file are addresses. Without an opcode cache,
// requests use the same addresses for different files, so fileHash distinguishes files.
type phpFrame struct {
	name, class, file, fileHash uint64
	first, end, line            uint32
	kind                        byte
	outermost                   bool
}

// phpInternal, phpUser and phpEval are the kinds of functions. phpTop is the flag of a
// frame that begins a call of the interpreter's loop.
const (
	phpInternal = 1
	phpUser     = 2
	phpEval     = 4
	phpTop      = 1 << 17
)

func (w *walk) walkPHP(p *process) Outcome {
	current := func() (uint64, bool) { return p.php.Current, true }
	return w.chain(p, &p.php.thread, current, p.php.FrameLast, w.phpFrames)
}

// phpFrames appends the frames of the thread. It returns false if a frame is invalid.
// frame is the address of the innermost frame.
func (w *walk) phpFrames(p *process, frame uint64) bool {
	l := p.php
	for n := 0; frame != 0; n++ {
		if n == maxFrames {
			w.cut = true
			w.ends = append(w.ends, len(w.frames))
			break
		}
		function, ok1 := w.memory.word(frame + l.FrameFunction)
		last, ok2 := w.memory.word(frame + l.FrameLast)
		flags, ok3 := w.memory.word(frame + l.FrameFlags)
		back, ok4 := w.memory.word(frame + l.FrameBack)
		if !ok1 || !ok2 || !ok3 || !ok4 {
			return false
		}
		w.outermost = frame
		if function != 0 { // PHP links its calls by frames without a function
			f, ok := w.phpFunction(l, function)
			if ok && f.kind != phpInternal {
				f.outermost = back == 0
				if b := w.memory.bytes(last+l.InstructionLine, 4); b != nil {
					f.line = binary.LittleEndian.Uint32(b)
				}
				if f.line < f.first || f.line > f.end {
					// The function has not stored an instruction yet. The memory may contain
					// the last instruction of another function.
					f.line = f.first
				}
			}
			if !ok || !w.phpFrame(p, f) {
				return false
			}
			if f.kind != phpInternal && flags&phpTop != 0 {
				w.ends = append(w.ends, len(w.frames))
			}
		}
		frame = back
	}
	return true
}

// phpFunction reads the function at an address.
func (w *walk) phpFunction(l *php, at uint64) (f phpFrame, ok bool) {
	b := w.memory.bytes(at, int(l.FunctionSize))
	if b == nil {
		return f, false
	}
	f.kind = b[l.FunctionType]
	f.name = binary.LittleEndian.Uint64(b[l.FunctionName:])
	f.class = binary.LittleEndian.Uint64(b[l.FunctionClass:])
	switch f.kind {
	case phpInternal:
		return f, true
	case phpUser, phpEval:
		f.file = binary.LittleEndian.Uint64(b[l.FunctionFile:])
		f.first = binary.LittleEndian.Uint32(b[l.FunctionFirstLine:])
		f.end = binary.LittleEndian.Uint32(b[l.FunctionFirstLine+4:])
		f.fileHash, ok = w.memory.word(f.file + l.Text - 2*word)
	}
	return f, ok
}

// phpFrame appends a frame. It returns false if its names are invalid.
func (w *walk) phpFrame(p *process, f phpFrame) bool {
	if f.kind == phpInternal && f.name == 0 {
		return true // the frame at which a fiber begins
	}
	l := p.php
	at, ok := l.named[f]
	if !ok {
		if p.held > 2*maxHeld {
			return false
		}
		class := uint64(0)
		if f.class != 0 {
			class, _ = w.memory.word(f.class + l.ClassName)
		}
		name, ok1 := w.phpText(l, f.name)
		of, ok2 := w.phpText(l, class)
		file, ok3 := w.phpText(l, f.file)
		switch {
		case !ok1 || !ok2 || !ok3:
			return false
		case f.kind == phpEval:
			name = "eval"
		case name == "" && f.outermost:
			name = "{main}"
		case name == "":
			name = "include"
		case of != "":
			name = of + "::" + name
		}
		at = w.name(p, samples.FramePHP, samples.Line{Function: name, File: file, StartLine: int64(f.first), Line: int64(f.line)})
		l.named[f] = at
	}
	w.frames = append(w.frames, at)
	return true
}

// phpText reads up to maxText bytes of a string of PHP. The names of anonymous classes
// contain more text after a zero byte.
func (w *walk) phpText(l *php, at uint64) (string, bool) {
	if at == 0 {
		return "", true
	}
	n, ok := w.memory.word(at + l.Text - word)
	n = min(n, maxText)
	b := w.memory.block(at+l.Text, int(n))
	if !ok || len(b) < int(n) {
		return "", false
	}
	text, _, _ := bytes.Cut(b, []byte{0})
	return strings.ToValidUTF8(string(text), "\uFFFD"), true
}
