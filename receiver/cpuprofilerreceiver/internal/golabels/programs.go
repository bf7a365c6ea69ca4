// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package golabels

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"runtime"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

const (
	// hotInterval is the interval in nanoseconds at which Config.Hot is called.
	hotInterval = int64(250 * time.Millisecond)
	// retryInterval is the time in nanoseconds after which a failed search is tried again.
	retryInterval = int64(10 * time.Second)
	// idleTime is the time in nanoseconds without samples after which a process is
	// forgotten.
	idleTime = int64(time.Minute)
)

// process is the state of a sampled process.
type process struct {
	pid     int
	number  uint64 // processes.Process.Program
	subject stuckread.Subject
	// stuck is true if reading the memory of the process blocks.
	stuck bool
	// checked is the time of the last call of check. used is the time of the last sample.
	// retry is the earliest time of the next search.
	checked, used, retry int64
	// program is the program of the process. It is nil unless all hits after the time in
	// since are known.
	program *program
	since   int64
}

// program is a file in which probes are placed.
type program struct {
	layout
	id   mappedfile.ID
	path string
	// probes are the probes at layout.sites. They are nil if the labels of the program
	// cannot be read, and after too many hits.
	probes [probes]*perfevent.Attachment
	// users is the number of hot processes that run the file.
	users int
	// removed is true if the program was removed, because it had no users.
	removed bool
	// hits is the number of hits in the current second, which began at the time second.
	hits   int
	second int64
}

// found is the result of a search.
type found struct {
	process *process
	program *program
	session *perfevent.Session
	err     error
}

// find returns the process of a sample. It returns nil if the program of the process has
// no probes. If the process is hot, find starts a search for its program.
func (l *Labels) find(of *processes.Process, now int64) *process {
	p := l.processes[of.PID]
	if p == nil || p.number != of.Program() {
		if p != nil {
			l.leave(p)
		}
		p = &process{pid: of.PID, number: of.Program()}
		p.subject.Key, p.subject.Name = stuckread.Key{PID: of.PID, Cgroup: of.Cgroup}, "the memory of a Go program"
		l.processes[of.PID] = p
	}
	p.used = now
	if now-l.checked > hotInterval || l.hot == nil {
		l.hot, l.checked = l.cfg.Hot(), now
	}
	if now-p.checked > hotInterval || p.checked == 0 {
		p.checked = now
		switch {
		case !l.hot(of):
			l.leave(p)
			p.retry = 0
		case p.program == nil && !p.stuck && l.found == nil && now >= p.retry:
			p.retry = math.MaxInt64
			l.found = make(chan found, 1)
			go l.search(l.found, found{process: p, session: l.session}, maps.Clone(l.programs))
		}
	}
	if p.program == nil || p.program.probes[setLabels] == nil {
		return nil
	}
	return p
}

// search searches for the program of a process and places probes in the program. known
// contains the programs that were read before. search runs on its own goroutine,
// because a file system may not respond, and because the kernel blocks while a probe is
// placed.
func (l *Labels) search(to chan<- found, f found, known map[mappedfile.ID]*program) {
	f.program, f.err = l.place(f, known)
	to <- f
}

// place returns the program of a process with its probes. It returns a program without
// probes if the labels of the program cannot be read.
func (l *Labels) place(f found, known map[mappedfile.ID]*program) (*program, error) {
	pid := f.process.pid
	id, err := goprogram.Identify(&l.cfg.Access, f.process.subject.Key, pid)
	if p := known[id]; err != nil || p != nil {
		return p, err
	}
	file, err := goprogram.Open(&l.cfg.Access, pid, id, &query)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p := &program{id: id, path: file.Name()}
	if file.Err != nil {
		return p, file.Err
	}
	if p.layout, err = layoutOf(file.Program, runtime.GOARCH); err != nil {
		return p, err
	}
	for i, offset := range p.sites {
		if p.probes[i], err = f.session.AttachProbe(file.File, offset); err != nil {
			detach(p.probes)
			return nil, fmt.Errorf("%s: %w", p.path, err)
		}
	}
	return p, nil
}

// receive handles the result of a search, if the search has ended.
func (l *Labels) receive() {
	var f found
	select {
	case f = <-l.found:
		l.found = nil
	default:
		return
	}
	now := l.cfg.Now()
	switch err := f.err; {
	case err == nil, errors.Is(err, goprogram.ErrNotGo), errors.Is(err, errNoLabels), errors.Is(err, os.ErrProcessDone), procfs.IsGone(err):
	case errors.Is(err, os.ErrClosed), errors.Is(err, stuckread.ErrLate), errors.Is(err, stuckread.ErrRefused):
		f.process.retry = now + retryInterval // the error is logged elsewhere
	default:
		l.cfg.Logger.Info("labels of goroutines are not read", zap.Int("pid", f.process.pid), zap.Error(err))
		unsupported, right := new(perfevent.UnsupportedError), new(perfevent.RightsError)
		if (errors.As(err, &unsupported) || errors.As(err, &right)) && f.session == l.session {
			l.Begin(nil) // no probes can be placed, so the reason is logged only once
		}
	}
	if f.program == nil || f.session != l.session {
		return // nothing was found, or the end of the session has removed the probes
	}
	wanted := l.processes[f.process.pid] == f.process && !f.process.stuck
	if !wanted || f.program.removed {
		f.process.retry = now
		if f.program.users == 0 && !f.program.removed {
			l.remove(f.program)
		}
		return
	}
	if f.program.users == 0 {
		l.programs[f.program.id] = f.program
		l.follow(f.program)
	}
	f.program.users++
	f.process.program, f.process.since = f.program, now
}

// follow makes the hits of a program's probes known. A program whose labels cannot be read
// has no probes.
func (l *Labels) follow(p *program) {
	if p.probes[setLabels] == nil {
		return
	}
	for _, probe := range p.probes {
		l.probes[probe] = p
	}
	l.cfg.Logger.Debug("labels of goroutines are read", zap.String("program", p.path))
}

// leave forgets that a process runs a program with probes. It removes probes that no hot
// process uses.
func (l *Labels) leave(p *process) {
	if p.program == nil {
		return
	}
	to := p.program
	p.program = nil
	if to.users--; to.users == 0 {
		l.remove(to)
	}
}

// remove removes a program and its probes.
func (l *Labels) remove(p *program) {
	p.removed = true
	delete(l.programs, p.id)
	l.removeProbes(p)
}

func (l *Labels) removeProbes(p *program) {
	for _, probe := range p.probes {
		delete(l.probes, probe)
	}
	go detach(p.probes) // the kernel blocks this goroutine
	p.probes = [probes]*perfevent.Attachment{}
}

func detach(placed [probes]*perfevent.Attachment) {
	for _, probe := range placed {
		if probe != nil {
			_ = probe.Detach() // closing a descriptor removes its probe, even if an error is returned
		}
	}
}

// count counts a hit of a program's probes. If the program has too many hits, count
// removes the probes. New probes are placed only after all units that run the program
// have ceased to be hot.
func (l *Labels) count(p *program, time int64) {
	if time-p.second >= int64(1e9) {
		p.second, p.hits = time, 0
	}
	if p.hits++; p.hits <= l.cfg.MaxHits {
		return
	}
	l.counts[Frequent].Add(1)
	l.cfg.Logger.Warn("labels of goroutines are no longer read: they change too often",
		zap.String("program", p.path), zap.Int("changes_per_second", p.hits))
	l.removeProbes(p)
}

// NextBatch forgets processes without recent samples.
func (l *Labels) NextBatch() {
	if l == nil {
		return
	}
	now := l.cfg.Now()
	for pid, p := range l.processes {
		if now-p.used > idleTime {
			l.leave(p)
			delete(l.processes, pid)
		}
	}
}
