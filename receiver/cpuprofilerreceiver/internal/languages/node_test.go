// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

const (
	jsCode     = 0x60000 // the address of the instructions
	jsObject   = 0x62000 // the address of the code object
	jsFunction = 0x63000
	jsShared   = 0x64000
	jsMaps     = 0x65000 // the address of the maps, one for each type
	jsFP       = stackAt + 0x60
)

// nodeMap returns the tagged address of the map for a type.
func nodeMap(m *image, of uint16) uint64 {
	at := uint64(jsMaps) + uint64(of%64)*64
	binary.LittleEndian.PutUint16(m.bytes[at+12:], of)
	return at + 1
}

// newNode returns the memory of a Node.js 22 process that
// has a code object and a function.
func newNode() *image {
	m := &image{bytes: make([]byte, 1<<20), next: 0x30000}
	m.put(jsObject, nodeMap(m, 206))
	m.put(jsObject+40, jsCode)
	binary.LittleEndian.PutUint32(m.bytes[jsObject+52:], 0x400) // the size of the code
	m.put(jsCode-24, jsObject+1)
	m.put(jsFunction, nodeMap(m, 2066))
	m.put(jsFunction+32, jsShared+1)
	return m
}

func newNodeWalker(t testing.TB, m *image) (w *Walker, of *processes.Process, builtin uint64) {
	w, of = newTestWalker(t, layouts["3.9"], m.read)
	p := w.processes[of.PID]
	w.detach(p)
	file := of.Mapped()[0]
	w.attach(p, interpreter.Layout{V8: &interpreter.V8{
		File: file.Path, Builtins: interpreter.Range{Start: file.FileOffset + 16, Limit: file.FileOffset + 1024},
		CodeType: 206, FirstFunction: 2066, LastFunction: 2082,
		FunctionShared: 32, CodeRefs: []uint64{8, 24}, CodeStart: 40, CodeSize: 52, CodeFlags: 48,
		Names: func(c interpreter.Code) ([]interpreter.Function, int64, error) {
			switch {
			case c.Interpreted && c.Address == jsShared+1:
				return []interpreter.Function{{Name: "interpreted", Line: int64(c.Position)}}, 100, nil
			case !c.Interpreted && c.Address == jsObject+1 && c.Position != 0x300:
				return []interpreter.Function{{Name: "inlined", Line: int64(c.Position)}, {Name: "compiled"}}, 100, nil
			}
			return nil, 0, errors.New("unknown")
		},
		Forget: func() {},
	}})
	p.node.findBuiltins(of)
	return w, of, file.Start + 16
}

func TestStepsOfNode(t *testing.T) {
	_, _, builtin := newNodeWalker(t, newNode())
	compiled := []string{"inlined", "compiled"}
	for name, test := range map[string]struct {
		pc       uint64
		exact    bool
		function uint64
		// want is empty if the address itself remains in the stack.
		want []string
		line int64
	}{
		"compiled code":             {pc: jsCode + 0x101, want: compiled, line: 0x100},
		"compiled code, innermost":  {pc: jsCode + 0x100, exact: true, want: compiled, line: 0x100},
		"code without names":        {pc: jsCode + 0x301, function: jsFunction + 1, want: []string{"interpreted"}},
		"the interpreter":           {pc: builtin + 9, function: jsFunction + 1, want: []string{"interpreted"}},
		"a bytecode":                {pc: builtin + 9, exact: true, function: jsFunction + 1, want: []string{"interpreted"}},
		"a stub":                    {pc: builtin + 9, function: 18 << 1},
		"an object of another type": {pc: builtin + 9, function: jsObject + 1},
		"unknown code":              {pc: 0xf0000},
	} {
		t.Run(name, func(t *testing.T) {
			w, of, _ := newNodeWalker(t, newNode())
			require.True(t, w.Has(builtin))
			for range 2 { // the second step uses the cached names
				f := unwind.Frame{PC: test.pc, SP: stackAt, FP: jsFP, Exact: test.exact, Start: stackAt, Stack: make([]byte, 256)}
				for at, v := range map[uint64]uint64{jsFP: jsFP + 64, jsFP + 8: 0x1234, jsFP - 16: test.function} {
					binary.LittleEndian.PutUint64(f.Stack[at-stackAt:], v)
				}
				stand, ok := generated(w, of, true).Step(&f)
				require.True(t, ok)
				require.Equal(t, []uint64{0x1234, jsFP + 16, jsFP + 64}, []uint64{f.PC, f.SP, f.FP})
				if len(test.want) == 0 {
					require.Equal(t, test.pc, stand)
					continue
				}
				l := w.Interpreted(of.PID, stand)
				require.NotNil(t, l)
				var functions []string
				for _, line := range l.Lines {
					functions = append(functions, line.Function)
				}
				require.Equal(t, test.want, functions)
				require.Equal(t, test.line, l.Lines[0].Line)
				require.Equal(t, "v8js", string(l.Type))
			}
		})
	}
}

func TestHostileNodeIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		change func(m *image, f *unwind.Frame)
		ok     bool // whether the frame has a caller
	}{
		"unknown code":          {func(m *image, _ *unwind.Frame) { m.put(jsCode-24, 0) }, true},
		"code at another place": {func(m *image, _ *unwind.Frame) { m.put(jsObject+40, jsCode+32) }, true},
		"code without a size":   {func(m *image, _ *unwind.Frame) { m.put(jsObject+48, 0) }, true},
		"another type":          {func(m *image, _ *unwind.Frame) { m.put(jsObject, nodeMap(m, 207)) }, true},
		"objects not mapped":    {func(m *image, _ *unwind.Frame) { m.put(jsCode-24, 1<<46+1) }, true},
		"objects of the kernel": {func(m *image, _ *unwind.Frame) { m.put(jsCode-24, 1<<63+1) }, true},
		"a map not mapped":      {func(m *image, _ *unwind.Frame) { m.put(jsObject, 1<<46+1) }, true},
		"the last byte":         {func(_ *image, f *unwind.Frame) { f.PC = 1<<64 - 1 }, true},
		"no stack":              {func(_ *image, f *unwind.Frame) { f.FP = 1 << 63 }, false},
		"a frame below":         {func(_ *image, f *unwind.Frame) { f.FP = f.SP - 8 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newNode()
			w, of, _ := newNodeWalker(t, m)
			f := unwind.Frame{PC: jsCode + 0x100, SP: stackAt, FP: jsFP, Start: stackAt, Stack: make([]byte, 256)}
			binary.LittleEndian.PutUint64(f.Stack[jsFP+8-stackAt:], 0x1234)
			test.change(m, &f)
			pc := f.PC
			stand, ok := generated(w, of, true).Step(&f)
			require.Equal(t, test.ok, ok)
			if ok {
				require.Equal(t, pc, stand)
			}
			require.LessOrEqual(t, w.memory.reads, maxReads)
		})
	}
}

// TestNodeCodeIsReadAgain replaces the code at an address with other code. The new code
// must be read, and the old entry must be removed.
func TestNodeCodeIsReadAgain(t *testing.T) {
	m := newNode()
	w, of, _ := newNodeWalker(t, m)
	now := w.now
	w.cfg.Now = func() int64 { return now }
	step := func() uint64 {
		f := unwind.Frame{PC: jsCode + 0x101, SP: stackAt, FP: jsFP, Start: stackAt, Stack: make([]byte, 256)}
		stand, ok := generated(w, of, true).Step(&f)
		require.True(t, ok)
		return stand
	}
	first := step()
	require.Equal(t, first, step())
	m.put(jsObject+8, 0x77) // changes the names of the code
	now += int64(checkInterval) + 1
	second := step()
	require.NotEqual(t, first, second)
	now += int64(nodeNames) + 1
	require.NotEqual(t, second, step(), "names are read again")
	m.put(jsCode-24, 0)
	m.put(jsObject+40, jsCode+64)
	m.put(jsCode+64-8, jsObject+1) // the layout of Node.js 20
	now += int64(checkInterval) + 1
	step()
	require.EqualValues(t, jsCode+64, w.process.node.codes[jsCode+0x100].Start)
}

// TestMemoryForNamesIsShared checks that all processes share one limit on the memory for
// names.
func TestMemoryForNamesIsShared(t *testing.T) {
	w, of, _ := newNodeWalker(t, newNode())
	p := w.processes[of.PID]
	p.held = maxHeld - 1
	for i := range 2 * maxWalked {
		other := &process{pid: -i - 1}
		w.processes[other.pid] = other
		l := hotspot
		w.attach(other, interpreter.Layout{HotSpot: &l})
		if other.attached() {
			other.held = maxHeld / int64(w.all)
		}
	}
	require.Equal(t, maxWalked, w.all)
	var held int64
	for _, p := range w.processes {
		held += p.held
	}
	require.LessOrEqual(t, held, int64(2*maxHeld))
	for _, p := range w.processes {
		w.detach(p)
	}
	require.Zero(t, w.all)
}

func FuzzStepsOfNode(f *testing.F) {
	f.Add(uint32(jsObject), uint64(jsMaps+1), uint64(jsCode+0x101), uint64(jsFP), uint8(0))
	f.Add(uint32(jsCode-24), uint64(1<<63), uint64(jsCode+2), uint64(stackAt), uint8(1))
	f.Add(uint32(stackAt+0x50), uint64(jsFunction+1), uint64(0), uint64(jsFP), uint8(3))
	f.Fuzz(func(t *testing.T, at uint32, value, pc, fp uint64, kind uint8) {
		m := newNode()
		m.put(uint64(at)%(1<<20-8), value)
		w, of, builtin := newNodeWalker(t, m)
		if kind&2 != 0 {
			pc = builtin + pc%1024
		}
		frame := unwind.Frame{PC: pc, SP: stackAt, FP: fp, Exact: kind&1 != 0, Start: stackAt, Stack: m.bytes[stackAt : stackAt+4096]}
		for range 10 {
			if _, ok := generated(w, of, true).Step(&frame); !ok {
				break
			}
		}
		require.LessOrEqual(t, w.memory.reads, maxReads)
	})
}
