// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import "sync/atomic"

// SwitchOptions are the options of a [Switches]. The zero value of each field
// has a meaning.
type SwitchOptions struct {
	// CPUs are those to follow; empty means all that are online.
	CPUs []int
	// Ring is the bytes of each CPU's ring, rounded up to a power of two of
	// pages and halved until it fits what this user may lock; 0 means 16 MiB
	// shared out among the CPUs, each 256 KiB to 2 MiB of it.
	Ring int
	// MaxDescriptors bounds the descriptors, two per CPU; 0 means 4096. It is
	// never above half of RLIMIT_NOFILE.
	MaxDescriptors int
}

// switchRingFor shares out the rings' memory. A switch takes 64 bytes, so a ring
// of 256 KiB is full after 20 ms at 200,000 switches a second on one CPU, of
// which a reader that is woken when it is a quarter full has 15 to get there.
// With copies of stacks it holds at least 16 of the largest.
func switchRingFor(cpus, userStack int) int {
	if userStack > 0 {
		return min(max(64<<20/max(cpus, 1), 1<<20), 4<<20)
	}
	return min(max(16<<20/max(cpus, 1), 256<<10), 2<<20)
}

// A SwitchRecord is what happened on one CPU, see [Switches]. It is filled again
// by every Read.
type SwitchRecord struct {
	// Type is
	//
	//	TypeSwitch  a thread went onto the CPU: TID of PID, which is 0 for the
	//	            idle task; OtherPID and OtherTID left it
	//	TypeSample  TID of PID is on the CPU, and may have been for long
	//	TypeFork    process PID was started by OtherPID
	//	TypeExec    process PID became another program
	//	TypeExit    the first thread of PID has ended, the others in general too
	//	TypeLost    records may be missing from here on, until the next of the
	//	            CPU: Count, where that is known
	Type Type
	// Time is CLOCK_MONOTONIC in nanoseconds.
	Time int64
	// CPU is an index into [Switches.CPUs].
	CPU int
	// Pids are as seen from this process's pid namespace: 0 where one is not in
	// it, -1 for a thread that was ending and has no id any more.
	PID, TID           int
	OtherPID, OtherTID int
	Count              uint64
}

// The sample_type of switch sessions is TID | TIME, so that every record ends in
// them:
//
//	header, [body,] pid:tid, time
//
// and a switch takes 32 bytes, twice: the thread that leaves writes one, which
// names the next, and then that one, which names the one before. The second is
// passed over where it adds nothing. There are threads that write neither, among
// them, on some CPUs, the idle task: those are seen by what others write.
const switchTrailer = 2

// nobody is no pid:tid.
const nobody = ^uint64(0) - 1

// A switchRing is one CPU's ring, read record by record in place.
type switchRing struct {
	ring
	cpu  int   // index
	last int64 // time of the last record that was taken
	// maybeLost says that the ring was full, or could not be read on, so that
	// after the last of its records some may be missing.
	maybeLost bool
	coming    uint64 // pid:tid that the last record named as the next one
	head      header // of the record at next; size 0: none, but some may be lost
}

// spare is the least room that a ring has while no record is lost: the largest
// record here is a fork, with what says that others were lost before it.
const spare = 128

// start begins a round.
func (r *switchRing) start() {
	r.limit = atomic.LoadUint64(r.ring.head)
	used, size := r.limit-r.published, uint64(len(r.data)*wordSize)
	r.maybeLost = r.maybeLost || used+spare > size
}

// due finds the next record of a round that is worth handing over. What a record
// of lost ones stands for happened since the record before it, and so does it.
func (r *switchRing) due(cutoff int64, corrupt *uint64) bool {
	if r.limit-r.next > uint64(len(r.data)*wordSize) {
		r.giveUp(corrupt)
	}
	for r.next != r.limit {
		r.head = parseHeader(r.word(r.next))
		r.size = r.head.words()
		if r.size < 1+switchTrailer || uint64(r.head.size) > r.limit-r.next {
			r.giveUp(corrupt)
			break
		}
		if r.passedOver() {
			r.step()
			continue
		}
		r.time = int64(r.word(r.next + uint64(r.size-1)*wordSize))
		if r.head.kind == recordLost {
			r.time = r.last
		}
		if r.time > cutoff && r.time-cutoff < clockSlack {
			r.publish()
			return false
		}
		return true
	}
	r.publish()
	r.head, r.size, r.time = header{}, 0, r.last
	return r.maybeLost
}

func (r *switchRing) giveUp(corrupt *uint64) {
	*corrupt++
	r.next, r.maybeLost = r.limit, true
}

// passedOver says that the record at next tells nothing: a thread that came onto
// the CPU was named by the one before, and threads of a process are not told
// apart.
func (r *switchRing) passedOver() bool {
	switch r.head.kind {
	case recordSwitchCPUWide:
		return r.head.misc&miscSwitchOut == 0 && r.word(r.next+uint64(r.size-switchTrailer)*wordSize) == r.coming
	case recordComm:
		return r.head.misc&miscCommExec == 0
	case recordFork, recordExit:
		if r.size < 3+switchTrailer {
			return false
		}
		pid, parent := halves(r.word(r.next + wordSize))
		if r.head.kind == recordFork {
			return pid == parent
		}
		tid, _ := halves(r.word(r.next + 2*wordSize))
		return pid != tid
	case recordSample, recordLost:
		return false
	}
	return true
}

// take fills rec with the record that due found. It returns false for one that
// does not hold what its header says.
func (r *switchRing) take(rec *SwitchRecord, corrupt *uint64) bool {
	*rec = SwitchRecord{CPU: r.cpu, Time: r.time}
	r.last = r.time
	if r.size == 0 {
		rec.Type, r.maybeLost, r.coming = TypeLost, false, nobody
		return true
	}
	body := r.next + wordSize
	words := r.size - 1 - switchTrailer
	ok := true
	switch r.head.kind {
	case recordSwitchCPUWide: // {u32 next_prev_pid, next_prev_tid}
		if ok = words >= 1; ok {
			rec.Type = TypeSwitch
			to, from := r.word(body), r.word(body+uint64(words)*wordSize)
			if r.head.misc&miscSwitchOut == 0 {
				to, from = from, to
			}
			r.coming = to
			rec.PID, rec.TID = halves(to)
			rec.OtherPID, rec.OtherTID = halves(from)
		}
	case recordSample: // nothing but the trailer
		rec.Type = TypeSample
		rec.PID, rec.TID = halves(r.word(body))
	case recordFork, recordExit: // {u32 pid, ppid, tid, ptid; u64 time}
		if ok = words >= 3; ok {
			rec.Type = TypeExit
			if r.head.kind == recordFork {
				rec.Type = TypeFork
			}
			rec.PID, rec.OtherPID = halves(r.word(body))
			rec.TID, rec.OtherTID = halves(r.word(body + wordSize))
		}
	case recordComm: // {u32 pid, tid; char comm[]}
		if ok = words >= 1; ok {
			rec.Type = TypeExec
			rec.PID, rec.TID = halves(r.word(body))
		}
	case recordLost: // {u64 id, lost}
		if ok = words >= 2; ok {
			rec.Type, rec.Count = TypeLost, r.word(body+wordSize)
			r.coming = nobody
		}
	}
	if !ok {
		*corrupt++
	}
	r.step()
	return ok
}

// step goes behind the record at next, and gives back a quarter of the ring at a
// time, see ring.take.
func (r *switchRing) step() {
	r.next += uint64(r.size) * wordSize
	if r.next-r.published > uint64(len(r.data)*wordSize/4) {
		r.publish()
	}
}

// A switchMerger hands over the records of all rings by time, as a merger does.
type switchMerger struct {
	rings   []*switchRing
	heap    byTime
	cutoff  int64
	corrupt uint64
}

// begin starts a round of what is not younger than cutoff.
func (m *switchMerger) begin(cutoff int64) {
	m.cutoff = cutoff
	m.heap = m.heap[:0]
	for i, r := range m.rings {
		r.index = i
		r.start()
		if r.due(cutoff, &m.corrupt) {
			m.heap = append(m.heap, &r.ring)
		}
	}
	m.heap.order()
}

// next fills rec with the earliest record of the round; false at its end.
func (m *switchMerger) next(rec *SwitchRecord) bool {
	for len(m.heap) > 0 {
		r := m.rings[m.heap[0].index]
		ok := r.take(rec, &m.corrupt)
		if !r.due(m.cutoff, &m.corrupt) {
			m.heap.dropFirst()
		}
		m.heap.down(0)
		if ok {
			return true
		}
	}
	return false
}
