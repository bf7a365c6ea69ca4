// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package recorder is the flight recorder. It holds recent profiles of units whose gate is
// shut, and sends them when the gate opens.
package recorder

import (
	"container/heap"
	"context"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hotprofile/hotprofile/internal/token"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/order"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
)

// Config configures a Recorder.
type Config struct {
	PreTrigger      time.Duration // time for which profiles are held; 0: profiles are not held
	PerUnit, Memory int           // limits of the memory in bytes, per unit and in total
	Lock            sync.Locker   // guards the recorder and the units' gates
}

// Recorder holds profiles as marshalled bytes, because the size of the bytes is known and
// the garbage collector finds no pointers in them. If a unit exceeds its limit, the
// unit's oldest record is evicted. If the total limit is exceeded, the oldest record of
// the coldest unit is evicted. The coldest unit is the furthest below its thresholds.
//
// The recorder and the gates of the units share one lock. When a gate opens, each profile
// is therefore either recorded or still undecided. Close and the methods that the Sender
// calls take the lock. The caller of any other method must hold the lock, unless the
// method's comment states otherwise.
type Recorder struct {
	counters *counters.Counters
	cfg      Config
	perUnit  int
	ready    chan struct{} // receives a token when a record is due

	base   time.Time // times of records are relative to it
	units  map[*trigger.Decision]*unitRecords
	due    []*unitRecords           // in the order in which they became due
	cold   order.Heap[*unitRecords] // in the order of eviction
	sorted bool                     // cold is ordered by the heats at the last sweep
	swept  int64                    // time of the last sweep
	hurry  bool                     // records no longer wait for spans
	closed bool
	opened []*trigger.Opening // scratch

	samples, size atomic.Int64
}

// New returns an empty recorder. base is the current time.
func New(cfg Config, c *counters.Counters, base time.Time) *Recorder {
	return &Recorder{
		counters: c, cfg: cfg, perUnit: min(cfg.PerUnit, cfg.Memory),
		ready: make(chan struct{}, 1), base: base, units: map[*trigger.Decision]*unitRecords{},
		cold: order.Heap[*unitRecords]{Compare: (*unitRecords).compare, Index: func(t *unitRecords) *int { return &t.index }},
	}
}

// Held returns the number of held samples and the used memory
// in bytes. The caller need not hold the lock.
func (r *Recorder) Held() (samples, size int64) {
	return r.samples.Load(), r.size.Load()
}

// Ready returns a channel that receives a token when a record
// is due. The caller need not hold the lock.
func (r *Recorder) Ready() <-chan struct{} { return r.ready }

// Wants reports whether profiles of a unit that end now should be recorded, because the
// unit's gate may open soon.
func (r *Recorder) Wants(u *trigger.Decision, now time.Time) bool {
	return r.cfg.PreTrigger > 0 && !r.closed && !u.Gone() && u.MayFire(now.Add(r.cfg.PreTrigger))
}

// Keeps reports whether a profile that ended at end is recent enough to be held.
func (r *Recorder) Keeps(end, now time.Time) bool {
	return end.After(now.Add(-r.cfg.PreTrigger))
}

// spanWait is the time for which records with links wait for the spans. It is longer than
// the 5 s for which the SDKs of OpenTelemetry collect spans.
const spanWait = 10 * time.Second

// CanWait reports whether profiles with links can wait for the spans.
func (r *Recorder) CanWait() bool { return r.cfg.PreTrigger > 0 && !r.closed && !r.hurry }

// awaits reports whether a due record waits for spans. A record no longer
// waits if the gate of its unit has closed, or if the records of its unit use
// half of the memory limit per unit.
func (r *Recorder) awaits(t *unitRecords, rec *record) bool {
	return t.linked && !r.hurry && r.swept < rec.end+int64(spanWait) && t.size < r.perUnit/2 && len(t.unit.Openings(nil)) > 0
}

// Sending reports whether a unit has due records. If so, profiles that arrive now must be
// sent after these records.
func (r *Recorder) Sending(u *trigger.Decision) bool {
	t, ok := r.units[u]
	return ok && t.due > 0
}

// Put records captures. If the gate has opened since the decision to record a capture,
// the capture is due immediately. counts includes the samples that Put drops.
func (r *Recorder) Put(captures []Capture, counts *counters.Samples) {
	for i := range captures {
		r.put(&captures[i], counts)
	}
	r.bound(counts)
}

func (r *Recorder) put(c *Capture, counts *counters.Samples) {
	if r.closed {
		counts[counters.SampleShutdown] += int64(c.Samples)
		return
	}
	rec := record{
		data: c.Data, start: int64(c.Start.Sub(r.base)), end: int64(c.End.Sub(r.base)),
		samples: int32(min(c.Samples, 1<<31-1)), dry: c.Dry,
	}
	if cap(rec.data)+recordSize+unitRecordsSize > r.perUnit {
		counts[counters.SampleEvicted] += int64(c.Samples)
		return
	}
	t := r.units[c.Unit]
	if t == nil {
		t = &unitRecords{unit: c.Unit, size: unitRecordsSize, heat: heatOf(c.Unit)}
		r.units[c.Unit] = t
		r.cold.Fix(t)
		r.size.Add(int64(unitRecordsSize))
	}
	t.linked = t.linked || c.Linked
	at, known := t.indexOf(rec)
	if known {
		// The record already exists, because a client retries a whole batch after an error.
		counts[counters.SampleRefused] += int64(c.Samples)
		return
	}
	if r.admits(t.unit, &rec) { // the gate may have opened in the meantime
		r.leave(t, &rec)
	}
	before := cap(t.records)
	t.records = slices.Insert(t.records, at, rec)
	r.grow(t, (cap(t.records)-before)*recordSize+cap(rec.data), int(rec.samples))
	for t.size > r.perUnit && r.evict(t, counts) {
	}
}

func (r *Recorder) grow(t *unitRecords, size, samples int) {
	t.size += size
	r.size.Add(int64(size))
	r.samples.Add(int64(samples))
}

// leave marks a record as due and adds its unit to the queue.
func (r *Recorder) leave(t *unitRecords, rec *record) {
	rec.state = due
	t.due++
	t.heat = heatOf(t.unit) // a unit with due records is evicted last
	r.cold.Fix(t)
	r.enqueue(t)
}

// admits reports whether an opening admits a record. It also counts the record for the
// openings of dry runs that admit the record, unless the record was counted before.
func (r *Recorder) admits(u *trigger.Decision, rec *record) (real bool) {
	counted := rec.dry
	r.opened = u.Admit(r.opened[:0], r.time(rec.start), r.time(rec.end))
	for _, o := range r.opened {
		switch {
		case !o.DryRun:
			real = true
		case len(o.Types) == 0 && !counted: // the recorder does not know the profile types of a record
			rec.dry = true
			o.Accepted(int(rec.samples), len(rec.data))
		}
	}
	return real
}

func (r *Recorder) time(since int64) time.Time { return r.base.Add(time.Duration(since)) }

// evict removes a unit's oldest record that is not being sent. It returns false
// if there is no such record.
func (r *Recorder) evict(t *unitRecords, counts *counters.Samples) bool {
	for i := range t.records {
		if t.records[i].state != sending {
			counts[counters.SampleEvicted] += int64(t.records[i].samples)
			r.remove(t, i)
			return true
		}
	}
	return false
}

// remove removes a record. If it was the last record of the unit, remove
// also removes the unit.
func (r *Recorder) remove(t *unitRecords, i int) {
	rec := &t.records[i]
	if rec.state != waiting {
		t.due--
	}
	size, samples := cap(rec.data), int(rec.samples)
	t.records = slices.Delete(t.records, i, i+1)
	r.grow(t, -size, -samples)
	if len(t.records) == 0 {
		r.drop(t)
	}
}

func (r *Recorder) drop(t *unitRecords) {
	r.size.Add(-int64(t.size))
	t.size = 0
	delete(r.units, t.unit)
	if t.queued {
		t.queued = false
		r.due = slices.DeleteFunc(r.due, func(other *unitRecords) bool { return other == t })
	}
	r.cold.Remove(t)
}

// bound evicts records until the total memory is within its limit.
func (r *Recorder) bound(counts *counters.Samples) {
	for int(r.size.Load()) > r.cfg.Memory && len(r.units) > 0 {
		if !r.sorted {
			r.sorted = true
			heap.Init(&r.cold)
		}
		if !r.evict(r.cold.Items[0], counts) {
			return // the coldest unit has only records that are being sent
		}
	}
}

// Sweep is called after each evaluation. It marks records as due if an open gate admits
// them. It removes the other records that are older than pre_trigger.
func (r *Recorder) Sweep(now time.Time) {
	if r.closed {
		return
	}
	var counts counters.Samples
	r.swept = int64(now.Sub(r.base))
	oldest := int64(now.Add(-r.cfg.PreTrigger).Sub(r.base))
	r.sorted = false // heats have changed
	for _, t := range r.units {
		t.resting = false
		r.judge(t, oldest, &counts)
		if len(t.records) == 0 {
			r.drop(t)
			continue
		}
		t.heat = heatOf(t.unit)
		r.enqueue(t)
	}
	r.counters.AddSamples(context.Background(), &counts)
}

// judge marks waiting records of a unit as due if an open gate admits them. It removes
// the other waiting records that ended before oldest.
func (r *Recorder) judge(t *unitRecords, oldest int64, counts *counters.Samples) {
	r.opened = t.unit.Openings(r.opened[:0])
	open, stale := len(r.opened) > 0, false
	for i := range t.records {
		rec := &t.records[i]
		if rec.state != waiting {
			continue
		}
		if open && r.admits(t.unit, rec) {
			rec.state = due
			t.due++
			continue
		}
		stale = stale || rec.end <= oldest
	}
	if !stale {
		return
	}
	t.records = slices.DeleteFunc(t.records, func(rec record) bool {
		if rec.state != waiting || rec.end > oldest {
			return false
		}
		counts[ShutOutcome(t.unit, rec.dry)] += int64(rec.samples)
		r.grow(t, -cap(rec.data), -int(rec.samples))
		return true
	})
}

// ShutOutcome returns the outcome of samples that are dropped because their unit's gate
// is shut. dry is true if the gate was open for a dry run.
func ShutOutcome(u *trigger.Decision, dry bool) counters.SampleOutcome {
	switch {
	case u.OverBudget():
		return counters.SampleOverBudget
	case dry:
		return counters.SampleDryRun
	}
	return counters.SampleGateShut
}

// All yields the data of every record.
func (r *Recorder) All() iter.Seq2[*trigger.Decision, []byte] {
	return func(yield func(*trigger.Decision, []byte) bool) {
		for u, t := range r.units {
			for _, rec := range t.records {
				if !yield(u, rec.data) {
					return
				}
			}
		}
	}
}

// Close drops all records and stops recording. Records that are due or being sent are
// counted as refused. Close returns the number of refused samples.
func (r *Recorder) Close() (refused int64) {
	r.cfg.Lock.Lock()
	defer r.cfg.Lock.Unlock()
	if r.closed {
		return 0
	}
	r.closed = true
	var counts counters.Samples
	for _, t := range r.units {
		for _, rec := range t.records {
			if rec.state == waiting {
				counts[counters.SampleShutdown] += int64(rec.samples)
			} else {
				counts[counters.SampleRefused] += int64(rec.samples)
			}
		}
	}
	r.units, r.due, r.cold.Items = nil, nil, nil
	r.samples.Store(0)
	r.size.Store(0)
	r.counters.AddSamples(context.Background(), &counts)
	return counts[counters.SampleRefused]
}

// heatOf returns the heat by which units are ordered. Units that are gone
// are the coldest.
func heatOf(u *trigger.Decision) float64 {
	if u.Gone() {
		return -1
	}
	return u.Heat()
}

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
