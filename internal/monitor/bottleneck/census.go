// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package bottleneck

import (
	"errors"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

const (
	// maxProcesses is the maximum number of processes in the census. A
	// full census starts over.
	maxProcesses = 1 << 15
	// maxQueued is the maximum number of processes that wait for a lookup. All further
	// processes are only looked up in turn.
	maxQueued = 1 << 12
)

// census records the unit and the tallies of every process that ran. It is
// updated by forks, execs and exits.
//
// A process is looked up when it first runs. A forked process counts for its
// parent's unit until the lookup. If the process ends before the lookup, it counts
// for its parent's unit until its end. A process may move to another cgroup without
// a record, so all processes are looked up again in turn. A process is also looked
// up after an exec, because container runtimes and service managers often move a
// process just before its exec.
type census struct {
	sim    *simultaneity
	lookup lookup
	byPID  map[int]*process
	queue  []*process    // wait for a lookup
	ended  [2][]*process // ended since the last check, and before it
	all    []*process    // looked up in turn; some are gone
	turn   int

	units     map[string][]*tally // tallies of followed cgroups, by unit id
	processes map[int][]followedProcess

	idle, nameless *process
	// overflows is the number of times that the census was full and started over.
	overflows uint64
}

type followedProcess struct {
	start uint64
	tally *tally
}

// lookup reads the cgroup and the start of processes.
type lookup interface {
	// unit returns the id of the unit of a process's cgroup. If the process
	// has no unit, the id is empty.
	unit(pid int) (string, error)
	// unitOfThread returns the unit of one of the process's threads. It is called for a
	// process without a unit. In cgroup v1, an ending thread has no visible cgroup, and
	// the first thread of a process may be ending for a long time. If the given thread is
	// also ending, the error is errEnding.
	unitOfThread(pid, tid int) (string, error)
	// start returns the start time of a process, in clock ticks since boot.
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

// follow starts a tally of a unit. The unit is a cgroup with the given id. If the id is
// empty, the unit is the process p.
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

// unfollow undoes follow.
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

// assignAll updates all processes after the set of followed units changed.
func (c *census) assignAll() {
	for _, p := range c.byPID {
		c.assign(p, p.known)
	}
}

// assign sets the tallies to which a process contributes.
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

// isStart reports whether process pid started at the time start. It also returns true if
// start is 0 or if the start time cannot be read, for example because the process has ended.
func (c *census) isStart(pid int, start uint64) bool {
	if start == 0 {
		return true
	}
	now, err := c.lookup.start(pid)
	return err != nil || now == start
}

// seen returns the process with the given pid, and adds the process if it is new. tid is
// the id of one of the process's threads.
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
	if len(c.all) > 2*len(c.byPID)+1024 { // processes end faster than their turn comes
		c.all = slices.DeleteFunc(c.all, func(p *process) bool { return p.gone })
	}
	p := &process{pid: pid}
	c.byPID[pid] = p
	c.all = append(c.all, p)
	return p
}

// clear forgets every process. Running processes keep their tallies until they leave their
// CPU.
func (c *census) clear() {
	for _, p := range c.all {
		p.gone = true
	}
	clear(c.byPID)
	c.all, c.queue, c.turn = nil, nil, 0
	c.ended = [2][]*process{}
}

// forked records that parent forked the process pid.
func (c *census) forked(pid, parent int) {
	if pid <= 0 {
		return
	}
	if p := c.byPID[pid]; p != nil { // an earlier process had the pid
		c.drop(p)
	}
	if from := c.byPID[parent]; from != nil && from.known {
		p := c.add(pid)
		p.unit = from.unit
		c.assign(p, true)
		c.enqueue(p)
	}
}

// executed records that a process executed another program.
func (c *census) executed(pid int) {
	if p := c.byPID[pid]; p != nil {
		c.enqueue(p)
	}
}

// exited records that a process, or only its first thread, is ending. The process still
// runs for a moment, but can no longer be looked up. It is therefore kept until the
// second check from now. If other threads still run, the process is added again.
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

// check looks up at most the given number of queued processes, and drops ended processes.
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

// checkInTurn looks up the processes that are next in the list of all processes. It looks
// up at most the given number of processes, and at most a tenth of the list.
func (c *census) checkInTurn(most int) {
	for range min(most, (len(c.all)+9)/10) {
		if c.turn >= len(c.all) {
			c.turn = 0
		}
		p := c.all[c.turn]
		if !p.gone && c.lookUp(p, p.pid) {
			c.drop(p) // its exit was not recorded
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

// lookUp finds a process's unit and reports whether the process has ended. If the unit can
// no longer be found, the process keeps its previous unit, because more records of the
// process may follow.
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

// procLookup looks processes up in a procfs.
type procLookup struct {
	tree   *cgroup.Tree
	procfs procfs.FS
}

func (l procLookup) unit(pid int) (string, error) { return l.unitAt(l.tree.PathsOf(pid)) }

func (l procLookup) unitOfThread(pid, tid int) (string, error) {
	ending, err := l.ending(pid, pid)
	if err != nil || !ending {
		return "", err
	}
	if ending, err = l.ending(pid, tid); err != nil || ending {
		return "", errors.Join(err, errEnding)
	}
	return l.unitAt(l.tree.PathsOfThread(pid, tid))
}

// unitAt returns the id of the unit with the given paths.
func (l procLookup) unitAt(paths cgroup.Paths, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return strings.Clone(l.tree.GroupOf(paths).ID), nil // without Clone the id keeps the whole file in memory
}

func (l procLookup) ending(pid, tid int) (bool, error) {
	stat, err := l.procfs.ThreadStat(pid, tid)
	return stat.Ending, err
}

func (l procLookup) start(pid int) (uint64, error) {
	p, err := l.procfs.Process(pid)
	return p.Start, err
}
