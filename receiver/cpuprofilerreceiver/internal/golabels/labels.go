// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package golabels finds the labels (runtime/pprof) of the goroutines in samples of hot
// units.
//
// A sample contains the address of its goroutine, but the goroutine continues while
// its labels are read. Therefore probes report when a goroutine changes its labels and
// when it ends. A sample is held until all reports up to the read are known. The
// reports then prove which labels the goroutine had when it was sampled. Samples
// without a proof get no labels.
//
// The memory of a process is untrusted, so all reads are bounded.
package golabels

import (
	"cmp"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/languages"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// Config configures Labels.
type Config struct {
	mappedfile.Access
	// Keys are the keys of the labels that become attributes.
	Keys []string
	// Hot returns a function that reports whether a process belongs to a hot or warm unit
	// now.
	Hot    func() func(*processes.Process) bool
	Logger *zap.Logger
	// Now returns CLOCK_MONOTONIC in nanoseconds.
	Now func() int64
	// MaxHits is the maximum number of probe hits per second in one program. A hit costs
	// the program about 3 µs. 0 means 10,000 per CPU of the host.
	MaxHits int
	// Read reads the memory of a process and returns the number of bytes read. nil means
	// process_vm_readv.
	Read func(pid int, address uint64, b []byte) int
}

const (
	// slack is the maximum time in nanoseconds from a probe hit until its record is in a
	// ring.
	slack = int64(time.Millisecond)
	// settleWait is the maximum time between two reads while samples are held or a search
	// for a program is in progress.
	settleWait = 5 * time.Millisecond
	// maxHeld is the maximum number of held samples. Further samples get no labels.
	maxHeld = 4096
)

// Counter is a counter of Labels.
type Counter int

const (
	// Proven counts samples whose labels are proven, including samples that are proven to
	// have no labels.
	Proven Counter = iota
	// Unproven counts other samples of programs with probes.
	Unproven
	// Cut counts samples with a truncated label value.
	Cut
	// Frequent counts programs whose probes were removed because of too many hits.
	Frequent
	// Counters is the number of counters.
	Counters
)

// Labels finds the labels of goroutines. Only the reading goroutine uses it. The methods of
// a nil *Labels have no effect.
type Labels struct {
	cfg       Config
	processes map[int]*process
	programs  map[mappedfile.ID]*program
	// probes maps each probe to its program.
	probes  map[*perfevent.Attachment]*program
	session *perfevent.Session
	history history
	// hot is the result of the last call of Config.Hot. checked is the time of the call.
	hot     func(*processes.Process) bool
	checked int64
	// found receives the result of a search. It is nil if no search is in progress.
	found chan found
	call  *stuckread.Call
	// read is the last read. reading reports whether this read is still in progress.
	read    *read
	reading bool
	held    []held
	counts  [Counters]atomic.Uint64
}

// read is one read of the labels of a goroutine. A goroutine that waits for memory may
// still use a read that Labels has abandoned.
type read struct {
	memory
	now     func() int64
	process *process
	sp      uint64
	offset  int
	buffer  [512]byte
	// run is the method do, stored to avoid allocations.
	run func()

	// known reports whether the goroutine has set labels before the sample. ok reports
	// whether the goroutine was found and could be read.
	known, ok bool
	result
}

// result contains the labels that a read has found.
type result struct {
	of goroutine
	// since is the value of process.since for the read. at is the time after the read.
	since, at int64
	// current are the current labels. set are the labels that the goroutine set last before
	// the sample.
	current, set labels
}

// held is a sample that waits for a proof.
type held struct {
	key  samples.Key
	time int64
	result
}

// New returns Labels.
func New(cfg Config) *Labels {
	if cfg.Read == nil {
		cfg.Read = languages.ReadMemory
	}
	cfg.MaxHits = cmp.Or(cfg.MaxHits, 10_000*runtime.NumCPU())
	l := &Labels{
		cfg: cfg, processes: make(map[int]*process), history: history{of: make(map[goroutine][]change)},
	}
	l.Begin(nil)
	l.read = l.newRead()
	return l
}

func (l *Labels) newRead() *read {
	r := &read{
		memory: memory{fetch: l.cfg.Read, keys: append([]string{samples.LabelTraceID, samples.LabelSpanID}, l.cfg.Keys...)},
		now:    l.cfg.Now,
	}
	r.run = r.do
	return r
}

// Take is called by each goroutine that becomes the reading goroutine. call limits the time
// for which the goroutine waits for the memory of a process.
func (l *Labels) Take(call *stuckread.Call) {
	if l == nil {
		return
	}
	l.call = call
	if l.reading { // the previous goroutine still waits for the memory of a process
		l.reading = false
		p := l.read.process
		l.leave(p)
		l.processes[p.pid] = &process{pid: p.pid, number: p.number, stuck: true}
		l.read = l.newRead()
	}
}

// Begin is called with each new session. The probes of the previous session are removed. If
// session is nil, no probes are placed.
func (l *Labels) Begin(session *perfevent.Session) {
	if l == nil {
		return
	}
	l.session, l.found = session, nil
	clear(l.processes)
	l.programs, l.probes = make(map[mappedfile.ID]*program), make(map[*perfevent.Attachment]*program)
	l.Interrupted()
}

// Interrupted is called when some hits up to now may be missing.
func (l *Labels) Interrupted() {
	if l != nil {
		l.history.forget(l.cfg.Now())
	}
}

// Prompt reports whether samples have to be read at once, because labels change.
func (l *Labels) Prompt() bool { return l != nil && len(l.probes) > 0 }

// Wait returns the longest time that samples may wait to be read.
func (l *Labels) Wait() time.Duration {
	switch {
	case l == nil:
		return time.Hour
	case len(l.held) > 0 || l.found != nil:
		return settleWait
	}
	return 2 * time.Duration(hotInterval)
}

// Count returns the value of a counter, and sets the counter to 0. It is safe for
// concurrent use.
func (l *Labels) Count(of Counter) uint64 {
	if l == nil {
		return 0
	}
	return l.counts[of].Swap(0)
}

// Hit reports whether a record is a hit of a probe. It remembers the change of a
// goroutine's labels that caused the hit.
func (l *Labels) Hit(rec *perfevent.Record) bool {
	// Hits have a period of 1, but samples of running threads have periods of at least 10
	// µs. The attachment cannot identify hits, because a hit has no attachment any more
	// after its probe was removed.
	if rec.Type != perfevent.TypeSample || rec.Sample.Period != 1 {
		return false
	}
	if l == nil || !rec.Sample.HasRegisters {
		return true
	}
	if to := l.probes[rec.Attachment]; to != nil {
		l.count(to, rec.Time)
		if p := l.processes[rec.PID]; p != nil && p.program == to {
			of, c := goroutine{rec.PID, rec.Sample.Registers.G}, change{time: rec.Time}
			switch rec.Attachment {
			case to.probes[setLabels]:
				c.labels = rec.Sample.Registers.First
			case to.probes[endGoroutine]:
				c.ended = true
			case to.probes[freeMemory]:
				of.g = 0
			}
			l.history.add(of, c)
		}
	}
	return true
}

// Read reads the labels of a sample's goroutine. Call it as soon as the sample is read,
// because the goroutine continues. If Read returns true, pass the sample to Hold.
func (l *Labels) Read(of *processes.Process, rec *perfevent.Record) bool {
	if l == nil || l.session == nil || !rec.Sample.HasRegisters {
		return false
	}
	now := l.cfg.Now()
	p := l.find(of, now)
	if p == nil {
		return false
	}
	r := l.read
	r.process, r.pid, r.sp, r.offset, r.ok = p, p.pid, rec.Sample.Registers.SP, p.program.offset, false
	r.of, r.since = goroutine{p.pid, rec.Sample.Registers.G}, p.since
	r.set.address, r.known = l.history.last(r.of, p.since, rec.Time)
	if rec.Time > p.since && len(l.held) < maxHeld {
		l.reading = true
		l.call.Wait(&p.subject, r.run)
		l.reading = false
	}
	if !r.ok {
		l.counts[Unproven].Add(1)
	}
	return r.ok
}

// do reads the labels of a goroutine.
func (r *read) do() {
	b := r.buffer[:r.offset+8]
	if !r.fill(r.of.g, b) {
		return
	}
	le := binary.LittleEndian
	// While C code runs, the register may point to anything. A valid runtime.g begins with
	// the bounds of a stack that contains the stack pointer.
	if !r.known && (r.sp < le.Uint64(b) || r.sp >= le.Uint64(b[8:])) {
		return
	}
	r.current, r.set = r.labels(le.Uint64(b[r.offset:])), r.labels(r.set.address)
	r.ok, r.at = true, r.now()
}

// Hold holds the sample of the last Read until Settle.
func (l *Labels) Hold(k samples.Key, time int64) {
	l.held = append(l.held, held{k, time, l.read.result})
}

// Oldest returns the time of the oldest held sample. If no held sample is older than the
// given time, Oldest returns the given time.
func (l *Labels) Oldest(later int64) int64 {
	if l != nil {
		for i := range l.held {
			later = min(later, l.held[i].time)
		}
	}
	return later
}

// Settle emits the held samples for which all hits are known. All hits before readUpTo
// must have been read.
func (l *Labels) Settle(readUpTo int64, emit func(k samples.Key, time int64)) {
	if l == nil {
		return
	}
	l.receive()
	n := 0
	for ; n < len(l.held) && l.held[n].at+slack <= readUpTo; n++ {
		h := &l.held[n]
		l.prove(h, readUpTo)
		emit(h.key, h.time)
	}
	l.held = slices.Delete(l.held, 0, n)
}

// End emits all held samples. It is called at the end of a session.
func (l *Labels) End(emit func(k samples.Key, time int64)) {
	l.Begin(nil)
	l.Settle(math.MaxInt64, emit)
}

// prove adds the labels to a held sample if they are proven.
func (l *Labels) prove(h *held, readUpTo int64) {
	at, ok := l.history.at(h.of, h.since, h.time, h.at, h.current.address)
	of := &h.current
	if at != of.address {
		of = &h.set
	}
	if !ok || !of.valid || at != of.address || readUpTo-h.time > horizon {
		l.counts[Unproven].Add(1)
		return
	}
	l.counts[Proven].Add(1)
	if of.cut {
		l.counts[Cut].Add(1)
	}
	h.key.Link, h.key.Labels = of.link, of.text
}
