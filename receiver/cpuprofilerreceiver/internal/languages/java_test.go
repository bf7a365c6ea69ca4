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
	codeHeap  = 0x40000
	segments  = 0x60000
	stackAt   = 0x80000
	method    = 0x90000
	constants = 0x91000
)

// hotspot is the layout of Java 17. Names returns the position in the code as the line.
var hotspot = interpreter.HotSpot{
	Version: 17, SegmentShift: 7, HeapBlock: 16,
	Heaps:    []interpreter.CodeHeap{{Range: interpreter.Range{Start: codeHeap, Limit: codeHeap + 0x10000}, Segments: segments}},
	BlobName: 96, BlobCode: 32, BlobComplete: 20, BlobFrame: 28, CompileID: 304, Deoptimize: 128, OriginalPC: 300,
	MethodConst: 8, ConstSize: 48, Bytecode: -8,
	Names: func(c interpreter.Code) ([]interpreter.Function, error) {
		switch {
		case c.Interpreted && c.Address == method:
			return []interpreter.Function{{Name: "interpreted", Line: int64(c.Position)}}, nil
		case c.Check == 77:
			return []interpreter.Function{{Name: "inlined", Line: int64(c.Position)}, {Name: "compiled"}}, nil
		}
		return nil, errors.New("unknown")
	},
}

// newJVM returns the memory of a JVM. The memory contains one blob of each given
// kind. Each blob has two segments.
func newJVM(kinds ...string) *image {
	m := &image{bytes: make([]byte, 1<<20), next: 0x30000}
	for i := range 0x200 {
		m.bytes[segments+i] = 0xff
	}
	for i, kind := range kinds {
		m.bytes[segments+2*8*i] = 0
		for j := 1; j < 16; j++ {
			m.bytes[segments+16*i+j] = 1
		}
		blob := uint64(codeHeap + 2048*i + 16)
		name := m.alloc(64)
		copy(m.bytes[name:], kind)
		m.put(blob+96, name)
		m.put(blob+32, blob+512)
		binary.LittleEndian.PutUint32(m.bytes[blob+20:], 16) // the blob is complete
		binary.LittleEndian.PutUint32(m.bytes[blob+28:], 8)  // the frame size in words
		m.put(blob+128, blob+1024)
		binary.LittleEndian.PutUint32(m.bytes[blob+300:], 24)
		binary.LittleEndian.PutUint32(m.bytes[blob+304:], 77)
	}
	m.put(method+8, constants)
	return m
}

// in returns an address in the code of a blob.
func in(blob, offset int) uint64 { return uint64(codeHeap + 2048*blob + 16 + 512 + offset) }

func newJavaWalker(t testing.TB, m *image) (*Walker, *processes.Process) {
	w, of := newTestWalker(t, layouts["3.9"], m.read)
	p := w.processes[of.PID]
	w.detach(p)
	l := hotspot
	w.attach(p, interpreter.Layout{HotSpot: &l})
	return w, of
}

func TestStepsOfJava(t *testing.T) {
	ret := []byte{0x49, 0x3b, 0xa7, 1, 2, 3, 4, 0x0f, 0x87, 1, 2, 3, 4, 0xc3}
	for name, test := range map[string]struct {
		frame unwind.Frame
		code  []byte // the code at the program counter
		stack map[uint64]uint64
		// pc, sp and fp are the registers of the caller.
		pc, sp, fp uint64
		lines      []string
		line       int64
	}{
		"a caller that is compiled": {
			frame: unwind.Frame{PC: in(0, 200), FP: 1}, stack: map[uint64]uint64{48: 0x77, 56: 0x1234},
			pc: 0x1234, sp: 64, fp: 0x77, lines: []string{"inlined", "compiled"}, line: 200,
		},
		"compiled code begins": {
			frame: unwind.Frame{PC: in(0, 0), FP: 1, Exact: true}, stack: map[uint64]uint64{0: 0x1234},
			pc: 0x1234, sp: 8, fp: 1, lines: []string{"inlined", "compiled"},
		},
		"compiled code after push rbp": {
			frame: unwind.Frame{PC: in(0, 1), FP: 1, Exact: true}, code: []byte{}, stack: map[uint64]uint64{0: 0x77, 8: 0x1234},
			pc: 0x1234, sp: 16, fp: 0x77, lines: []string{"inlined", "compiled"}, line: 1,
		},
		"compiled code before pop rbp": {
			frame: unwind.Frame{PC: in(0, 200), FP: 1, Exact: true}, code: append([]byte{0x5d}, ret...), stack: map[uint64]uint64{0: 0x77, 8: 0x1234},
			pc: 0x1234, sp: 16, fp: 0x77, lines: []string{"inlined", "compiled"}, line: 200,
		},
		"compiled code before it returns": {
			frame: unwind.Frame{PC: in(0, 200), FP: 1, Exact: true}, code: ret, stack: map[uint64]uint64{0: 0x1234},
			pc: 0x1234, sp: 8, fp: 1, lines: []string{"inlined", "compiled"}, line: 200,
		},
		"a deoptimized caller": {
			frame: unwind.Frame{PC: in(0, 512), FP: 1}, stack: map[uint64]uint64{24: in(0, 300), 48: 0x77, 56: 0x1234},
			pc: 0x1234, sp: 64, fp: 0x77, lines: []string{"inlined", "compiled"}, line: 300,
		},
		"an interpreted caller": {
			frame: unwind.Frame{PC: in(1, 200), FP: stackAt + 96},
			stack: map[uint64]uint64{32: constants + 48 + 5, 72: method, 88: stackAt + 160, 96: 0x77, 104: 0x1234},
			pc:    0x1234, sp: 160, fp: 0x77, lines: []string{"interpreted"}, line: 5,
		},
		"the interpreter": {
			frame: unwind.Frame{PC: in(1, 200), FP: stackAt + 96, Exact: true, BCP: constants + 48 + 9},
			stack: map[uint64]uint64{32: constants + 48 + 5, 72: method, 88: stackAt + 160, 96: 0x77, 104: 0x1234},
			pc:    0x1234, sp: 160, fp: 0x77, lines: []string{"interpreted"}, line: 9,
		},
		"a stub": {
			frame: unwind.Frame{PC: in(2, 200), FP: stackAt + 32}, stack: map[uint64]uint64{32: 0x77, 40: 0x1234},
			pc: 0x1234, sp: 48, fp: 0x77, lines: []string{"StubRoutines (1)"},
		},
		"a stub of virtual calls": {
			frame: unwind.Frame{PC: in(3, 200), FP: 1, Exact: true}, stack: map[uint64]uint64{0: 0x1234},
			pc: 0x1234, sp: 8, fp: 1, lines: []string{"vtable chunks"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newJVM("nmethod", "Interpreter", "StubRoutines (1)", "vtable chunks")
			m.bytes[in(0, 0)] = 0x55
			copy(m.bytes[test.frame.PC:], test.code)
			w, of := newJavaWalker(t, m)
			f := test.frame
			f.SP, f.Start, f.Stack = stackAt, stackAt, make([]byte, 256)
			for at, v := range test.stack {
				binary.LittleEndian.PutUint64(f.Stack[at:], v)
			}
			g := generated(w, of, true)
			require.NotNil(t, g)
			stand, ok := g.Step(&f)
			require.True(t, ok)
			require.Equal(t, []uint64{test.pc, test.sp, test.fp}, []uint64{f.PC, f.SP - stackAt, f.FP})
			l := w.Interpreted(of.PID, stand)
			require.NotNil(t, l)
			var functions []string
			for _, line := range l.Lines {
				functions = append(functions, line.Function)
			}
			require.Equal(t, test.lines, functions)
			require.Equal(t, test.line, l.Lines[0].Line)
			require.EqualValues(t, 1, w.Count(Walked))
		})
	}
}

func generated(w *Walker, of *processes.Process, hasRegisters bool) unwind.Generated {
	rec := sample(w.now)
	rec.Sample.HasRegisters = hasRegisters
	w.Walk(of, rec)
	return w.Generated(&rec.Sample)
}

func TestUnknownGeneratedCode(t *testing.T) {
	w, of := newJavaWalker(t, newJVM("nmethod"))
	for _, pc := range []uint64{0, 1 << 63, codeHeap - 1, in(1, 0), codeHeap + 0x10000} {
		_, ok := generated(w, of, true).Step(&unwind.Frame{PC: pc, Exact: true})
		require.False(t, ok)
	}
	require.Nil(t, generated(w, of, false))
	require.EqualValues(t, 5, w.Count(Unreadable))
}

// TestBlobsAreReadAgain covers a method that is compiled again, so that its new code can
// be at the address of another method's old code. The names must then be read again.
func TestBlobsAreReadAgain(t *testing.T) {
	m := newJVM("nmethod")
	w, of := newJavaWalker(t, m)
	name := func() uint64 {
		f := unwind.Frame{PC: in(0, 200), SP: stackAt, Start: stackAt, Stack: make([]byte, 256)}
		stand, ok := generated(w, of, true).Step(&f)
		require.True(t, ok)
		return stand
	}
	first := name()
	require.Equal(t, first, name())
	binary.LittleEndian.PutUint32(m.bytes[codeHeap+16+304:], 78)
	at := w.now + int64(checkInterval) + 1
	w.cfg.Now = func() int64 { return at }
	require.NotEqual(t, first, name())
}

func FuzzStepsOfJava(f *testing.F) {
	f.Add(uint32(segments), uint64(0x0101010101010101), uint64(codeHeap+700), uint64(stackAt), uint8(0))
	f.Add(uint32(codeHeap+16+28), uint64(1<<63), uint64(codeHeap+2748), uint64(stackAt+64), uint8(1))
	f.Fuzz(func(t *testing.T, at uint32, value, pc, fp uint64, kind uint8) {
		m := newJVM("nmethod", "Interpreter", "StubRoutines (1)", "vtable chunks")
		m.put(uint64(at)%(1<<20-8), value)
		w, of := newJavaWalker(t, m)
		frame := unwind.Frame{PC: pc, SP: stackAt, FP: fp, BCP: value, Exact: kind&1 != 0, Start: stackAt, Stack: m.bytes[stackAt : stackAt+4096]}
		for range 10 {
			if _, ok := generated(w, of, true).Step(&frame); !ok {
				break
			}
		}
		require.LessOrEqual(t, w.memory.reads, maxReads)
	})
}
