// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// layouts contains the layouts of three versions of CPython. In 3.9, each Python frame
// has its own call of the interpreter loop. In 3.12, a call of the loop can have
// several Python frames and begins with a frame on the C stack. In 3.14, such a frame
// is also at the end of the chain.
var layouts = map[string]*interpreter.Python{
	"3.9": {
		Minor: 9, ThreadID: 0x2d0, StateKey: stateKey, TSD: 0x318, TSDSize: 16, StateFrame: 24,
		FrameBack: 24, FrameCode: 32, FrameLast: 104,
		CodeType: codeType, CodeSize: 176, CodeFirstLine: 40, CodeFile: 104, CodeName: 112, CodeLines: 120,
	},
	"3.14": {
		Minor: 14, ThreadID: 0x2d0, StateKey: stateKey, TSD: 0x318, TSDSize: 16, StateFrame: 72,
		FrameBack: 8, FrameCode: 0, FrameLast: 56, FrameEntry: 74, FrameEntryIs: 3,
		CodeType: codeType, CodeSize: 192, CodeFirstLine: 68, CodeFile: 112, CodeName: 120, CodeQualifiedName: 128, CodeLines: 136,
	},
	"3.12": {
		Minor: 12, ThreadID: 0x2d0, StateKey: stateKey, TSD: 0x318, TSDSize: 16, StateFrame: 56, CFrame: true,
		FrameBack: 8, FrameCode: 0, FrameLast: 56, FrameEntry: 70, FrameEntryIs: 3,
		CodeType: codeType, CodeSize: 192, CodeFirstLine: 68, CodeFile: 112, CodeName: 120, CodeQualifiedName: 128, CodeLines: 136,
	},
}

const (
	stateKey = 0x10000
	codeType = 0x11000
	control  = 0x20000 // the control block of the thread
	state    = 0x21000
	tid      = 77
	loopAt   = 0x400000
)

// image is the memory of an imaginary process.
type image struct {
	l     *interpreter.Python
	bytes []byte
	next  uint64
}

func (m *image) put(at uint64, words ...uint64) {
	for i, v := range words {
		binary.LittleEndian.PutUint64(m.bytes[at+uint64(i)*8:], v)
	}
}

func (m *image) alloc(n uint64) uint64 {
	at := m.next
	m.next += (n + 15) &^ 15
	return at
}

func (m *image) text(s string) uint64 {
	ascii := !strings.ContainsFunc(s, func(r rune) bool { return r > 127 })
	at := m.alloc(uint64(80 + 2*len(s)))
	header, state, width := uint64(40), uint32(1<<2|3<<5), 1
	if m.l.Minor < 12 {
		header = 48
	}
	units := utf16.Encode([]rune(s))
	if !ascii {
		header, state, width = header+16, 2<<2|1<<5, 2
		if m.l.Minor < 12 {
			header += 8
		}
	}
	m.put(at+16, uint64(len(units)))
	binary.LittleEndian.PutUint32(m.bytes[at+32:], state)
	for i, u := range units {
		if width == 1 {
			m.bytes[at+header+uint64(i)] = byte(u)
		} else {
			binary.LittleEndian.PutUint16(m.bytes[at+header+uint64(2*i):], u)
		}
	}
	return at
}

// code adds a code object of a function with a single line.
func (m *image) code(name string, first uint64) uint64 {
	at := m.alloc(m.l.CodeSize + 16)
	m.put(at+8, codeType)
	binary.LittleEndian.PutUint32(m.bytes[at+m.l.CodeFirstLine:], uint32(first))
	m.put(at+m.l.CodeFile, m.text("/app/main.py"))
	m.put(at+m.l.CodeName, m.text(name))
	if m.l.CodeQualifiedName != 0 {
		m.put(at+m.l.CodeQualifiedName, m.text("Class."+name))
	}
	table := m.alloc(64)
	m.put(at+m.l.CodeLines, table)
	if m.l.Minor >= 11 {
		m.put(table+16, 2)
		copy(m.bytes[table+32:], []byte{0x80 | 13<<3 | 7, 2}) // the entry covers 8 code units and advances one line
	} else {
		m.put(table+16, 2)
		copy(m.bytes[table+32:], []byte{0, 1})
	}
	return at
}

// frame adds a frame. back is the caller's frame.
func (m *image) frame(code, back uint64, entry bool) uint64 {
	at := m.alloc(112)
	m.put(at+m.l.FrameBack, back)
	m.put(at+m.l.FrameCode, code)
	last := uint64(4)
	if m.l.Minor >= 11 {
		last += code + m.l.CodeSize
	}
	m.put(at+m.l.FrameLast, last)
	if entry {
		m.bytes[at+m.l.FrameEntry] = m.l.FrameEntryIs
	}
	return at
}

func (m *image) current(frame uint64) {
	cframe := m.alloc(16)
	if m.l.CFrame {
		m.put(cframe, frame)
		frame = cframe
	}
	m.put(state+m.l.StateFrame, frame)
}

func (m *image) read(_ int, at uint64, b []byte) int {
	if at >= uint64(len(m.bytes)) {
		return 0
	}
	return copy(b, m.bytes[at:])
}

// newImage returns the memory of a process with one thread. In this thread, outer calls
// inner directly, and inner calls leaf through C code.
func newImage(l *interpreter.Python) *image {
	m := &image{l: l, bytes: make([]byte, 1<<20), next: 0x30000}
	m.put(control, control, 0, control)
	binary.LittleEndian.PutUint32(m.bytes[control+l.ThreadID:], tid)
	binary.LittleEndian.PutUint32(m.bytes[stateKey:], 3)
	m.put(control+uint64(l.TSD)+3*l.TSDSize, state)
	back := uint64(0)
	entry := func() {
		if l.FrameEntry != 0 {
			back = m.frame(0, back, true)
		}
	}
	entry()
	if l.Minor >= 14 {
		entry()
	}
	back = m.frame(m.code("outer", 10), back, false)
	back = m.frame(m.code("innér", 20), back, false)
	entry()
	m.current(m.frame(m.code("leaf", 30), back, false))
	return m
}

// newTestWalker returns a walker that is attached to the test process but
// reads its memory through read.
func newTestWalker(t testing.TB, l *interpreter.Python, read func(int, uint64, []byte) int) (*Walker, *processes.Process) {
	t.Helper()
	w, of := newTestWalkerOf(interpreter.Layout{Python: l}, read)
	w.process.threads[tid] = &thread{id: tid, pointer: control}
	return w, of
}

func newTestWalkerOf(l interpreter.Layout, read func(int, uint64, []byte) int) (*Walker, *processes.Process) {
	now := int64(time.Hour)
	w := NewWalker(Config{
		Languages: Names(), Driver: noDriver{}, Read: read, Logger: zap.NewNop(), Now: func() int64 { return now },
		Hot: func() func(*processes.Process) bool { return func(*processes.Process) bool { return true } },
	})
	of := processes.NewTable(processes.Config{}).Lookup(os.Getpid(), 0)
	w.now = now
	p := &process{pid: of.PID, program: of.Program(), checked: now}
	w.processes[of.PID], w.process = p, p
	w.attach(p, l)
	return w, of
}

type noDriver struct{}

func (noDriver) Knows(string) bool { return false }
func (noDriver) Attach(interpreter.Process) (interpreter.Layout, error) {
	return interpreter.Layout{}, nil
}
func (noDriver) ThreadContext(interpreter.Process) (uint64, error) { return 0, nil }

func sample(at int64) *perfevent.Record {
	rec := new(perfevent.Record)
	rec.PID, rec.TID, rec.Time = os.Getpid(), tid, at
	rec.Sample.HasRegisters = true
	return rec
}

// names returns the names of the frames of a stack. A native frame is represented by a
// letter that depends on its address.
func names(w *Walker, of *processes.Process, stack []uint64) (out []string) {
	for _, a := range stack {
		if l := w.Interpreted(of.PID, a); l != nil {
			out = append(out, l.Lines[0].Function)
		} else {
			out = append(out, string(rune('a'+a%1024-1)))
		}
	}
	return out
}

func TestWalkOfPython(t *testing.T) {
	for version, want := range map[string][]string{
		"3.9":  {"leaf", "|", "innér", "|", "outer", "|"},
		"3.12": {"Class.leaf", "|", "Class.innér", "Class.outer", "|"},
		"3.14": {"Class.leaf", "|", "Class.innér", "Class.outer", "|"},
	} {
		t.Run(version, func(t *testing.T) {
			m := newImage(layouts[version])
			w, of := newTestWalker(t, m.l, m.read)
			for range 2 { // the second walk uses the cached names
				require.True(t, w.Walk(of, sample(w.now)))
				var got []string
				from := 0
				for _, end := range w.ends {
					got = append(append(got, names(w, of, w.frames[from:end])...), "|")
					from = end
				}
				require.Equal(t, want, got)
			}
			line := w.Interpreted(of.PID, w.frames[0]).Lines[0]
			require.Equal(t, "/app/main.py", line.File)
			require.EqualValues(t, 30, line.StartLine)
			require.EqualValues(t, 31, line.Line)
			require.Equal(t, "cpython", string(w.Interpreted(of.PID, w.frames[0]).Type))
		})
	}
}

func TestWalkIsNotOfAnotherMoment(t *testing.T) {
	m := newImage(layouts["3.12"])
	w, of := newTestWalker(t, m.l, m.read)
	require.False(t, w.Walk(of, sample(w.now-int64(maxDelay)-1)))
	require.EqualValues(t, 1, w.Count(Late))
}

// TestCodeObjectsAreReadAgain covers a new function at the address of a function that was
// freed.
func TestCodeObjectsAreReadAgain(t *testing.T) {
	m := newImage(layouts["3.12"])
	w, of := newTestWalker(t, m.l, m.read)
	require.True(t, w.Walk(of, sample(w.now)))
	frame := binary.LittleEndian.Uint64(m.bytes[binary.LittleEndian.Uint64(m.bytes[state+m.l.StateFrame:]):])
	code := binary.LittleEndian.Uint64(m.bytes[frame:])
	m.put(code+m.l.CodeQualifiedName, m.text("another"))
	require.True(t, w.Walk(of, sample(w.now)))
	require.Equal(t, "Class.leaf", names(w, of, w.frames)[0])
	at := w.now + int64(checkInterval) + 1
	w.cfg.Now = func() int64 { return at }
	w.processes[of.PID].checked = at
	require.True(t, w.Walk(of, sample(at)))
	require.Equal(t, "another", names(w, of, w.frames)[0])
}

func TestHostileFramesAreBounded(t *testing.T) {
	for name, change := range map[string]struct {
		change func(m *image, frame uint64)
		walked bool
	}{
		"a cycle":         {func(m *image, f uint64) { m.put(f+m.l.FrameBack, f) }, true},
		"no code":         {func(m *image, f uint64) { m.put(f+m.l.FrameCode, 0) }, false},
		"no memory":       {func(m *image, f uint64) { m.put(f+m.l.FrameBack, 1<<46) }, false},
		"another object":  {func(m *image, f uint64) { m.put(f+m.l.FrameCode, f) }, false},
		"the kernel":      {func(m *image, f uint64) { m.put(f+m.l.FrameBack, 1<<63) }, false},
		"the last byte":   {func(m *image, f uint64) { m.put(f+m.l.FrameBack, 1<<64-1) }, false},
		"a name of 1 GiB": {func(m *image, f uint64) { m.put(wordAt(m, wordAt(m, f)+m.l.CodeQualifiedName)+16, 1<<30) }, true},
		"lines of 1 TiB":  {func(m *image, f uint64) { m.put(wordAt(m, wordAt(m, f)+m.l.CodeLines)+16, 1<<40) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newImage(layouts["3.12"])
			change.change(m, wordAt(m, wordAt(m, state+m.l.StateFrame)))
			w, of := newTestWalker(t, m.l, m.read)
			require.Equal(t, change.walked, w.Walk(of, sample(w.now)))
			require.LessOrEqual(t, len(w.frames), maxFrames)
			require.LessOrEqual(t, w.memory.reads, maxReads)
			for _, f := range w.frames {
				require.LessOrEqual(t, len(w.Interpreted(of.PID, f).Lines[0].Function), 4*maxText)
			}
			if !change.walked {
				require.EqualValues(t, 1, w.Count(Torn))
			}
		})
	}
}

func wordAt(m *image, at uint64) uint64 { return binary.LittleEndian.Uint64(m.bytes[at:]) }

func FuzzWalkOfPython(f *testing.F) {
	f.Add(uint16(0x100), uint64(0x30000), "3.12")
	f.Add(uint16(0x30), uint64(1<<63), "3.9")
	f.Fuzz(func(t *testing.T, at uint16, value uint64, version string) {
		l := layouts[version]
		if l == nil {
			return
		}
		m := newImage(l)
		m.put(0x30000+uint64(at)%(m.next-0x30000), value)
		w, of := newTestWalker(t, l, m.read)
		if w.Walk(of, sample(w.now)) {
			s := perfevent.Sample{User: []uint64{1, loopAt}}
			w.Merge(of, &s, true)
		}
	})
}

// TestMemoryThatDoesNotAnswer checks that the walker gives up on a process if reading the
// memory of the process blocks. The goroutine that reads the memory continues to wait.
func TestMemoryThatDoesNotAnswer(t *testing.T) {
	m := newImage(layouts["3.12"])
	release := make(chan struct{})
	w, of := newTestWalker(t, m.l, func(int, uint64, []byte) int { <-release; return 0 })
	runner := stuckread.New(zap.NewNop(), nil, nil)
	require.ErrorIs(t, runner.Take(20*time.Millisecond, func(c *stuckread.Call) {
		w.Begin(c)
		w.Walk(of, sample(w.now))
		t.Error("it goes on")
	}), stuckread.ErrLate)
	require.NoError(t, runner.Take(time.Minute, func(c *stuckread.Call) {
		w.Begin(c)
		require.False(t, w.Walk(of, sample(w.now)))
		require.False(t, w.Prompt())
	}))
	close(release)
	require.Eventually(t, func() bool { return runner.Stats().Stuck == 0 }, 10*time.Second, time.Millisecond)
}
