// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package languages finds the functions of interpreted programs in samples of hot units.
//
// An interpreter keeps the frames of its functions in structures of its own, which are
// read from the memory of the process right after the sample, while the thread goes on.
// Where a driver (package interpreter) tells the layout of these structures, a Walker
// walks the frames of a sampled thread, and puts them in the place of the interpreter's
// loop in the native stack.
//
// All that is read is untrusted: each walk has a bound for its reads, names and frames, and
// a process whose memory does not answer is left alone.
package languages

import (
	"math"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/deadline"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// Config configures a Walker.
type Config struct {
	Enabled
	// Root is the directory where the host's root is mounted.
	Root   string
	Driver interpreter.Driver
	// Hot returns a function that reports whether a process is of a hot or warm unit now.
	Hot func() func(*processes.Process) bool
	// Open opens the file of a mapping.
	Open   func(*samples.Mapping) (*os.File, error)
	Runner *deadline.Runner
	// Meter measures the time for finding interpreters, which counts in Budget.
	Budget *cputime.Budget
	Meter  *cputime.Meter
	Logger *zap.Logger
	// Now returns CLOCK_MONOTONIC in nanoseconds.
	Now func() int64
	// Read reads the memory of a process and returns the number of bytes read; nil is the
	// kernel's.
	Read func(pid int, address uint64, b []byte) int
}

// Enabled selects languages.
type Enabled struct {
	// Python and Java find the functions of CPython and of HotSpot.
	Python bool `mapstructure:"python"`
	Java   bool `mapstructure:"java"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// Driver returns the driver of the languages that are enabled; nil if there is none.
func (e Enabled) Driver() interpreter.Driver {
	if !e.Python && !e.Java {
		return nil
	}
	return interpreter.Registered()
}

// Outcome is the outcome of one walk.
type Outcome int

// The outcomes. All but Walked leave the native stack as it is.
const (
	// Walked: the frames are in the stack.
	Walked Outcome = iota
	// Late: the sample was read too late.
	Late
	// Torn: the thread went on while its frames were read.
	Torn
	// Unreadable: the frames were not found.
	Unreadable

	// Outcomes is the number of the above.
	Outcomes
)

// String returns the outcome as the attribute value of a metric.
func (o Outcome) String() string { return [...]string{"walked", "late", "torn", "unreadable"}[o] }

const (
	// maxDelay is the longest time after a sample in which the thread's frames are taken
	// for those at the sample.
	maxDelay = 10 * time.Millisecond
	// hotInterval is the time after which it is checked again whether a unit is hot.
	hotInterval = 250 * time.Millisecond
	// checkInterval is the time after which it is checked again whether code that was read
	// is still the same.
	checkInterval = time.Second
	// retryInterval is the time after which what failed is tried again.
	retryInterval = 10 * time.Second
	// searchInterval is the minimum time between two searches for interpreters, which take
	// some milliseconds of CPU time each.
	searchInterval = 100 * time.Millisecond
	// searchWait is the time after which it is checked whether a search has ended.
	searchWait = 20 * time.Millisecond
	// idleTime is the time after its last sample in which a process is remembered.
	idleTime = time.Minute
	// attachLimit bounds each wait for a file or for memory while an interpreter is found.
	attachLimit = time.Second
	// synthetic is the lowest of the addresses that stand for interpreted frames. The
	// kernel's are in another part of a stack.
	synthetic = 1 << 63
	// maxHeld bounds the memory for code objects and names of a process. At the bound they
	// are forgotten.
	maxHeld = 8 << 20
	// maxThreads bounds the threads of a process that are remembered.
	maxThreads = 4096
	codeBytes  = 256
	nameBytes  = 320
)

// Walker walks the stacks of interpreted programs. It belongs to one reading goroutine.
type Walker struct {
	cfg       Config
	processes map[int]*process
	// hot is from Config.Hot, and checked when.
	hot     func(*processes.Process) bool
	checked int64
	call    *deadline.Call
	// searchFrom is the time from which on the next search for an interpreter may begin.
	searchFrom int64
	// searches is the number of searches under way.
	searches atomic.Int32
	// attached is the number of processes that are walked.
	attached int
	// walk is the last walk, or the one under way if walking is set.
	*walk
	walking bool
	merged  []uint64

	counts [Outcomes]atomic.Uint64
}

// walk is a walk of one thread. A goroutine that waits for memory may go on with it, and
// with its process, after the Walker has given up both.
type walk struct {
	root   string // Config.Root
	memory *memory
	// process is the process of the last sample; nil if its stacks are not walked. tid and sp
	// are the thread and the thread's stack pointer, now the time of the walk.
	process *process
	tid     int
	sp      uint64
	now     int64

	outcome Outcome
	// frames are the innermost first, with addresses that stand for them. ends are the
	// positions in frames after which each call of the interpreter's loop ends. cut reports
	// whether outer frames are missing.
	frames []uint64
	ends   []int
	cut    bool
	// changed reports whether the thread went on while its innermost frame was read.
	changed bool
	// outermost is the address of the outermost frame.
	outermost uint64
	// run is the method do, step the method doStep.
	run, step func()
	// frame is the frame of generated code that doStep is called for, stepName and stepOK
	// its result.
	frame    *unwind.Frame
	stepName uint64
	stepOK   bool
	// counted reports whether the stack of generated code is counted.
	counted bool
}

// lastName is the last address that stands for a frame, of all Walkers.
var lastName atomic.Uint64

// process is a process of a hot unit.
type process struct {
	pid     int
	program uint64
	// mapped is the number of mappings in which an interpreter was searched.
	mapped int
	// checked is the time at which it was looked for, used the one of the last sample,
	// retry the one from which on the search for an interpreter may begin again.
	checked, used, retry int64
	// found receives what a search has found, while one is under way.
	found chan interpreter.Layout
	// python and java are nil unless such an interpreter was found.
	python *interpreter.Python
	java   *java
	// own is its pid in its own pid namespace; 0 until that is known.
	own int
	// subject is what its walks wait for. stuck is set if its memory did not answer.
	subject deadline.Subject
	stuck   bool

	threads map[int]*thread
	codes   map[uint64]*pythonCode
	names   map[uint64]*samples.Location
	held    int64
}

// thread is a thread of a process.
type thread struct {
	// id is the thread's in the process's own pid namespace.
	id uint32
	// outermost is the address of its outermost frame, which seldom changes; 0 if unknown.
	outermost uint64
	// pointer is the thread pointer; 0 if it was not found at the time checked.
	pointer uint64
	checked int64
}

// NewWalker returns a Walker; nil without a driver.
func NewWalker(cfg Config) *Walker {
	if cfg.Driver == nil {
		return nil
	}
	if cfg.Read == nil {
		cfg.Read = readMemory
	}
	w := &Walker{cfg: cfg, processes: make(map[int]*process)}
	w.walk = newWalk(&cfg)
	return w
}

func newWalk(cfg *Config) *walk {
	w := &walk{root: cfg.Root, memory: &memory{fetch: cfg.Read}}
	w.run, w.step = w.do, w.doStep
	return w
}

// Begin is called by each goroutine that becomes the reading one, with the call that its
// waits are watched by.
func (w *Walker) Begin(call *deadline.Call) {
	w.call = call
	if w.walking { // the last one waits for the memory of a process
		p := w.process
		w.walking, w.walk = false, newWalk(&w.cfg)
		if p.python != nil {
			w.attached--
		}
		w.processes[p.pid] = &process{pid: p.pid, program: p.program, stuck: true}
	}
}

// Prompt reports whether samples have to be read at once: frames are walked that are not on
// the stack.
func (w *Walker) Prompt() bool { return w != nil && w.attached > 0 }

// Wait returns the longest time that samples may wait to be read.
func (w *Walker) Wait() time.Duration {
	switch {
	case w == nil:
		return math.MaxInt64
	case w.searches.Load() > 0:
		return searchWait
	}
	return 2 * hotInterval
}

// Count returns the number of walks with an outcome so far. It is safe for concurrent use.
func (w *Walker) Count(of Outcome) uint64 {
	if w == nil {
		return 0
	}
	return w.counts[of].Load()
}

// NextBatch forgets processes that had no samples for long.
func (w *Walker) NextBatch() {
	if w == nil {
		return
	}
	now := w.cfg.Now()
	for pid, p := range w.processes {
		if now-p.used > int64(idleTime) {
			w.detach(p)
			delete(w.processes, pid)
		}
	}
}

// Walk walks the frames of the thread of a sample, for Merge. It reports whether there are
// any. Generated and Merge are for the sample of the last Walk.
func (w *Walker) Walk(of *processes.Process, rec *perfevent.Record) bool {
	if w == nil {
		return false
	}
	w.frames, w.ends, w.cut = w.frames[:0], w.ends[:0], false
	w.now = w.cfg.Now()
	p := w.find(of)
	w.process = p
	if p == nil || p.python == nil || !rec.Sample.HasRegisters {
		return false
	}
	w.outcome = Late
	if w.now-rec.Time <= int64(maxDelay) {
		w.tid, w.sp = rec.TID, rec.Sample.Registers.SP
		w.walking = true
		w.call.Wait(&p.subject, w.run)
		w.walking = false
	}
	if w.outcome == Walked && len(w.ends) > 0 {
		return true // Merge counts it
	}
	w.counts[w.outcome].Add(1)
	return false
}

// Generated returns what finds the callers of generated code in the sample; nil if its
// process has no code that is known.
func (w *Walker) Generated(s *perfevent.Sample) unwind.Generated {
	if w == nil || w.process == nil || w.process.java == nil || !s.HasRegisters {
		return nil
	}
	w.counted = false
	w.begin(w.process)
	return w
}

// begin begins to read the memory of a process.
func (w *walk) begin(p *process) {
	if p.held > maxHeld {
		// Stacks that are interned keep their names.
		clear(p.codes)
		clear(p.names)
		if p.java != nil {
			clear(p.java.blobs)
			clear(p.java.named)
			clear(p.java.constants)
		}
		p.held = 0
	}
	w.memory.begin(p.pid)
}

// do walks the frames of the thread.
func (w *walk) do() {
	p := w.process
	w.begin(p)
	id := p.python.ThreadID
	t := p.threads[w.tid]
	if t == nil || t.pointer == 0 && w.now-t.checked > int64(checkInterval) || t.pointer != 0 && !w.isThread(t, id) {
		if len(p.threads) > maxThreads {
			clear(p.threads)
		}
		t = w.findThread(id)
		p.threads[w.tid] = t
	}
	w.outcome = Unreadable
	if t.pointer != 0 {
		w.outcome = w.walkPython(p, t)
	}
}

// name returns the address that stands for a frame, with the functions inlined in it.
func (w *walk) name(p *process, kind samples.FrameType, lines ...samples.Line) uint64 {
	p.held += int64(len(lines)) * nameBytes
	at := synthetic | lastName.Add(1)
	p.names[at] = &samples.Location{Type: kind, Resolved: true, Lines: lines}
	return at
}
