// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Merger returns the records of all rings by time, round by round. A round has what
// was written before it began, so its work is bounded. No record is returned after
// one that it caused: had the cause been written before, it is in the round too.
type Merger struct {
	rings   []*ring.Ring
	heap    ring.Heap
	cutoff  int64
	scratch []uint64
	// pending reports whether records younger than the cutoff were left to the next
	// round.
	pending bool
	// corrupt counts parts of rings that were skipped for a header without sense.
	corrupt uint64
}

// NewMerger returns a merger of rings.
func NewMerger(rings []*ring.Ring) *Merger {
	return &Merger{
		rings:   rings,
		heap:    make(ring.Heap, 0, len(rings)),
		scratch: make([]uint64, ring.MaxRecordWords),
	}
}

// begin starts a round of what is older than cutoff, which must be read from the
// clock before the call.
func (m *Merger) begin(cutoff int64) {
	m.cutoff, m.pending = cutoff, false
	m.heap = m.heap[:0]
	for i, r := range m.rings {
		r.Begin()
		if time, ok := m.peek(r); ok {
			m.heap = append(m.heap, ring.Entry{Time: time, Index: i})
		}
	}
	m.heap.Init()
}

// peek returns the time of the ring's next record, and false where the ring has
// none for this round.
func (m *Merger) peek(r *ring.Ring) (time int64, ok bool) {
	if r.Empty() {
		r.Release()
		return 0, false
	}
	h, ok := r.Peek()
	if r.Overrun() || !ok {
		// Where the next record begins is unknown.
		m.corrupt++
		r.SkipAll()
		r.Release()
		return 0, false
	}
	time = timeOf(r, h)
	if time > m.cutoff && time-m.cutoff < ring.ClockSlack {
		m.pending = true
		r.Release()
		return 0, false
	}
	return time, true
}

// timeOf returns the time of the record that was peeked at. One that is too short
// to have a time is corrupt, and is read first.
func timeOf(r *ring.Ring, h ring.Header) int64 {
	switch n := r.Words(); {
	case h.Kind == sys.RecordSample:
		if n > sampleTime {
			return int64(r.Word(sampleTime))
		}
	case n > trailerWords:
		return int64(r.Word(n - trailerWords + trailerTime))
	}
	return 0
}

// next returns the earliest record of the round, valid until the next call, and
// the ring it is from; nil at the end of the round.
func (m *Merger) next() ([]uint64, *ring.Ring) {
	if len(m.heap) == 0 {
		return nil, nil
	}
	r := m.rings[m.heap[0].Index]
	words := r.Copy(m.scratch)
	r.Skip()
	m.heap.Update(m.peek(r))
	return words, r
}
