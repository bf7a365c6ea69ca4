// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"bytes"
	"container/heap"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"

	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
)

// recorder keeps the last profiles of units whose gate is shut, and what comes
// of a unit while they are on their way out. They are kept as marshalled bytes:
// their size is known, and the garbage collector has nothing to follow in them.
//
// It is bounded per unit, where the oldest go first, and in total, where the
// oldest of the unit furthest under its thresholds go first.
//
// Its lock is that of units, so that a unit's gate, what was recorded of the
// unit and the way of what arrives are one decision: at the moment that a gate
// opens, each profile is either recorded or still to be judged.
type recorder struct {
	lock     sync.Locker
	counters *counters.Counters
	pre      time.Duration // how long before a trigger is kept
	perUnit  int
	total    int
	sizes    sizeClasses
	// types says whether a policy lets out all types of profiles.
	allTypes func(policy string) bool

	// wake gets a token when there is something to send.
	wake chan struct{}

	// The rest is guarded by lock.
	base   time.Time // times of records are counted from it
	tapes  map[*trigger.Unit]*tape
	due    []*tape // in the order in which they became due
	cold   coldest
	sorted bool // cold is a heap, of heats as of the last sweep
	closed bool
	opened []*trigger.Opening // scratch

	samples, size atomic.Int64
}

// tape is what is held of one unit, in order of capture.
type tape struct {
	unit    *trigger.Unit
	records []recording
	size    int     // bytes of memory, with its own
	heat    float64 // as of the last sweep
	index   int     // in coldest
	due     int     // records on their way out
	queued  bool    // it is in recorder.due
	resting bool    // the next component did not take one: until the next evaluation
}

// recording is a part of a batch: profiles of one unit and one capture window, with
// exactly their part of the dictionary.
type recording struct {
	data       []byte
	start, end int64 // since the recorder's base
	samples    int32
	state      recordingState
	dry        bool // a policy that lets nothing out would let it out
	again      bool // it was handed over before, and not taken
}

type recordingState uint8

const (
	waiting  recordingState = iota // for its unit's gate to open
	outgoing                       // for its turn to be sent
	sending                        // by the outlet now
)

// What a tape costs beside the data of its records: itself, its place in the
// map (a key and a pointer, with the map's spare room), in the heap and in the
// queue.
const (
	recordingSize = int(unsafe.Sizeof(recording{}))
	tapeSize      = int(unsafe.Sizeof(tape{})) + 48 + 16
)

func newRecorder(lock sync.Locker, counters *counters.Counters, pre time.Duration, perUnit, total int, base time.Time) *recorder {
	return &recorder{
		lock: lock, counters: counters, pre: pre, perUnit: min(perUnit, total), total: total, sizes: newSizeClasses(),
		allTypes: func(string) bool { return true },
		wake:     make(chan struct{}, 1), base: base, tapes: map[*trigger.Unit]*tape{},
	}
}

// Held is what it holds: events, and bytes of memory.
func (r *recorder) Held() (samples, size int64) {
	if r == nil {
		return 0, 0
	}
	return r.samples.Load(), r.size.Load()
}

// wants says whether profiles of a unit are to be recorded; under the lock.
func (r *recorder) wants(u *trigger.Unit, now time.Time) bool {
	return r != nil && !r.closed && !u.Gone() && u.MayFire(now.Add(r.pre))
}

// busy says whether records of a unit are on their way out, so that what arrives
// goes behind them; under the lock.
func (r *recorder) busy(u *trigger.Unit) bool {
	if r == nil || r.closed {
		return false
	}
	t, ok := r.tapes[u]
	return ok && t.due > 0
}

// capture is a part of a batch on its way into the recorder.
type capture struct {
	unit       *trigger.Unit
	start, end time.Time
	dry        bool
	samples    int
	data       []byte
}

// pack marshals profiles as they are. Unlike pprofile.ProtoMarshaler it changes
// nothing in them and puts no text of resources into the dictionary.
func pack(pd pprofile.Profiles) ([]byte, error) {
	return pprofileotlp.NewExportRequestFromProfiles(pd).MarshalProto()
}

func unpack(data []byte) (pprofile.Profiles, error) {
	request := pprofileotlp.NewExportRequest()
	err := request.UnmarshalProto(data)
	return request.Profiles(), err
}

// Put keeps captures, or says that they leave if their gate has opened since
// they were judged. Counts has what becomes of samples that find no room.
func (r *recorder) Put(captures []capture, counts *counters.Samples) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for i := range captures {
		r.put(&captures[i], counts)
	}
	r.bound(counts)
}

func (r *recorder) put(c *capture, counts *counters.Samples) {
	if r.closed {
		counts[counters.SampleShutdown] += int64(c.samples)
		return
	}
	rec := recording{
		data: c.data, start: int64(c.start.Sub(r.base)), end: int64(c.end.Sub(r.base)),
		samples: int32(min(c.samples, 1<<31-1)), dry: c.dry,
	}
	if r.sizes.of(len(rec.data))+recordingSize+tapeSize > r.perUnit {
		counts[counters.SampleEvicted] += int64(c.samples)
		return
	}
	t := r.tapes[c.unit]
	if t == nil {
		t = &tape{unit: c.unit, size: tapeSize, heat: heatOf(c.unit)}
		r.tapes[c.unit] = t
		r.cold.Push(t)
		if r.sorted {
			heap.Fix(&r.cold, t.index)
		}
		r.size.Add(int64(tapeSize))
	}
	at, known := t.place(rec)
	if known {
		// A sender that was told of a failure sends its whole batch again.
		counts[counters.SampleRefused] += int64(c.samples)
		return
	}
	real, dry := r.admits(t.unit, rec) // by now
	if dry && !rec.dry {
		rec.dry = true
		r.tellDry(&rec)
	}
	if real {
		r.leave(t, &rec)
	}
	before := cap(t.records)
	t.records = slices.Insert(t.records, at, rec)
	r.grow(t, (cap(t.records)-before)*recordingSize+r.sizes.of(len(rec.data)), int(rec.samples))
	for t.size > r.perUnit && r.evict(t, counts) {
	}
}

// place finds where a record belongs, behind those of its time, and whether it is
// there already.
func (t *tape) place(rec recording) (at int, known bool) {
	at = len(t.records)
	for at > 0 && t.records[at-1].start > rec.start && t.records[at-1].state != sending {
		at--
	}
	for i := at - 1; i >= 0 && t.records[i].start == rec.start; i-- {
		if bytes.Equal(t.records[i].data, rec.data) {
			return at, true
		}
	}
	return at, false
}

func (r *recorder) grow(t *tape, size, samples int) {
	t.size += size
	r.size.Add(int64(size))
	r.samples.Add(int64(samples))
}

// leave has a record leave as soon as those in front of it have.
func (r *recorder) leave(t *tape, rec *recording) {
	rec.state = outgoing
	t.due++
	t.heat = heatOf(t.unit) // it is not to be evicted now
	if r.sorted {
		heap.Fix(&r.cold, t.index)
	}
	if !t.queued && !t.resting {
		t.queued = true
		r.due = append(r.due, t)
		r.nudge()
	}
}

func (r *recorder) nudge() {
	select {
	case r.wake <- struct{}{}:
	default: // there is a token already
	}
}

// admits says whether an opening lets a record out, or would.
func (r *recorder) admits(u *trigger.Unit, rec recording) (real, dry bool) {
	r.opened = u.Admit(r.opened[:0], r.time(rec.start), r.time(rec.end))
	for _, o := range r.opened {
		switch {
		case !o.DryRun:
			real = true
		case r.allTypes(o.Policy):
			dry = true
		}
	}
	return real, dry
}

func (r *recorder) time(since int64) time.Time { return r.base.Add(time.Duration(since)) }

// evict lets go of the oldest record of a unit that is not being sent.
func (r *recorder) evict(t *tape, counts *counters.Samples) bool {
	for i := range t.records {
		if t.records[i].state != sending {
			counts[counters.SampleEvicted] += int64(t.records[i].samples)
			r.remove(t, i)
			return true
		}
	}
	return false
}

// remove lets go of a record, and of a tape that has none.
func (r *recorder) remove(t *tape, i int) {
	rec := &t.records[i]
	if rec.state != waiting {
		t.due--
	}
	size, samples := r.sizes.of(len(rec.data)), int(rec.samples)
	t.records = slices.Delete(t.records, i, i+1)
	r.grow(t, -size, -samples)
	if len(t.records) == 0 {
		r.drop(t)
	}
}

func (r *recorder) drop(t *tape) {
	r.size.Add(-int64(t.size))
	t.size = 0
	delete(r.tapes, t.unit)
	if t.queued {
		t.queued = false
		r.due = slices.DeleteFunc(r.due, func(other *tape) bool { return other == t })
	}
	r.cold.remove(t, r.sorted)
}

// bound evicts until the total is within its bound.
func (r *recorder) bound(counts *counters.Samples) {
	for int(r.size.Load()) > r.total && len(r.cold) > 0 {
		if !r.sorted {
			r.sorted = true
			heap.Init(&r.cold)
		}
		if !r.evict(r.cold[0], counts) {
			return // all that is left of the coldest is being sent, and so of all others
		}
	}
}

// sweep goes through all that is held after the gates were decided: what an
// open one admits leaves, what is too old for any to come goes.
func (r *recorder) sweep(now time.Time) {
	if r == nil || r.closed {
		return
	}
	var counts counters.Samples
	oldest := int64(now.Add(-r.pre).Sub(r.base))
	r.sorted = false // heats are others now
	for _, t := range r.tapes {
		t.resting = false
		r.judge(t, oldest, &counts)
		if len(t.records) == 0 {
			r.drop(t)
			continue
		}
		t.heat = heatOf(t.unit)
		if t.due > 0 && !t.queued {
			t.queued = true
			r.due = append(r.due, t)
		}
	}
	if len(r.due) > 0 {
		r.nudge()
	}
	r.counters.AddSamples(context.Background(), &counts)
}

// judge decides again of what waits of one unit: what is too old goes, and where
// a gate is open, what it admits is due.
func (r *recorder) judge(t *tape, oldest int64, counts *counters.Samples) {
	r.opened = t.unit.Openings(r.opened[:0])
	open, stale := len(r.opened) > 0, false
	for i := range t.records {
		rec := &t.records[i]
		if rec.state != waiting {
			continue
		}
		if open {
			real, dry := r.admits(t.unit, *rec)
			if dry && !rec.dry {
				rec.dry = true
				r.tellDry(rec)
			}
			if real {
				rec.state = outgoing
				t.due++
				continue
			}
		}
		stale = stale || rec.end <= oldest
	}
	if !stale {
		return
	}
	t.records = slices.DeleteFunc(t.records, func(rec recording) bool {
		if rec.state != waiting || rec.end > oldest {
			return false
		}
		counts[shutOutcome(t.unit, rec.dry)] += int64(rec.samples)
		r.grow(t, -r.sizes.of(len(rec.data)), -int(rec.samples))
		return true
	})
}

// tellDry tells openings that let nothing out what they would have.
func (r *recorder) tellDry(rec *recording) {
	for _, o := range r.opened {
		if o.DryRun && r.allTypes(o.Policy) {
			o.Accepted(int(rec.samples), len(rec.data))
		}
	}
}

// shutOutcome is what becomes of what is neither let out nor kept.
func shutOutcome(u *trigger.Unit, dry bool) counters.SampleOutcome {
	switch {
	case u.OverBudget():
		return counters.SampleOverBudget
	case dry:
		return counters.SampleDryRun
	}
	return counters.SampleGateShut
}

// parcel is a record that the outlet has in hand.
type parcel struct {
	tape       *tape
	data       []byte
	samples    int
	start, end time.Time
	openings   []*trigger.Opening
	again      bool
}

// Next takes the next record to send; it stays where it is, and is counted as
// held, until Done. One that no opening admits any more is refused: its time to
// be let out has passed while the next component did not take it.
func (r *recorder) Next() (p parcel, ok bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	var counts counters.Samples
	defer func() { r.counters.AddSamples(context.Background(), &counts) }()
	for len(r.due) > 0 {
		t := r.due[0]
		i := slices.IndexFunc(t.records, func(rec recording) bool { return rec.state == outgoing })
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
		t.queued = false
		r.due = slices.Delete(r.due, 0, 1)
		return parcel{
			tape: t, data: rec.data, samples: int(rec.samples), openings: openings, again: rec.again,
			start: r.time(rec.start), end: r.time(rec.end),
		}, true
	}
	return parcel{}, false
}

// Done says whether a parcel left, or was let go of; else it is sent again after
// the next evaluation.
func (r *recorder) Done(p parcel, left bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	t := p.tape
	i := slices.IndexFunc(t.records, func(rec recording) bool { return rec.state == sending })
	if left {
		r.remove(t, i)
	} else {
		t.records[i].state, t.records[i].again = outgoing, true
		t.resting = true
		return
	}
	if t.due > 0 && !t.queued {
		t.queued = true
		r.due = append(r.due, t) // behind other units
		r.nudge()
	}
}

// rouse has what rests sent again.
func (r *recorder) rouse() {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, t := range r.tapes {
		t.resting = false
		if t.due > 0 && !t.queued {
			t.queued = true
			r.due = append(r.due, t)
		}
	}
}

// Close lets go of all that is held, for good. What was due to leave was
// refused.
func (r *recorder) Close() {
	if r == nil {
		return
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	r.closed = true
	var counts counters.Samples
	for _, t := range r.tapes {
		for _, rec := range t.records {
			if rec.state == waiting {
				counts[counters.SampleShutdown] += int64(rec.samples)
			} else {
				counts[counters.SampleRefused] += int64(rec.samples)
			}
		}
	}
	r.tapes, r.due, r.cold = nil, nil, nil
	r.samples.Store(0)
	r.size.Store(0)
	r.counters.AddSamples(context.Background(), &counts)
}

// heatOf is what units are compared by: one that is gone is the coldest.
func heatOf(u *trigger.Unit) float64 {
	if u.Gone() {
		return -1
	}
	return u.Heat()
}

// coldest is a heap of tapes: in front the one that gives way first, of those
// that are not on their way out if there is any.
type coldest []*tape

func (c coldest) Len() int { return len(c) }

func (c coldest) Less(i, j int) bool {
	a, b := c[i], c[j]
	if (a.due > 0) != (b.due > 0) {
		return b.due > 0
	}
	if a.heat != b.heat {
		return a.heat < b.heat
	}
	return strings.Compare(a.unit.Name(), b.unit.Name()) < 0
}

func (c coldest) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].index, c[j].index = i, j
}

// Push is of heap.Interface.
func (c *coldest) Push(x any) {
	t := x.(*tape)
	t.index = len(*c)
	*c = append(*c, t)
}

// Pop is of heap.Interface.
func (c *coldest) Pop() any {
	last := len(*c) - 1
	t := (*c)[last]
	(*c)[last] = nil
	*c = (*c)[:last]
	return t
}

func (c *coldest) remove(t *tape, sorted bool) {
	if sorted {
		heap.Remove(c, t.index)
		return
	}
	c.Swap(t.index, len(*c)-1)
	c.Pop()
}

// sizeClasses are the sizes that memory is handed out in, ascending.
type sizeClasses []int

const (
	largestClass = 32 << 10
	pageSize     = 8 << 10
)

// newSizeClasses asks the runtime, by what an append rounds a capacity up to.
func newSizeClasses() (s sizeClasses) {
	zeros := make([]byte, largestClass)
	for n := 1; n <= largestClass; {
		class := cap(append([]byte(nil), zeros[:n]...))
		s = append(s, class)
		n = class + 1
	}
	return s
}

// of is the memory that n bytes take.
func (s sizeClasses) of(n int) int {
	if n > s[len(s)-1] {
		return (n + pageSize - 1) / pageSize * pageSize
	}
	i, _ := slices.BinarySearch(s, n)
	return s[i]
}
