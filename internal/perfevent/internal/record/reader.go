// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"sync/atomic"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
)

// Reader decodes the records of all rings by time, round by round. One goroutine
// calls Next.
type Reader struct {
	Decoder
	Counters

	merger *Merger
	// now reads CLOCK_MONOTONIC in nanoseconds.
	now   func() int64
	round bool // a round is under way
}

// Counters count what Next does not return. They may be read at any time.
type Counters struct {
	// Lost are the records that did not fit a ring of samples or context switches,
	// LostRecords those that did not fit one of other records, LostSamples those that the
	// kernel dropped before.
	Lost, LostRecords, LostSamples atomic.Uint64
	// Throttled counts how often the kernel stopped an event that fired too often.
	Throttled atomic.Uint64
	// Corrupt are records that are shorter than they say, and parts of a ring that
	// were skipped because a header made no sense.
	Corrupt atomic.Uint64
}

// NewReader returns a reader of rings. now reads CLOCK_MONOTONIC in nanoseconds.
func NewReader(rings []*ring.Ring, d Decoder, now func() int64) *Reader {
	return &Reader{Decoder: d, merger: NewMerger(rings), now: now}
}

// Next fills rec with the next record of the round that is worth returning. It
// returns the record's words, which are valid until the next call. At the end of
// the round it returns nil; unfinished then reports whether records were left to
// the next round.
func (m *Reader) Next(rec *Record) (words []uint64, unfinished bool) {
	if !m.round {
		m.merger.begin(m.now())
		m.round = true
	}
	for {
		words, r := m.merger.next()
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
			if r.Kinds&(ring.Samples|ring.Switches) == 0 {
				m.LostRecords.Add(rec.Lost.Count)
			} else {
				m.Lost.Add(rec.Lost.Count)
			}
		}
		r.Last = rec.Time
		return words, true
	}
}

// Cutoff returns the time that the last round reached to.
func (m *Reader) Cutoff() int64 { return m.merger.cutoff }
