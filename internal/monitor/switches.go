// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

const (
	// maxProcesses bounds the census: it is begun anew when it is full.
	maxProcesses = 1 << 15
	// maxQueued bounds the processes that wait to be looked up; what is beyond
	// has its turn later.
	maxQueued = 1 << 12
)

// A census knows of every process that ran what it counts for: which unit it is
// in, and with that which tallies. It is told of forks, execs and exits.
//
// A process is looked up when it first runs; one that is forked meanwhile counts
// for what its parent does until it was looked up, and for ever if it is gone by
// then. A process may move to another cgroup without a record of that, so each is
// looked up again after it executed another program, which is when container
// runtimes and service managers have just moved it, and else in turn.
type census struct {
	sim    *simultaneity
	lookup lookup
	byPID  map[int]*process
	queue  []*process    // to be looked up
	ended  [2][]*process // since the last check, and before it
	all    []*process    // looked up in turn, those that are gone among them
	turn   int

	units     map[string][]*tally // followed, by the unit's id
	processes map[int][]followedProcess

	idle, nameless *process
	// overflows counts how often the census was full and begun anew.
	overflows uint64
}

type followedProcess struct {
	start uint64
	tally *tally
}

// lookup is what the kernel says of processes.
type lookup interface {
	// unit returns the id of the unit whose cgroup a process is in, empty for
	// none.
	unit(pid int) (string, error)
	// unitOfThread returns it for a process that unit returned none of: v1 shows
	// none for a thread that is ending, as the first one of a process may be for
	// long. The error is errEnding where nothing can be said any more.
	unitOfThread(pid, tid int) (string, error)
	// start returns when a process was started.
	start(pid int) (uint64, error)
}

var errEnding = errors.New("the process is ending")

func newCensus(sim *simultaneity, l lookup) *census {
	return &census{
		sim: sim, lookup: l, byPID: map[int]*process{},
		units: map[string][]*tally{}, processes: map[int][]followedProcess{},
		idle:     &process{known: true},
		nameless: &process{pid: -1},
	}
}

// follow begins to count a unit: its cgroup's, by its id, or with an empty id
// that of a process.
func (c *census) follow(unit string, p procfs.Process) *tally {
	t := c.sim.newTally()
	if unit != "" {
		c.units[unit] = append(c.units[unit], t)
	} else {
		c.processes[p.PID] = append(c.processes[p.PID], followedProcess{p.Start, t})
	}
	c.assignAll()
	return t
}

// unfollow ends what follow began.
func (c *census) unfollow(unit string, p procfs.Process, t *tally) {
	if unit != "" {
		left := slices.DeleteFunc(slices.Clone(c.units[unit]), func(other *tally) bool { return other == t })
		if c.units[unit] = left; len(left) == 0 {
			delete(c.units, unit)
		}
	} else {
		left := slices.DeleteFunc(c.processes[p.PID], func(other followedProcess) bool { return other.tally == t })
		if c.processes[p.PID] = left; len(left) == 0 {
			delete(c.processes, p.PID)
		}
	}
	c.assignAll()
}

// assignAll is for another set of units that are followed.
func (c *census) assignAll() {
	for _, p := range c.byPID {
		c.assign(p, p.known)
	}
}

// assign gives a process the tallies that it counts for.
func (c *census) assign(p *process, known bool) {
	var tallies []*tally
	if p.unit != "" {
		tallies = c.units[p.unit]
	}
	for _, f := range c.processes[p.pid] {
		if !p.gone && c.isStart(p.pid, f.start) {
			tallies = append(tallies[:len(tallies):len(tallies)], f.tally)
		}
	}
	c.sim.assign(p, tallies, known)
}

// isStart says whether the process that has a pid now is the one that is
// followed. One that is gone already is taken for it: nothing says otherwise.
func (c *census) isStart(pid int, start uint64) bool {
	if start == 0 {
		return true
	}
	now, err := c.lookup.start(pid)
	return err != nil || now == start
}

// seen returns the process of a pid, one of whose threads is tid.
func (c *census) seen(pid, tid int) *process {
	if p := c.byPID[pid]; p != nil {
		return p
	}
	switch {
	case pid == 0:
		return c.idle
	case pid < 0:
		return c.nameless
	}
	p := c.add(pid)
	c.lookUp(p, tid)
	return p
}

func (c *census) add(pid int) *process {
	if len(c.byPID) >= maxProcesses {
		c.overflows++
		c.clear()
	}
	if len(c.all) > 2*len(c.byPID)+1024 { // processes come and go faster than their turn
		c.all = slices.DeleteFunc(c.all, func(p *process) bool { return p.gone })
	}
	p := &process{pid: pid}
	c.byPID[pid] = p
	c.all = append(c.all, p)
	return p
}

// clear forgets every process. What runs stays what it is until it has left its
// CPU.
func (c *census) clear() {
	for _, p := range c.all {
		p.gone = true
	}
	clear(c.byPID)
	c.all, c.queue, c.turn = nil, nil, 0
	c.ended = [2][]*process{}
}

// forked is told that a process was started by another.
func (c *census) forked(pid, parent int) {
	if pid <= 0 {
		return
	}
	if p := c.byPID[pid]; p != nil { // that had the pid before
		c.drop(p)
	}
	if from := c.byPID[parent]; from != nil && from.known {
		p := c.add(pid)
		p.unit = from.unit
		c.assign(p, true)
		c.enqueue(p)
	}
}

// executed is told that a process became another program.
func (c *census) executed(pid int) {
	if p := c.byPID[pid]; p != nil {
		c.enqueue(p)
	}
}

// exited is told that a process is ending, or that at least its first thread is:
// then it comes up again. It is kept for a moment, since its last steps are still
// to come, and nothing could be found out about it any more.
func (c *census) exited(pid int) {
	if p := c.byPID[pid]; p != nil {
		c.ended[0] = append(c.ended[0], p)
	}
}

func (c *census) drop(p *process) {
	p.gone = true
	if c.byPID[p.pid] == p {
		delete(c.byPID, p.pid)
	}
}

func (c *census) enqueue(p *process) {
	if !p.queued && len(c.queue) < maxQueued {
		p.queued = true
		c.queue = append(c.queue, p)
	}
}

// check looks up at most so many processes that wait for it.
func (c *census) check(queued int) {
	for _, p := range c.ended[1] {
		c.drop(p)
	}
	clear(c.ended[1])
	c.ended[0], c.ended[1] = c.ended[1][:0], c.ended[0]
	n := min(queued, len(c.queue))
	for _, p := range c.queue[:n] {
		p.queued = false
		if !p.gone {
			c.lookUp(p, p.pid)
		}
	}
	c.queue = c.queue[:copy(c.queue, c.queue[n:])]
}

// checkInTurn looks up at most so many of all processes, and at most a tenth.
func (c *census) checkInTurn(most int) {
	for range min(most, (len(c.all)+9)/10) {
		if c.turn >= len(c.all) {
			c.turn = 0
		}
		p := c.all[c.turn]
		if !p.gone && c.lookUp(p, p.pid) {
			c.drop(p) // and that was not told
		}
		if p.gone {
			last := len(c.all) - 1
			c.all[c.turn] = c.all[last]
			c.all[last] = nil
			if c.all = c.all[:last]; last == 0 {
				return
			}
			continue
		}
		c.turn++
	}
}

// lookUp finds a process's unit. One of which nothing can be said any more keeps
// what it has: what is told of it is told late. It returns whether it has ended.
func (c *census) lookUp(p *process, tid int) (ended bool) {
	unit, err := c.lookup.unit(p.pid)
	if err == nil && unit == "" && (p.unit != "" || !p.known) {
		unit, err = c.lookup.unitOfThread(p.pid, tid)
	}
	switch {
	case err == nil:
		p.unit = unit
		c.assign(p, true)
	case !p.known:
		c.assign(p, false)
	}
	return err != nil && procfs.IsGone(err)
}

// procLookup asks a procfs.
type procLookup struct{ source *Source }

func (l procLookup) unit(pid int) (string, error) {
	paths, err := l.source.tree.PathsOf(pid)
	if err != nil {
		return "", err
	}
	return strings.Clone(l.source.tree.GroupOf(paths).ID), nil // not the whole file that it is a part of
}

func (l procLookup) unitOfThread(pid, tid int) (string, error) {
	ending, err := l.ending(pid, pid)
	if err != nil || !ending {
		return "", err
	}
	if ending, err = l.ending(pid, tid); err != nil || ending {
		return "", errors.Join(err, errEnding)
	}
	paths, err := l.source.tree.PathsOfThread(pid, tid)
	if err != nil {
		return "", err
	}
	return strings.Clone(l.source.tree.GroupOf(paths).ID), nil
}

func (l procLookup) ending(pid, tid int) (bool, error) {
	stat, err := l.source.procfs.ThreadStat(pid, tid)
	return stat.Ending, err
}

func (l procLookup) start(pid int) (uint64, error) {
	return l.source.startOf(pid)
}
