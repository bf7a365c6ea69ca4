// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

var php84 = interpreter.PHP{
	Current: 0x10000, FrameBack: 48, FrameFunction: 24, FrameLast: 0, FrameFlags: 40, InstructionLine: 24,
	FunctionSize: 184, FunctionType: 0, FunctionName: 8, FunctionClass: 16, FunctionFile: 168, FunctionFirstLine: 176,
	ClassName: 8, Text: 24,
}

// phpImage is the memory of an imaginary PHP process.
type phpImage struct {
	image
	strings map[string]uint64
	current uint64 // the address of the innermost frame
}

func (m *phpImage) text(s string) uint64 {
	at, ok := m.strings[s]
	if !ok && s != "" {
		at = m.alloc(uint64(32 + len(s)))
		m.put(at+8, uint64(len(s))*31, uint64(len(s)))
		copy(m.bytes[at+24:], s)
		m.strings[s] = at
	}
	return at
}

// function adds a function. The name may begin with a class.
func (m *phpImage) function(kind byte, name, file string) uint64 {
	at := m.alloc(php84.FunctionSize)
	class, method, ok := strings.Cut(name, "::")
	if ok {
		name = method
		of := m.alloc(16)
		m.put(of+8, m.text(class))
		m.put(at+16, of)
	}
	m.bytes[at] = kind
	m.put(at+8, m.text(name))
	if kind != phpInternal {
		m.put(at+168, m.text(file), 10|20<<32)
	}
	return at
}

// call adds a frame that executes the function at line 12. The new
// frame becomes the innermost frame.
func (m *phpImage) call(function, flags uint64) {
	instruction, frame := m.alloc(32), m.alloc(80)
	m.put(instruction+24, 12)
	m.put(frame, instruction, 0, 0, function, 0, flags, m.current)
	m.current = frame
	m.put(php84.Current, frame)
}

const phpCode = 1 << 16 // the flag of a frame without a function name

// newPHPImage returns the memory of a PHP process. The main file includes another file,
// which calls a method. The method sorts with a closure, and the closure evaluates code.
func newPHPImage() *phpImage {
	m := &phpImage{image: image{bytes: make([]byte, 1<<20), next: 0x30000}, strings: map[string]uint64{}}
	m.call(m.function(phpUser, "", "/app/index.php"), phpTop|phpCode)
	m.call(m.function(phpInternal, "", ""), 0)
	m.call(m.function(phpUser, "", "/app/inc.php"), phpCode)
	m.call(m.function(phpUser, "Shop\\Cart::sort", "/app/inc.php"), 0)
	m.call(m.function(phpInternal, "usort", ""), 0)
	m.call(0, 0)
	m.call(m.function(phpUser, "class@anonymous\x00/app/inc.php:3$0::{closure}", "/app/inc.php"), phpTop)
	m.call(m.function(phpEval, "", "/app/inc.php(12) : eval()'d code"), phpCode)
	return m
}

func TestWalkOfPHP(t *testing.T) {
	m := newPHPImage()
	w, of := newTestWalkerOf(interpreter.Layout{PHP: &php84}, m.read)
	require.True(t, w.Prompt())
	for range 2 { // the second walk uses the cached names
		require.True(t, w.Walk(of, sample(w.now)))
		require.Equal(t, []string{"eval", "class@anonymous::{closure}", "usort", "Shop\\Cart::sort", "include", "{main}"}, names(w, of, w.frames))
		require.Equal(t, []int{2, 6}, w.ends)
	}
	require.Len(t, w.process.names, 6)
	at := w.Interpreted(of.PID, w.frames[3])
	require.Equal(t, samples.Location{Type: "php", Resolved: true, Lines: []samples.Line{{Function: "Shop\\Cart::sort", File: "/app/inc.php", StartLine: 10, Line: 12}}}, *at)
	require.Equal(t, samples.Line{Function: "usort"}, w.Interpreted(of.PID, w.frames[2]).Lines[0])
}

// TestLineOfAnotherFunctionOfPHP covers a function that has not stored its instruction
// yet, so that its frame still contains an instruction of an earlier function. In this
// case, the first line of the function is used.
func TestLineOfAnotherFunctionOfPHP(t *testing.T) {
	m := newPHPImage()
	m.put(wordAt(&m.image, m.current)+24, 21)
	w, of := newTestWalkerOf(interpreter.Layout{PHP: &php84}, m.read)
	for _, instruction := range []uint64{wordAt(&m.image, m.current), 0, 1 << 63} {
		m.put(m.current, instruction)
		require.True(t, w.Walk(of, sample(w.now)))
		require.EqualValues(t, 10, w.Interpreted(of.PID, w.frames[0]).Lines[0].Line)
	}
	require.EqualValues(t, 12, w.Interpreted(of.PID, w.frames[1]).Lines[0].Line)
}

// TestMergeOfCompiledPHP covers compiled code. Unwind tables do not cover this code, so
// the native stack ends there.
func TestMergeOfCompiledPHP(t *testing.T) {
	for name, ends := range map[string][]int{"one call": {2}, "a call through C": {1, 2}} {
		t.Run(name, func(t *testing.T) {
			w, of := newTestWalkerOf(interpreter.Layout{PHP: &php84}, nil)
			inFile := of.Mapped()[0].Start + 1
			w.frames, w.ends = []uint64{synthetic | 1, synthetic | 2}, ends
			s := perfevent.Sample{User: []uint64{inFile, 10}}
			require.True(t, w.Merge(of, &s, false))
			require.Equal(t, []uint64{inFile, synthetic | 1, synthetic | 2}, s.User)
		})
	}
}

// TestAnotherRequestOfPHP covers PHP without an opcode cache. The functions of the next
// request are then at the same addresses.
func TestAnotherRequestOfPHP(t *testing.T) {
	m := newPHPImage()
	w, of := newTestWalkerOf(interpreter.Layout{PHP: &php84}, m.read)
	require.True(t, w.Walk(of, sample(w.now)))
	file := m.strings["/app/index.php"]
	m.put(file+8, 4711)
	copy(m.bytes[file+24:], "/app/other.php")
	require.True(t, w.Walk(of, sample(w.now)))
	require.Equal(t, "/app/other.php", w.Interpreted(of.PID, w.frames[5]).Lines[0].File)
}

func TestHostileFramesOfPHPAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		change func(m *phpImage)
		walked bool
	}{
		"a cycle":                      {func(m *phpImage) { m.put(m.current+48, m.current) }, true},
		"a cycle without functions":    {func(m *phpImage) { m.put(m.current+24, 0); m.put(m.current+48, m.current) }, true},
		"no memory":                    {func(m *phpImage) { m.put(m.current+48, 1<<46) }, false},
		"another kind of function":     {func(m *phpImage) { m.bytes[wordAt(&m.image, m.current+24)] = 3 }, false},
		"a function in the kernel":     {func(m *phpImage) { m.put(m.current+24, 1<<64-1) }, false},
		"a name of 1 GiB":              {func(m *phpImage) { m.put(m.strings["usort"]+16, 1<<30) }, true},
		"a name that is not in memory": {func(m *phpImage) { m.put(wordAt(&m.image, m.current+24)+8, 1<<46) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newPHPImage()
			test.change(m)
			w, of := newTestWalkerOf(interpreter.Layout{PHP: &php84}, m.read)
			require.Equal(t, test.walked, w.Walk(of, sample(w.now)))
			require.LessOrEqual(t, len(w.frames), maxFrames)
			require.LessOrEqual(t, w.memory.reads, maxReads)
			for _, f := range w.frames {
				require.LessOrEqual(t, len(w.Interpreted(of.PID, f).Lines[0].Function), 2*maxText)
			}
			if !test.walked {
				require.EqualValues(t, 1, w.Count(Torn))
			}
		})
	}
}

func FuzzWalkOfPHP(f *testing.F) {
	f.Add(uint16(0x100), uint64(0x30000))
	f.Add(uint16(0x30), uint64(1<<63))
	f.Fuzz(func(t *testing.T, at uint16, value uint64) {
		m := newPHPImage()
		m.put(0x30000+uint64(at)%(m.next-0x30000), value)
		w, of := newTestWalkerOf(interpreter.Layout{PHP: &php84}, m.read)
		if w.Walk(of, sample(w.now)) {
			s := perfevent.Sample{User: []uint64{1, loopAt}}
			w.Merge(of, &s, true)
		}
	})
}

// TestNamesOfPHPAreForgotten covers a process with too many names. The names must be
// dropped and read again.
func TestNamesOfPHPAreForgotten(t *testing.T) {
	m := newPHPImage()
	w, of := newTestWalkerOf(interpreter.Layout{PHP: &php84}, m.read)
	require.True(t, w.Walk(of, sample(w.now)))
	w.process.held = maxHeld + 1
	require.True(t, w.Walk(of, sample(w.now)))
	require.Equal(t, "{main}", names(w, of, w.frames)[5])
	require.Less(t, w.process.held, int64(maxHeld))
}
