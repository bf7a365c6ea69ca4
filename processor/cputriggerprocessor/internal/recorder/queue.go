// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/token"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
)

// Batch is a record that is being sent.
type Batch struct {
	Data       []byte // input of Unpack
	Samples    int
	Start, End time.Time
	Openings   []*trigger.Opening // openings that admit the record, without dry runs
	Refused    bool               // the next component refused the record before
	from       *unitRecords
}

// enqueue queues a unit that has due records.
func (r *Recorder) enqueue(t *unitRecords) {
	if t.due > 0 && !t.queued && !t.resting && !t.sending {
		t.queued = true
		r.due = append(r.due, t)
		r.notify()
	}
}

func (r *Recorder) notify() { token.Put(r.ready) }

// Next returns the next record to send. The record is held, and counted as held, until
// Done. A due record that no opening admits any more counts as refused, because the next
// component did not accept it in time.
func (r *Recorder) Next() (b Batch, ok bool) {
	r.cfg.Lock.Lock()
	defer r.cfg.Lock.Unlock()
	var counts counters.Samples
	defer func() { r.counters.AddSamples(context.Background(), &counts) }()
	for len(r.due) > 0 {
		t := r.due[0]
		i := t.indexInState(due)
		if i < 0 {
			t.queued = false
			r.due = slices.Delete(r.due, 0, 1)
			continue
		}
		rec := &t.records[i]
		openings := slices.DeleteFunc(t.unit.Admit(nil, r.time(rec.start), r.time(rec.end)), func(o *trigger.Opening) bool { return o.DryRun })
		if len(openings) == 0 {
			counts[counters.SampleRefused] += int64(rec.samples)
			r.remove(t, i)
			continue
		}
		rec.state = sending
		t.queued, t.sending = false, true
		r.due = slices.Delete(r.due, 0, 1)
		if len(r.due) > 0 {
			r.notify() // meanwhile another goroutine sends for the next unit
		}
		return Batch{
			from: t, Data: rec.data, Samples: int(rec.samples), Openings: openings, Refused: rec.refused,
			Start: r.time(rec.start), End: r.time(rec.end),
		}, true
	}
	return Batch{}, false
}

// Done ends the sending of a record. If the record is not settled, it is sent again after
// the next evaluation, behind other units. counts has the outcomes of its samples. After
// Close these samples are already counted.
func (r *Recorder) Done(b Batch, settled bool, counts *counters.Samples) {
	r.cfg.Lock.Lock()
	defer r.cfg.Lock.Unlock()
	if r.closed {
		return
	}
	t := b.from
	t.sending = false
	i := t.indexInState(sending)
	if !settled {
		t.records[i].state, t.records[i].refused = due, true
		t.resting = true
		return
	}
	r.counters.AddSamples(context.Background(), counts)
	r.remove(t, i)
	r.enqueue(t)
}

// Retry lets units that rest after a refusal send again.
func (r *Recorder) Retry() {
	r.cfg.Lock.Lock()
	defer r.cfg.Lock.Unlock()
	for _, t := range r.units {
		t.resting = false
		r.enqueue(t)
	}
}
