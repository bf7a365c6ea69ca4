// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package bottleneck

import "slices"

// simultaneity adds up, for each tally and each k, the time t(k) with k running
// threads. Its input is the process that runs on each CPU from a given time on. The
// process may be unknown. The CPU time of a tally is Σ k·t(k). The time with at least
// one thread on a CPU is the sum of t(k) for k ≥ 1.
//
// While the process on any CPU is unknown, no time is added to any tally.
//
// Times are nanoseconds of one clock and do not run backwards. Invariants:
//   - unknown is the number of CPUs whose process is nil or has unknown tallies
//   - a tally's k is the number of CPUs whose process has the tally
//   - after settle, the times of a tally add up to known less the value of known at
//     newTally
type simultaneity struct {
	cpus []*process // process on each CPU; nil if unknown
	now  int64      // all time before now is counted
	// known is the total time during which the process on every CPU was known. Tallies use
	// known as their clock, so a gap does not distort them.
	known   int64
	unknown int // number of CPUs with an unknown process or unknown tallies

	// late is the number of events that arrived after an event with a later time.
	// surprises is the number of processes that left a CPU on which they were not known
	// to run. Both numbers stay 0 unless records are out of order, or are missing
	// without a record of the loss.
	late, surprises uint64
}

// process is a process that runs on a CPU. Its threads are not distinguished.
type process struct {
	pid     int
	tallies []*tally // tallies that count its running threads
	known   bool     // the tallies are known
	unit    string   // id of its cgroup's unit; empty if it has none
	gone    bool     // dropped from the census
	queued  bool     // waits in the census's queue for a lookup
}

// tally contains the time of one unit, by the number of its running threads.
type tally struct {
	at    []int64 // by k
	k     int
	since int64 // simultaneity.known when k last changed
}

// newSimultaneity returns a simultaneity with unknown processes on all CPUs.
func newSimultaneity(cpus int) *simultaneity {
	return &simultaneity{cpus: make([]*process, cpus), unknown: cpus}
}

// reset forgets the processes on the CPUs and changes the number of CPUs. All tallies are
// kept, but have no running threads.
func (s *simultaneity) reset(cpus int, now int64) {
	for cpu := range s.cpus {
		s.lose(cpu, now)
	}
	s.cpus = make([]*process, cpus)
	s.unknown = cpus
}

// advance counts the time from s.now to t, in which there are no events.
func (s *simultaneity) advance(t int64) {
	if t <= s.now {
		return
	}
	if s.unknown == 0 {
		s.known += t - s.now
	}
	s.now = t
}

// at advances to the time of an event. A late event counts from now on, because the time
// before now is already counted.
func (s *simultaneity) at(t int64) {
	if t < s.now {
		s.late++
		return
	}
	s.advance(t)
}

// runs records that a process is on a CPU from t on. before is the pid of the process that
// left the CPU. It is 0 for the idle task, and negative if the pid is unknown. If the last
// known process on the CPU has another pid, records are missing.
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
		s.add(last, -1)
	}
	if last == nil || !last.known {
		s.unknown--
	}
	s.cpus[cpu] = p
	s.add(p, 1)
	if !p.known {
		s.unknown++
	}
}

// lose marks a CPU as unknown from t on.
func (s *simultaneity) lose(cpu int, t int64) {
	s.at(t)
	last := s.cpus[cpu]
	if last == nil {
		return
	}
	s.add(last, -1)
	if last.known {
		s.unknown++
	}
	s.cpus[cpu] = nil
}

// assign changes the tallies that a process counts for, from now on. If known is
// false, these tallies are unknown.
func (s *simultaneity) assign(p *process, tallies []*tally, known bool) {
	if p.known == known && slices.Equal(p.tallies, tallies) {
		return
	}
	running := 0
	for _, on := range s.cpus {
		if on == p {
			running++
			s.add(p, -1)
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
		s.add(p, 1)
	}
}

// add changes the number of running threads in the tallies of a process.
func (s *simultaneity) add(p *process, threads int) {
	for _, t := range p.tallies {
		s.settle(t)
		t.k += threads
	}
}

// settle adds the time up to now to a tally.
func (s *simultaneity) settle(t *tally) {
	for len(t.at) <= len(s.cpus) {
		t.at = append(t.at, 0)
	}
	t.at[t.k] += s.known - t.since
	t.since = s.known
}

// newTally returns a tally that starts now without running threads.
func (s *simultaneity) newTally() *tally {
	return &tally{at: make([]int64, len(s.cpus)+1), since: s.known}
}

// sums returns three sums of a tally. busy is the time with at least one running thread,
// known is the total time, and cpu is the CPU time.
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
