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
	Openings   []*trigger.Opening // openings that admit the record, except dry runs
	Refused    bool               // the next component refused the record before
	from       *unitRecords
}

// enqueue queues a unit if it has due records and may send.
func (r *Recorder) enqueue(t *unitRecords) {
	if t.due > 0 && !t.queued && !t.resting && !t.sending {
		t.queued = true
		r.due = append(r.due, t)
		r.notify()
	}
}

func (r *Recorder) notify() { token.Put(r.ready) }

// Next returns the next record to send. The record stays in the recorder until Done is
// called. If no opening admits a due record any more, the record is counted as refused,
// because the next component did not accept it in time.
func (r *Recorder) Next() (b Batch, ok bool) {
	r.cfg.Lock.Lock()
	defer r.cfg.Lock.Unlock()
	var counts counters.Samples
	defer func() { r.counters.AddSamples(context.Background(), &counts) }()
	for len(r.due) > 0 {
		t := r.due[0]
		i := t.indexInState(due)
		if i < 0 || r.awaits(t, &t.records[i]) {
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
			r.notify() // another goroutine can send for the next unit in parallel
		}
		return Batch{
			from: t, Data: rec.data, Samples: int(rec.samples), Openings: openings, Refused: rec.refused,
			Start: r.time(rec.start), End: r.time(rec.end),
		}, true
	}
	return Batch{}, false
}

// Done must be called after an attempt to send a record. settled reports whether the
// record has its final outcome. An unsettled record is sent again after the next
// evaluation, behind other units. For a settled record, Done adds counts, which contains
// the outcomes of the record's samples. After Close, Done has no effect.
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

// Retry queues units whose records were refused or wait for spans, without waiting for the
// next evaluation. It is called at shutdown.
func (r *Recorder) Retry() {
	r.cfg.Lock.Lock()
	defer r.cfg.Lock.Unlock()
	r.hurry = true
	for _, t := range r.units {
		t.resting = false
		r.enqueue(t)
	}
}
