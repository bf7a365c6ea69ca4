// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import "slices"

// A simultaneity adds up, for each of a number of tallies, the time at k running
// threads for each k, from what is told of every CPU of the host: what runs on it
// from some moment on, or that this is not known. Σ k·t(k) is a tally's CPU time,
// and the sum of t(k) over k of 1 and more the time with at least one thread on a
// CPU.
//
// While it is not known of one CPU what runs there, nothing is known of any
// tally: that time is left out of all of them.
//
// Times are nanoseconds of one clock, and come in order. It does no I/O.
type simultaneity struct {
	cpus []*process // what runs on each; nil: not known
	now  int64      // all that happened before is in
	// known is how long nothing was unknown; tallies measure by it, so that a gap
	// costs nothing to leave out.
	known   int64
	unknown int // CPUs of which it is not known what runs on them, or as what

	// late counts what came later than something that happened after it, and
	// surprises what left a CPU without having been there. Both are 0 unless
	// records come in out of order or are missing without being said to be.
	late, surprises uint64
}

// A process is what runs on a CPU. Threads of one are not told apart.
type process struct {
	pid     int
	tallies []*tally // what its running threads count for
	known   bool     // whether tallies are found
	unit    string   // id of its cgroup's unit; empty: none
	gone    bool     // it was dropped from the census
	queued  bool     // it is to be looked up
}

// A tally is the time of one unit by how many of its threads ran.
type tally struct {
	at    []int64 // by k
	k     int
	since int64 // of simultaneity.known, when k last changed
}

// newSimultaneity knows of nothing at first.
func newSimultaneity(cpus int) *simultaneity {
	return &simultaneity{cpus: make([]*process, cpus), unknown: cpus}
}

// reset is for CPUs that are followed anew, and another number of them. Tallies
// stay, with nothing running.
func (s *simultaneity) reset(cpus int, now int64) {
	for cpu := range s.cpus {
		s.lose(cpu, now)
	}
	s.cpus = make([]*process, cpus)
	s.unknown = cpus
}

// advance is told that nothing else happened before t.
func (s *simultaneity) advance(t int64) {
	if t <= s.now {
		return
	}
	if s.unknown == 0 {
		s.known += t - s.now
	}
	s.now = t
}

// at advances to when something happened. What is late counts from now on, since
// what it happened before is in.
func (s *simultaneity) at(t int64) {
	if t < s.now {
		s.late++
		return
	}
	s.advance(t)
}

// runs is told that a process is on a CPU from t on. before is the pid of what
// left it, for an observation that all is seen: 0 for the idle task, below 0
// where that is not known.
func (s *simultaneity) runs(cpu int, p *process, t int64, before int) {
	s.at(t)
	last := s.cpus[cpu]
	if last == p {
		return
	}
	if last != nil {
		if before >= 0 && last.pid >= 0 && last.pid != before {
			s.surprises++
		}
		s.leave(last)
	}
	if last == nil || !last.known {
		s.unknown--
	}
	s.cpus[cpu] = p
	s.enter(p)
	if !p.known {
		s.unknown++
	}
}

// lose is told that from t on it is not known what runs on a CPU.
func (s *simultaneity) lose(cpu int, t int64) {
	s.at(t)
	last := s.cpus[cpu]
	if last == nil {
		return
	}
	s.leave(last)
	if last.known {
		s.unknown++
	}
	s.cpus[cpu] = nil
}

// assign makes a process count for other tallies from now on; with known false
// it is not known for which.
func (s *simultaneity) assign(p *process, tallies []*tally, known bool) {
	if p.known == known && slices.Equal(p.tallies, tallies) {
		return
	}
	running := 0
	for _, on := range s.cpus {
		if on == p {
			running++
			s.leave(p)
		}
	}
	if p.known != known {
		if known {
			s.unknown -= running
		} else {
			s.unknown += running
		}
	}
	p.tallies, p.known = tallies, known
	for range running {
		s.enter(p)
	}
}

func (s *simultaneity) enter(p *process) {
	for _, t := range p.tallies {
		s.settle(t)
		t.k++
	}
}

func (s *simultaneity) leave(p *process) {
	for _, t := range p.tallies {
		s.settle(t)
		t.k--
	}
}

// settle brings a tally up to now.
func (s *simultaneity) settle(t *tally) {
	for len(t.at) <= len(s.cpus) {
		t.at = append(t.at, 0)
	}
	t.at[t.k] += s.known - t.since
	t.since = s.known
}

// newTally begins one at now, with nothing running for it.
func (s *simultaneity) newTally() *tally {
	return &tally{at: make([]int64, len(s.cpus)+1), since: s.known}
}

// sums are a tally's time with at least one thread running, all its time, and
// its CPU time.
func sums(at []int64) (busy, known, cpu int64) {
	for k, t := range at {
		known += t
		cpu += int64(k) * t
		if k > 0 {
			busy += t
		}
	}
	return busy, known, cpu
}
