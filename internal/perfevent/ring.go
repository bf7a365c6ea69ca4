// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import "sync/atomic"

// ring is the reader's end of one mapped buffer: struct perf_event_mmap_page's
// data_head and data_tail, and the data. Positions are bytes since the ring was
// made and never wrap; their low bits index the data. Every record is a multiple
// of 8 bytes, so no word of one is split by the buffer's end.
type ring struct {
	head *uint64 // written by the kernel
	tail *uint64 // written here: what lies before it may be overwritten
	data []uint64

	// records says that others than samples are written to it.
	records bool

	next      uint64 // the record to read next
	limit     uint64 // head when the round began
	published uint64 // what tail was last set to
	size      int    // words of the record at next
	time      int64  // time of the record at next
	index     int    // among the rings of a switchMerger
}

func (r *ring) word(position uint64) uint64 {
	return r.data[position/wordSize&uint64(len(r.data)-1)]
}

// peek sets size and time of the record at next. It returns false where the
// header makes no sense.
func (r *ring) peek() bool {
	h := parseHeader(r.word(r.next))
	r.size = h.words()
	if r.size == 0 || uint64(h.size) > r.limit-r.next {
		return false
	}
	r.time = 0 // a record too short to have a time is corrupt, and first to go
	switch {
	case h.kind == recordSample:
		if r.size > sampleTime {
			r.time = int64(r.word(r.next + sampleTime*wordSize))
		}
	case r.size > trailerWords:
		r.time = int64(r.word(r.next + uint64(r.size-trailerWords+trailerTime)*wordSize))
	}
	return true
}

// take copies the record at next to scratch and steps behind it.
func (r *ring) take(scratch []uint64) []uint64 {
	at := int(r.next / wordSize & uint64(len(r.data)-1))
	n := copy(scratch[:r.size], r.data[at:])
	copy(scratch[n:r.size], r.data)
	r.next += uint64(r.size) * wordSize
	// Giving back a quarter at a time keeps the kernel from running full during
	// a long round, without a locked store per record.
	if r.next-r.published > uint64(len(r.data)*wordSize/4) {
		r.publish()
	}
	return scratch[:r.size]
}

// publish gives what was read back to the kernel. The store is ordered after
// the reads before it, as the kernel's documentation of data_tail demands.
func (r *ring) publish() {
	if r.published != r.next {
		atomic.StoreUint64(r.tail, r.next)
		r.published = r.next
	}
}

// clockSlack is how far a record's time may lie after the round's beginning and
// still be believed: a later one would hold back its ring for ever.
const clockSlack = 1_000_000_000

// merger hands over the records of all rings by time, round by round. A round
// takes what was written before it began, so its work is bounded, and what
// caused a record is never handed over after it: had it been written before,
// it is in the round too.
type merger struct {
	rings   []*ring
	heap    byTime
	cutoff  int64
	scratch []uint64
	// pending says that younger records were left to the next round.
	pending bool
	// corrupt counts stretches that were skipped for a bad header.
	corrupt uint64
}

func newMerger(rings []*ring) *merger {
	return &merger{
		rings:   rings,
		heap:    make(byTime, 0, len(rings)),
		scratch: make([]uint64, maxRecordWords),
	}
}

// begin starts a round of what is older than cutoff, which must have been read
// from the clock before the call.
func (m *merger) begin(cutoff int64) {
	m.cutoff, m.pending = cutoff, false
	m.heap = m.heap[:0]
	for _, r := range m.rings {
		r.limit = atomic.LoadUint64(r.head)
		if m.due(r) {
			m.heap = append(m.heap, r)
		}
	}
	m.heap.order()
}

// due reports whether r has a record for this round.
func (m *merger) due(r *ring) bool {
	if r.next == r.limit {
		r.publish()
		return false
	}
	if r.limit-r.next > uint64(len(r.data)*wordSize) || !r.peek() {
		// Nothing tells where the next record begins.
		m.corrupt++
		r.next = r.limit
		r.publish()
		return false
	}
	if r.time > m.cutoff && r.time-m.cutoff < clockSlack {
		m.pending = true
		r.publish()
		return false
	}
	return true
}

// next returns the earliest record of the round, valid until the next call, and
// the ring it came from; nil at the round's end.
func (m *merger) next() ([]uint64, *ring) {
	if len(m.heap) == 0 {
		return nil, nil
	}
	r := m.heap[0]
	words := r.take(m.scratch)
	if !m.due(r) {
		m.heap.dropFirst()
	}
	m.heap.down(0)
	return words, r
}

// byTime is a heap of rings with records left in a round, the earliest first.
type byTime []*ring

// order makes a heap of what is in any order.
func (h byTime) order() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

// dropFirst takes the first ring out. The new first one may not be the earliest:
// call down.
func (h *byTime) dropFirst() {
	last := len(*h) - 1
	(*h)[0] = (*h)[last]
	*h = (*h)[:last]
}

// down puts the ring at i, whose time has grown, in its place.
func (h byTime) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if right := child + 1; right < len(h) && h[right].time < h[child].time {
			child = right
		}
		if h[i].time <= h[child].time {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
