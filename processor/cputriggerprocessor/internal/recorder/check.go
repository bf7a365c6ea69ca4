// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"iter"

	"github.com/hotprofile/hotprofile/internal/trigger"
)

// Check returns an error if what the recorder counts differs from what it holds.
// It is for tests, while nothing is being sent.
func (r *Recorder) Check() error {
	samples, size, queued := 0, 0, 0
	for u, t := range r.units {
		own, outgoing := unitRecordsSize+cap(t.records)*recordSize, 0
		for i, rec := range t.records {
			samples += int(rec.samples)
			own += cap(rec.data)
			if rec.state != waiting {
				outgoing++
			}
			if rec.state == sending || i > 0 && t.records[i-1].start > rec.start {
				return fmt.Errorf("unit %s: record %d is being sent, or began before the one in front", u.Name(), i)
			}
		}
		if t.unit != u || len(t.records) == 0 || t.size != own || t.size > r.perUnit || t.due != outgoing || r.cold[t.index] != t {
			return fmt.Errorf("unit %s: %d records of %d bytes, %d due: %+v", u.Name(), len(t.records), own, outgoing, t)
		}
		size += own
		if t.queued {
			queued++
		}
	}
	if heldSamples, heldSize := r.Held(); heldSamples != int64(samples) || heldSize != int64(size) || size > r.total || len(r.due) != queued || len(r.cold) != len(r.units) {
		return fmt.Errorf("%d samples in %d bytes, %d of %d units queued: holds %d in %d (at most %d), %d queued, %d in the heap",
			samples, size, queued, len(r.units), heldSamples, heldSize, r.total, len(r.due), len(r.cold))
	}
	return nil
}

// All yields the data of every record, for tests.
func (r *Recorder) All() iter.Seq2[*trigger.Unit, []byte] {
	return func(yield func(*trigger.Unit, []byte) bool) {
		for u, t := range r.units {
			for _, rec := range t.records {
				if !yield(u, rec.data) {
					return
				}
			}
		}
	}
}
