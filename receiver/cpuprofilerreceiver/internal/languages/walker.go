// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package languages finds the functions of interpreted programs in samples of hot units.
//
// An interpreter keeps the frames of its functions in its own data structures. A driver
// (package interpreter) knows the layout of these structures. A Walker reads the frames of
// a sampled thread from the memory of the process, right after the sample and while the
// thread continues. In the native stack, these frames replace the interpreter's loop.
//
// The memory of a process is untrusted, so the reads, names and frames of each walk are
// bounded. If a read of a process's memory hangs, the process is not walked again.
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
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// These are the names of the languages.
const (
	Java   = "java"
	Node   = "node"
	PHP    = "php"
	Python = "python"
)

// Names lists the languages whose functions can be shown, in alphabetical order.
func Names() []string { return []string{Java, Node, PHP, Python} }

// Config configures a Walker.
type Config struct {
	// Languages lists the names of the languages whose functions are shown.
	Languages []string
	mappedfile.Access
	Driver interpreter.Driver
	// Hot returns a function that reports whether a process belongs to a hot or warm unit
	// now.
	Hot func() func(*processes.Process) bool
	// Open opens the file of a mapping.
	Open   func(*samples.Mapping) (*os.File, error)
	Logger *zap.Logger
	// Now returns CLOCK_MONOTONIC in nanoseconds.
	Now func() int64
	// Labels contains the keys of the attributes of threads that are added to samples.
	Labels []string
	// Read reads the memory of a process and returns the number of bytes read. nil means
	// process_vm_readv.
	Read func(pid int, address uint64, b []byte) int
}

// Outcome is the result of one walk.
type Outcome int

// These are the outcomes of a walk. All outcomes except Walked
// leave the native stack unchanged.
const (
	// Walked means that the frames were added to the stack.
	Walked Outcome = iota
	// Late means that the sample was too old when it was read.
	Late
	// Torn means that the thread continued while its frames were read.
	Torn
	// Unreadable means that the frames were not found.
	Unreadable

	// Outcomes is the number of outcomes.
	Outcomes
)

// String returns the outcome as the attribute value of a metric.
func (o Outcome) String() string { return [...]string{"walked", "late", "torn", "unreadable"}[o] }

const (
	// maxDelay is the maximum age of a sample whose thread is walked. If a sample is older,
	// the frames of the thread may have changed since the sample.
	maxDelay = 10 * time.Millisecond
	// hotInterval is the interval at which Config.Hot is called.
	hotInterval = 250 * time.Millisecond
	// checkInterval is the interval at which cached code objects are checked for changes.
	checkInterval = time.Second
	// retryInterval is the time after which a failed read or search is tried again.
	retryInterval = 10 * time.Second
	// searchInterval is the minimum time between two searches for interpreters. A search
	// takes some milliseconds of CPU time.
	searchInterval = 100 * time.Millisecond
	// searchWait is the interval at which the result of a running search is polled.
	searchWait = 20 * time.Millisecond
	// idleTime is the time without samples after which a process is forgotten.
	idleTime = time.Minute
	// attachLimit is the longest wait for a file or for memory during
	// the search for an interpreter.
	attachLimit = time.Second
	// synthetic is the lowest address that represents an interpreted frame. Kernel
	// addresses may have the same values, but they are in another part of a stack.
	synthetic = 1 << 63
	// maxHeld is the maximum memory for code objects and names, in bytes. At most
	// maxWalked processes share this memory equally. If a process exceeds its share, its
	// code objects and names are forgotten.
	maxHeld   = 32 << 20
	maxWalked = 64
	// maxThreads is the maximum number of known threads of a process.
	maxThreads = 4096
	codeBytes  = 256
	nameBytes  = 320
)

// Walker walks the stacks of interpreted programs. Only the reading goroutine uses it.
type Walker struct {
	cfg       Config
	processes map[int]*process
	// hot is the result of the last call of Config.Hot. checked is the time of the call.
	hot     func(*processes.Process) bool
	checked int64
	call    *stuckread.Call
	// searchFrom is the earliest time of the next search for an interpreter.
	searchFrom int64
	// searches is the number of searches in progress.
	searches atomic.Int32
	// attached is the number of processes of Python and PHP that are walked. all is the
	// number of all processes that are walked.
	attached, all int
	// walk is the current walk if walking is true, and the last walk otherwise.
	*walk
	walking bool
	merged  []uint64

	counts [Outcomes]atomic.Uint64
	// proven counts samples with a link. unproven counts samples whose active span is not
	// certain.
	proven, unproven atomic.Uint64
}

// Links returns two numbers of samples, counted since the last call. proven is the number
// of samples with a link, and unproven is the number of samples whose active span is not
// certain. Links is safe for concurrent use.
func (w *Walker) Links() (proven, unproven uint64) {
	if w == nil {
		return 0, 0
	}
	return w.proven.Swap(0), w.unproven.Swap(0)
}

// Span returns the active span of the thread of the last Walk.
func (w *Walker) Span() Span {
	if w == nil {
		return Span{}
	}
	return w.span
}

// walk is a walk of one thread. A goroutine that waits for memory may still use the walk
// and its process after the Walker has abandoned both.
type walk struct {
	root   string // Config.Root
	memory *memory
	// process is the process of the sample. It is nil if the stacks of the
	// process are not walked. tid and sp are the sampled thread and its stack
	// pointer. now is the time of the walk.
	process *process
	tid     int
	sp      uint64
	now     int64
	// sampled is the time of the sample. span is the active span of the thread. unlinked
	// is true if the active span is not certain. labels is Config.Labels.
	sampled  int64
	span     Span
	unlinked bool
	labels   []string
	// share is the maximum memory in bytes for the code objects and names of one process.
	share int64

	outcome Outcome
	// frames holds the addresses that represent frames, the innermost first. ends holds the
	// end position in frames of each call of the interpreter's loop. cut reports whether outer
	// frames are missing.
	frames []uint64
	ends   []int
	cut    bool
	// changed reports whether the thread continued while its innermost frame was read.
	changed bool
	// outermost is the address of the outermost frame.
	outermost uint64
	// run, step and stepJS are the methods do, doStep and stepNode, stored to avoid
	// allocations.
	run, step, stepJS func()
	// frame is the argument of doStep and stepNode. stepName and stepOK are the results.
	frame    *unwind.Frame
	stepName uint64
	stepOK   bool
	// counted reports whether counts includes the current stack of generated code.
	counted bool
}

// lastName is the number in the newest address that represents a frame. All Walkers share
// lastName, so that no two of these addresses are equal.
var lastName atomic.Uint64

// process is the state of a sampled process.
type process struct {
	pid     int
	program uint64
	// mapped is the number of the process's mappings at the last search for an interpreter.
	mapped int
	// checked is the time of the last call of check. used is the time of the last sample.
	// retry is the earliest time of the next search for an interpreter.
	checked, used, retry int64
	// found receives the result of a search. It is nil if no search is running.
	found chan result
	// unknown is the logged reason why the interpreter's layout is not known.
	unknown string
	// python, java, node and php are nil if the process has no such interpreter.
	python *interpreter.Python
	java   *java
	node   *node
	php    *php
	// own is the pid in the process's own pid namespace. It is 0 until it is known.
	own int
	// subject identifies the process while a walk waits for the memory of the process.
	// stuck reports whether such a wait timed out.
	subject stuckread.Subject
	stuck   bool

	// context is the address of the TLS descriptor for the variable in which threads
	// publish their context. It is 0 if there is no such variable. contextKnown reports
	// whether the search for the descriptor has ended. published is nil if threads do not
	// publish their context.
	context      uint64
	contextKnown bool
	published    *processes.ThreadContext

	threads map[int]*thread
	codes   map[uint64]*pythonCode
	names   map[uint64]*samples.Location
	held    int64
}

// thread is a thread of a process.
type thread struct {
	// id is the thread's id in the process's own pid namespace.
	id uint32
	// outermost is the address of the outermost frame, which seldom changes. It
	// is 0 if the address is unknown.
	outermost uint64
	// pointer is the thread pointer. It is 0 if the thread pointer was not found.
	// checked is the time of the search.
	pointer uint64
	checked int64
	// link is the active span at the last read. linked is the time of the last read.
	// It is 0 if the last read failed.
	link   samples.Link
	linked int64
}

// NewWalker returns a Walker, or nil if cfg has no driver or no language.
func NewWalker(cfg Config) *Walker {
	if cfg.Driver == nil || len(cfg.Languages) == 0 {
		return nil
	}
	if cfg.Read == nil {
		cfg.Read = ReadMemory
	}
	w := &Walker{cfg: cfg, processes: make(map[int]*process)}
	w.walk = newWalk(&cfg)
	return w
}

func newWalk(cfg *Config) *walk {
	w := &walk{root: cfg.Root, labels: cfg.Labels, memory: &memory{fetch: cfg.Read}}
	w.run, w.step, w.stepJS = w.do, w.doStep, w.stepNode
	return w
}

// Begin is called by each goroutine that becomes the reading goroutine. call limits the
// time for which the goroutine waits for the memory of a process.
func (w *Walker) Begin(call *stuckread.Call) {
	if w == nil {
		return
	}
	w.call = call
	if w.walking { // the previous goroutine still waits for the memory of a process
		p := w.process
		w.walking, w.walk = false, newWalk(&w.cfg)
		w.release(p)
		w.processes[p.pid] = &process{pid: p.pid, program: p.program, stuck: true}
	}
}

// Prompt reports whether samples have to be read at once. This is necessary for frames
// outside the native stack, which change while the thread continues.
func (w *Walker) Prompt() bool { return w != nil && w.attached > 0 }

// Wait returns the maximum time for which samples may stay unread.
func (w *Walker) Wait() time.Duration {
	switch {
	case w == nil:
		return math.MaxInt64
	case w.searches.Load() > 0:
		return searchWait
	}
	return 2 * hotInterval
}

// Count returns the number of walks with an outcome since the last call for this outcome.
// It is safe for concurrent use.
func (w *Walker) Count(of Outcome) uint64 {
	if w == nil {
		return 0
	}
	return w.counts[of].Swap(0)
}

// NextBatch forgets processes without recent samples.
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

// Enter selects the process of the following calls. It reports whether Walk must read
// interpreted frames, because the process keeps such frames outside its native stack.
func (w *Walker) Enter(of *processes.Process) bool {
	if w == nil {
		return false
	}
	w.now, w.span, w.unlinked = w.cfg.Now(), Span{}, false
	w.process, w.share = w.find(of), w.perProcess()
	return w.process != nil && w.process.offStack()
}

// Walk walks the frames of the sampled thread. It reports whether Merge has frames to
// merge. Generated and Merge apply to the sample of the last Walk.
func (w *Walker) Walk(of *processes.Process, rec *perfevent.Record) bool {
	if !w.Enter(of) || !rec.Sample.HasRegisters {
		return false
	}
	p := w.process
	w.frames, w.ends, w.cut = w.frames[:0], w.ends[:0], false
	w.outcome = Late
	if w.now-rec.Time <= int64(maxDelay) {
		w.tid, w.sp, w.sampled = rec.TID, rec.Sample.Registers.SP, rec.Time
		w.walking = true
		w.call.Wait(&p.subject, w.run)
		w.walking = false
		if w.unlinked {
			w.unproven.Add(1)
		} else if w.span.Valid() {
			w.proven.Add(1)
		}
	}
	if w.outcome == Walked && len(w.ends) > 0 {
		return true // Merge counts the walk
	}
	w.counts[w.outcome].Add(1)
	return false
}

// Generated returns the unwinder of generated code for the sample. It returns nil if the
// process runs neither a known JVM nor Node.js.
func (w *Walker) Generated(s *perfevent.Sample) unwind.Generated {
	if w == nil || w.process == nil || w.process.java == nil && w.process.node == nil || !s.HasRegisters {
		return nil
	}
	w.counted = false
	w.begin(w.process)
	return w
}

// begin starts reading the memory of a process.
func (w *walk) begin(p *process) {
	if p.held > w.share || p.node != nil && w.now-p.node.since > int64(nodeNames) {
		p.forget(w.now)
	}
	w.memory.begin(p.pid)
}

// forget releases the memory for code objects and names. Interned stacks keep the locations
// that they refer to.
func (p *process) forget(now int64) {
	p.held = 0
	clear(p.codes)
	clear(p.names)
	if p.php != nil {
		clear(p.php.named)
	}
	if p.java != nil {
		clear(p.java.blobs)
		clear(p.java.named)
		clear(p.java.constants)
	}
	if p.node != nil {
		clear(p.node.named)
		clear(p.node.codes)
		p.node.since, p.held = now, nodeHeld
		p.node.Forget()
	}
}

// do walks the frames of a thread that are not on the native stack.
func (w *walk) do() {
	p := w.process
	w.begin(p)
	if p.php != nil {
		w.outcome = w.walkPHP(p)
		return
	}
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
		if p.context != 0 {
			w.readLink(p, t)
		}
		w.outcome = w.walkPython(p, t)
	}
}

// name returns a new address that represents a frame. lines contains the function of the
// frame and the functions inlined into this function.
func (w *walk) name(p *process, kind samples.FrameType, lines ...samples.Line) uint64 {
	p.held += int64(len(lines)) * nameBytes
	at := synthetic | lastName.Add(1)
	p.names[at] = &samples.Location{Type: kind, Resolved: true, Lines: lines}
	return at
}
