// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"sync/atomic"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Reader merges the records of all rings by time and decodes them, round by round. Only
// one goroutine may call Next.
type Reader struct {
	Decoder
	Counters

	// Period is the time between two samples of a CPU in nanoseconds. It is 0 if the
	// session does not sample time. If a ring holds records of all kinds, Period limits
	// how many of the ring's lost records are counted as samples.
	Period atomic.Int64

	// Copies makes Next copy each record, so that a record in use stays valid if another
	// goroutine unmaps its ring.
	Copies bool

	merger *merger
	// now reads CLOCK_MONOTONIC in nanoseconds.
	now   func() int64
	round bool // a round is in progress
}

// Counters contains the counts of the records that Next does not return. They may be read
// concurrently.
type Counters struct {
	// Lost counts the samples and context switches that did not fit into a ring. LostRecords
	// counts other records that did not fit. LostSamples counts samples that the kernel
	// dropped earlier.
	Lost, LostRecords, LostSamples atomic.Uint64
	// Throttled is the number of times that the kernel stopped
	// an event that fired too often.
	Throttled atomic.Uint64
	// Corrupt counts records that are shorter than they declare, and parts of a ring that
	// were skipped because a header was invalid.
	Corrupt atomic.Uint64
}

// NewReader returns a Reader of rings. now reads CLOCK_MONOTONIC in nanoseconds.
func NewReader(rings []*ring.Ring, d Decoder, now func() int64) *Reader {
	for _, r := range rings {
		r.Last = now()
	}
	return &Reader{Decoder: d, merger: newMerger(rings), now: now}
}

// Next fills rec with the next record of the round. It skips records that it only counts.
// It returns the record's words, which are valid until the next call. At the end of the
// round it returns nil, and unfinished reports whether records were left for the next
// round.
func (m *Reader) Next(rec *Record) (words []uint64, unfinished bool) {
	if !m.round {
		m.merger.begin(m.now())
		m.round = true
	}
	for {
		words, r := m.merger.next()
		if m.Copies && words != nil {
			words = r.Copy(m.merger.scratch)
		}
		if words == nil {
			m.round = false
			m.Corrupt.Add(m.merger.corrupt)
			m.merger.corrupt = 0
			return nil, m.merger.pending
		}
		switch m.decode(words, rec) {
		case skipped:
			continue
		case corrupt:
			m.Corrupt.Add(1)
			continue
		}
		switch rec.Type {
		case typeLostSamples:
			m.LostSamples.Add(rec.Lost.Count)
			continue
		case typeThrottle:
			m.Throttled.Add(1)
			continue
		case TypeLost:
			rec.Lost.Kinds, rec.Lost.Since = r.Kinds, r.Last
			samples := m.samplesOf(rec)
			m.Lost.Add(samples)
			m.LostRecords.Add(rec.Lost.Count - samples)
		}
		r.Last = rec.Time
		return words, true
	}
}

// samplesOf returns the maximum number of samples and context switches among the records
// that a ring lost.
func (m *Reader) samplesOf(rec *Record) uint64 {
	switch period := m.Period.Load(); rec.Lost.Kinds {
	case ring.Records:
		return 0
	case ring.Records | ring.Samples:
		if period > 0 {
			return min(rec.Lost.Count, uint64(max(rec.Time-rec.Lost.Since, 0)/period)+1)
		}
	}
	return rec.Lost.Count
}

// Cutoff returns the time up to which the last round has read records.
func (m *Reader) Cutoff() int64 { return m.merger.cutoff }

// merger merges the records of all rings by time, round by round. A round contains
// the records that were written before the round began, so its work is bounded. A
// record is never returned before its cause, because the cause was written earlier
// and is therefore in the round too.
type merger struct {
	rings  []*ring.Ring
	heap   ring.Heap
	cutoff int64
	// returned is the ring of the record that next returned last.
	returned *ring.Ring
	// scratch holds a copied record.
	scratch []uint64
	// pending reports whether records younger than the cutoff were left for the next round.
	pending bool
	// corrupt counts parts of rings that were skipped because a header was invalid.
	corrupt uint64
}

func newMerger(rings []*ring.Ring) *merger {
	return &merger{
		rings:   rings,
		heap:    make(ring.Heap, 0, len(rings)),
		scratch: make([]uint64, ring.MaxRecordWords),
	}
}

// begin starts a round of the records that are older than cutoff. cutoff must be read from
// the clock before the call.
func (m *merger) begin(cutoff int64) {
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

// peek returns the time of the ring's next record. It returns false if the ring has no
// record for this round.
func (m *merger) peek(r *ring.Ring) (time int64, ok bool) {
	if r.Empty() {
		r.Release()
		return 0, false
	}
	h, ok := r.Peek()
	if r.Overrun() || !ok {
		// The start of the next record is unknown.
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

// timeOf returns the time of the record that Peek saw. A record that is too short to
// contain a time is corrupt. Its time is 0, so it is read first.
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

// next returns the earliest record of the round and its ring. The record is valid until the
// next call, because it lies in the ring. At the end of the round next returns nil.
func (m *merger) next() ([]uint64, *ring.Ring) {
	if m.returned != nil {
		m.returned.Skip()
		m.heap.Update(m.peek(m.returned))
		m.returned = nil
	}
	if len(m.heap) == 0 {
		return nil, nil
	}
	m.returned = m.rings[m.heap[0].Index]
	return m.returned.Record(m.scratch), m.returned
}
