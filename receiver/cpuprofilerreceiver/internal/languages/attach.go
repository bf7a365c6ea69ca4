// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"slices"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// find returns the walker's entry for a process. It returns nil if the walker does not walk
// the stacks of the process. If the process has become hot, find starts a search for the
// interpreter.
func (w *Walker) find(of *processes.Process) *process {
	p := w.processes[of.PID]
	if p == nil || p.program != of.Program() {
		if p != nil {
			w.detach(p)
		}
		p = &process{pid: of.PID, program: of.Program()}
		p.subject.Key, p.subject.Name = stuckread.Key{PID: of.PID, Cgroup: of.Cgroup}, "the memory of an interpreted program"
		w.processes[of.PID] = p
	}
	p.used = w.now
	if w.now-p.checked > int64(hotInterval) || p.checked == 0 || p.found != nil {
		w.check(p, of)
	}
	if !p.attached() {
		return nil
	}
	return p
}

// check attaches to a process or detaches from it, depending on whether the process is hot.
// If needed, it starts a search for the interpreter.
func (w *Walker) check(p *process, of *processes.Process) {
	p.checked = w.now
	if w.hot == nil || w.now-w.checked > int64(hotInterval) {
		w.hot, w.checked = w.cfg.Hot(), w.now
	}
	hot := w.hot(of)
	select {
	case r := <-p.found:
		p.found = nil
		if r.err != nil && r.err.Error() != p.unknown {
			p.unknown = r.err.Error()
			message := "stacks keep the interpreter's own functions: its layout is not known"
			if r.spans {
				message = "samples have no link to the span that their thread publishes: its variable was not found"
			}
			w.cfg.Logger.Info(message, zap.Int("pid", p.pid), zap.Error(r.err))
		}
		w.attach(p, r.layout)
		p.context, p.contextKnown = r.context, r.spans
	default:
	}
	if p.node != nil {
		p.node.findBuiltins(of)
	}
	p.published = of.ThreadContext()
	switch {
	case !hot:
		w.detach(p)
		p.mapped = 0
	case p.stuck || p.found != nil:
	case p.python != nil && !p.contextKnown && of.ThreadContext() != nil:
		w.search(p, of, true)
	case p.attached() || w.now < p.retry:
	case p.mapped != len(of.Mapped()) || p.retry != 0:
		p.mapped, p.retry = len(of.Mapped()), 0
		w.search(p, of, false)
	}
}

// shows reports whether the functions of a language are shown.
func (w *Walker) shows(language string) bool { return slices.Contains(w.cfg.Languages, language) }

// attach starts walking the stacks of a process if its language is enabled.
func (w *Walker) attach(p *process, l interpreter.Layout) {
	if w.all >= maxWalked {
		return
	}
	switch {
	case l.Python != nil && w.shows(Python):
		p.python = l.Python
		p.threads = make(map[int]*thread)
		p.codes = make(map[uint64]*pythonCode)
		w.attached++
	case l.HotSpot != nil && w.shows(Java):
		p.java = &java{
			HotSpot: l.HotSpot, blobs: make(map[uint64]*blob),
			named: make(map[interpreter.Code]uint64), constants: make(map[uint64]uint64),
		}
	case l.PHP != nil && w.shows(PHP):
		p.php = &php{PHP: l.PHP, named: make(map[phpFrame]uint64)}
		w.attached++
	case l.V8 != nil && w.shows(Node):
		p.node = &node{V8: l.V8, codes: make(map[uint64]*v8Code), named: make(map[interpreter.Code]uint64), since: w.now}
		p.held = nodeHeld
	default:
		return
	}
	p.names = make(map[uint64]*samples.Location)
	w.all++
	for _, other := range w.processes {
		if other.held > w.perProcess() {
			other.forget(w.now)
		}
	}
}

func (p *process) attached() bool { return p.offStack() || p.java != nil || p.node != nil }

// offStack reports whether the frames of a process are stored outside the native stack.
func (p *process) offStack() bool { return p.python != nil || p.php != nil }

// perProcess returns the maximum memory in bytes for the code
// objects and names of one process.
func (w *Walker) perProcess() int64 { return maxHeld / int64(max(1, w.all)) }

// detach stops walking the stacks of a process.
func (w *Walker) detach(p *process) {
	w.release(p)
	p.python, p.java, p.node, p.php, p.threads, p.codes, p.names, p.held = nil, nil, nil, nil, nil, nil, nil, 0
	p.context, p.contextKnown = 0, false
}

// release stops counting a process as walked.
func (w *Walker) release(p *process) {
	if p.offStack() {
		w.attached--
	}
	if p.attached() {
		w.all--
	}
}

// search starts a goroutine that searches a process for its interpreter. If spans is
// true, the goroutine instead searches for the variable in which the threads of the
// process publish their spans.
func (w *Walker) search(p *process, of *processes.Process, spans bool) {
	mapped := of.Mapped()
	if !slices.ContainsFunc(mapped, func(m *samples.Mapping) bool { return w.cfg.Driver.Knows(m.Path) }) {
		return
	}
	if w.now < w.searchFrom {
		p.retry = w.now // search at the next check
		return
	}
	w.searchFrom = w.now + int64(searchInterval)
	to := interpreter.Process{PID: p.pid, Memory: remote{p.pid}}
	for _, m := range mapped {
		to.Mappings = append(to.Mappings, interpreter.Mapping{Start: m.Start, Limit: m.Limit, FileOffset: m.FileOffset, Path: m.Path})
	}
	found := make(chan result, 2) // a late search may send a second result, which is not received
	w.searches.Add(1)
	p.found, p.retry = found, w.now+int64(retryInterval)
	cfg, pid, key := w.cfg, p.pid, p.subject.Key
	go func() {
		r := result{spans: spans}
		late := cfg.Runner.Run(key, "the interpreter's files and memory", attachLimit, func(c *stuckread.Call) {
			to.Open = func(i int) (interpreter.File, error) { return cfg.Open(mapped[i]) }
			c.Wait(nil, func() {
				cfg.Spend(pid, func() {
					if spans {
						r.context, r.err = cfg.Driver.ThreadContext(to)
					} else {
						r.layout, r.err = cfg.Driver.Attach(to)
					}
				})
			})
			found <- r
		})
		w.searches.Add(-1)
		if late != nil {
			found <- result{spans: spans} // the runner has logged it
		}
	}()
}

// result is the result of a search for a layout or for a thread context.
type result struct {
	// spans is the argument of search. context is process.context.
	spans   bool
	layout  interpreter.Layout
	context uint64
	err     error
}

// Interpreted returns the location of the interpreted frame that an address represents.
func (w *Walker) Interpreted(pid int, address uint64) *samples.Location {
	if p := w.processes[pid]; p != nil {
		return p.names[address]
	}
	return nil
}
