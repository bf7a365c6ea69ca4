// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package switches

import (
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// The sample_type of a session is TID | TIME, so every record ends with these fields:
//
//	header, [body,] pid:tid, time
//
// A switch is recorded as two records of 32 bytes. The thread that leaves writes a record
// that names the next thread. The next thread then writes a record that names the previous
// thread. The second record is skipped if it is redundant.
//
// Some threads write neither record, for example the idle task on some CPUs. Such a thread
// is known only from the records of the threads that run before and after it.
const trailerWords = 2

// unknownTask is not a valid pid:tid.
const unknownTask = ^uint64(0) - 1

// spare is at least the number of bytes that the kernel writes at once. The largest write is
// a fork record preceded by a report of lost records. A ring with at least spare free bytes
// has therefore lost no record.
const spare = 128

// A cpuRing is the ring of one CPU. Its records are decoded in place.
type cpuRing struct {
	*ring.Ring
	cpu  int   // index in CPUs
	last int64 // time of the last record that was read
	// maybeLost reports whether records may be missing after the last record, because the
	// ring was full or the rest of the ring was unreadable.
	maybeLost bool
	expected  uint64 // pid:tid that the last record named as the next thread

	// header and time describe the next record, which peek has found. If present is false,
	// peek has found no record, and only a possible loss remains to be reported.
	header  ring.Header
	time    int64
	present bool
}

// begin starts a round.
func (r *cpuRing) begin() {
	r.Begin()
	r.maybeLost = r.maybeLost || r.Full(spare)
}

// peek finds the next record of the round that is not redundant, and returns its time. It
// returns false if there is no such record. A report of lost records gets the time of the
// previous record, because the loss began at that time.
func (r *cpuRing) peek(cutoff int64, corrupt *uint64) (time int64, ok bool) {
	if r.Overrun() {
		r.giveUp(corrupt)
	}
	for !r.Empty() {
		var ok bool
		if r.header, ok = r.Peek(); !ok || r.Words() < 1+trailerWords {
			r.giveUp(corrupt)
			break
		}
		if r.redundant() {
			r.Skip()
			continue
		}
		r.time = int64(r.Word(r.Words() - 1))
		if r.header.Kind == sys.RecordLost {
			r.time = r.last
		}
		if r.time > cutoff && r.time-cutoff < ring.ClockSlack {
			r.Release()
			return 0, false
		}
		r.present = true
		return r.time, true
	}
	r.Release()
	r.time, r.present = r.last, false
	return r.time, r.maybeLost
}

// giveUp skips the rest of the round because the record boundaries are unknown.
func (r *cpuRing) giveUp(corrupt *uint64) {
	*corrupt++
	r.SkipAll()
	r.maybeLost = true
}

// redundant reports whether the next record adds no information. The second record of a
// switch is redundant if the previous record already named its thread. A fork or exit is
// redundant if the thread is not the first of its process. A comm record is redundant
// unless an exec has written it. Unknown records are redundant too.
func (r *cpuRing) redundant() bool {
	switch r.header.Kind {
	case sys.RecordSwitchCPUWide:
		return r.header.Misc&sys.MiscSwitchOut == 0 && r.Word(r.Words()-trailerWords) == r.expected
	case sys.RecordComm:
		return r.header.Misc&sys.MiscCommExec == 0
	case sys.RecordFork, sys.RecordExit:
		if r.Words() < 3+trailerWords {
			return false
		}
		pid, parent := ring.Halves(r.Word(1))
		if r.header.Kind == sys.RecordFork {
			return pid == parent
		}
		tid, _ := ring.Halves(r.Word(2))
		return pid != tid
	case sys.RecordSample, sys.RecordLost:
		return false
	}
	return true
}

// read fills rec with the record that peek found. If the record is shorter than its type
// requires, read counts it as corrupt and returns false.
func (r *cpuRing) read(rec *Record, corrupt *uint64) bool {
	*rec = Record{CPU: r.cpu, Time: r.time}
	r.last = r.time
	if !r.present {
		rec.Kind, r.maybeLost, r.expected = Lost, false, unknownTask
		return true
	}
	ok := r.decode(rec)
	if !ok {
		*corrupt++
	}
	r.Skip()
	return ok
}

func (r *cpuRing) decode(rec *Record) bool {
	body := r.Words() - 1 - trailerWords
	switch r.header.Kind {
	case sys.RecordSwitchCPUWide: // {u32 next_prev_pid, next_prev_tid}
		if body < 1 {
			return false
		}
		rec.Kind = Switch
		to, from := r.Word(1), r.Word(r.Words()-trailerWords)
		if r.header.Misc&sys.MiscSwitchOut == 0 {
			to, from = from, to
		}
		r.expected = to
		rec.PID, rec.TID = ring.Halves(to)
		rec.OtherPID, rec.OtherTID = ring.Halves(from)
	case sys.RecordSample: // only the trailer
		rec.Kind = Running
		rec.PID, rec.TID = ring.Halves(r.Word(1))
	case sys.RecordFork, sys.RecordExit: // {u32 pid, ppid, tid, ptid; u64 time}
		if body < 3 {
			return false
		}
		rec.Kind = Exit
		if r.header.Kind == sys.RecordFork {
			rec.Kind = Fork
		}
		rec.PID, rec.OtherPID = ring.Halves(r.Word(1))
		rec.TID, rec.OtherTID = ring.Halves(r.Word(2))
	case sys.RecordComm: // {u32 pid, tid; char comm[]}
		if body < 1 {
			return false
		}
		rec.Kind = Exec
		rec.PID, rec.TID = ring.Halves(r.Word(1))
	case sys.RecordLost: // {u64 id, lost}
		if body < 2 {
			return false
		}
		rec.Kind, rec.Count = Lost, r.Word(2)
		r.expected = unknownTask
	}
	return true
}

// A merger merges the records of all rings by time, round by round.
type merger struct {
	rings   []*cpuRing
	heap    ring.Heap
	cutoff  int64
	corrupt uint64
}

func newMerger(rings []*ring.Ring) merger {
	var m merger
	for i, r := range rings {
		m.rings = append(m.rings, &cpuRing{Ring: r, cpu: i, expected: unknownTask})
	}
	return m
}

// begin starts a round of the records up to cutoff.
func (m *merger) begin(cutoff int64) {
	m.cutoff = cutoff
	m.heap = m.heap[:0]
	for i, r := range m.rings {
		r.begin()
		if time, ok := r.peek(cutoff, &m.corrupt); ok {
			m.heap = append(m.heap, ring.Entry{Time: time, Index: i})
		}
	}
	m.heap.Init()
}

// next fills rec with the earliest record of the round. It returns false at the end of the
// round.
func (m *merger) next(rec *Record) bool {
	for len(m.heap) > 0 {
		r := m.rings[m.heap[0].Index]
		ok := r.read(rec, &m.corrupt)
		m.heap.Update(r.peek(m.cutoff, &m.corrupt))
		if ok {
			return true
		}
	}
	return false
}
