// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// hits counts the hits of one event of a tracepoint.
type hits struct {
	// atSample and lostAtSample are the counters at the event's last sample. Only the
	// reader uses them.
	atSample, lostAtSample uint64
	// sampled is the number of hits that the event's samples represent.
	sampled atomic.Uint64
	// drawn is the time when the number of hits per sample was last set. The first sample
	// after this time is dropped, and drawn is reset to 0. The kernel takes this sample at
	// the very next hit. The sample is therefore biased toward hits that follow a pause,
	// such as the first hit of a loop. The next sample also represents the hits of the
	// dropped sample.
	drawn atomic.Int64
	// final is the number of hits when the event was closed. closed is the time at which the
	// event was closed.
	final  uint64
	closed int64
}

// CountsHitsOfThreads reports whether the kernel counts the hits of threads that inherit
// events (Linux 6.12). Otherwise, a session that samples tracepoints cannot attach to a
// process.
func CountsHitsOfThreads() bool { return inheritHits.supported() }

// AttachTracepoint samples one tracepoint on every CPU of the session. The tracepoint must
// be Everywhere. Other tracepoints are sampled per attachment.
func (s *Session) AttachTracepoint(index int) (*Attachment, error) {
	if index < 0 || index >= len(s.tracepoints) || !s.tracepoints[index].Everywhere {
		return nil, fmt.Errorf("sampling tracepoint %d everywhere: it is none of the session's", index)
	}
	return s.attach(&Attachment{session: s, only: index + 1, what: fmt.Sprintf("tracepoint %d", s.tracepoints[index].ID)})
}

// Attachments returns all attachments except the attachments of AttachTracepoint.
func (s *Session) Attachments() (all []*Attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.attachments {
		if a.only == 0 {
			all = append(all, a)
		}
	}
	return all
}

// openHits opens the events of a on one CPU, one event per tracepoint. If inherit is true,
// threads inherit the events of the thread that starts them.
func (s *Session) openHits(a *Attachment, pid, cpu, output, flags int, inherit bool) error {
	if a.periods == nil {
		a.periods = make([]int, len(s.tracepoints))
		for i, t := range s.tracepoints {
			a.periods[i] = max(t.Every, 1)
		}
		a.carried = make([]uint64, len(s.tracepoints))
	}
	for i, t := range s.tracepoints {
		if a.only > 0 && i != a.only-1 || a.only == 0 && t.Everywhere {
			continue
		}
		attr := s.hits(t, int64(a.periods[i]))
		if inherit {
			attr.Bits |= unix.PerfBitInherit
			if s.inheritThread {
				attr.Bits |= sys.AttrInheritThread
			}
		}
		if err := s.openEvent(a, attr, pid, cpu, output, flags); err != nil {
			return err
		}
		e := a.events[len(a.events)-1]
		e.tracepoint = i
		if t.Filter == "" {
			continue
		}
		if err := unix.IoctlSetString(e.fd, unix.PERF_EVENT_IOC_SET_FILTER, t.Filter); err != nil {
			return fmt.Errorf("filtering tracepoint %d by %q: %w", t.ID, t.Filter, err)
		}
	}
	return nil
}

// SetHits sets the number of hits per sample for each of an attachment's tracepoints, by
// index. 0 leaves a number unchanged. Each event uses draw(mean) until the next call, and
// draw must average mean. A fixed number would run in lockstep with loops, so call SetHits
// repeatedly, even with the same mean. Record.Hits is correct whatever numbers draw returns.
//
// If a mean changes, SetHits replaces the events of a process, because threads that
// inherited an event keep its period. A process that has ended is detached.
func (s *Session) SetHits(a *Attachment, means []int, draw func(mean int) int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(means) != len(s.tracepoints) {
		return fmt.Errorf("setting the hits per sample: %d numbers for %d tracepoints", len(means), len(s.tracepoints))
	}
	if _, ok := s.attachments[a]; !ok {
		return nil
	}
	changed := false
	for i, mean := range means {
		if mean > 0 && mean != a.periods[i] {
			a.periods[i], changed = mean, true
		}
	}
	if changed && a.pid > 0 {
		if err := s.renewHits(a); err != nil {
			return err
		}
	}
	for _, e := range a.events {
		mean := means[e.tracepoint]
		if mean <= 0 {
			continue
		}
		period := max(draw(mean), 1)
		if period > 1 {
			e.hits.drawn.Store(sys.Monotonic())
		}
		if err := sys.SetPeriod(e.fd, uint64(period)); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("sampling every %dth hit of %s: %w", mean, a.what, err)
		}
	}
	return nil
}

// renewHits replaces the events of a process. The old events are disabled before the new
// events are enabled, so that no hit is sampled twice. If the new events cannot be
// opened, a keeps the old events. If the process has ended, a is detached.
func (s *Session) renewHits(a *Attachment) error {
	old := a.events
	a.events = nil
	if err := s.openEvents(a); err != nil {
		return s.restore(a, old, err)
	}
	s.publish(a.events, nil)
	err := s.retire(a, old)
	if !s.paused {
		err = errors.Join(err, a.enable())
	}
	return err
}

// retire closes current or former events of a. The reader keeps the events until it
// has read all of their records.
func (s *Session) retire(a *Attachment, events []*event) error {
	errs := []error{a.request(events, unix.PERF_EVENT_IOC_DISABLE, 0)}
	for _, e := range events {
		var err error
		e.hits.final, err = sys.Count(e.fd)
		errs = append(errs, err)
	}
	closed := sys.Monotonic()
	for _, e := range events {
		e.hits.closed = closed
	}
	s.retired = append(s.retired, events...)
	s.anyRetired.Store(true)
	return errors.Join(append(errs, s.closeAll(a, events))...)
}

// forgetRetired forgets the retired events that have no unread samples. If an event was
// replaced, its hits that no sample represents are added to the next sample. Otherwise they
// are counted as unsampled. The reader calls forgetRetired at the end of a round.
func (s *Session) forgetRetired() {
	s.mu.Lock()
	defer s.mu.Unlock()
	read, left := make([]*event, 0, len(s.retired)), s.retired[:0]
	for _, e := range s.retired {
		if e.hits.closed >= s.reader.Cutoff() {
			left = append(left, e)
			continue
		}
		read = append(read, e)
		n := e.hits.sampled.Load()
		if n >= e.hits.final {
			continue
		}
		if _, attached := s.attachments[e.attachment]; attached {
			e.attachment.carried[e.tracepoint] += e.hits.final - n
		} else {
			s.unsampled.Add(e.hits.final - n)
		}
	}
	clear(s.retired[len(left):])
	s.retired = left
	s.anyRetired.Store(len(left) > 0)
	s.publish(nil, read)
}

// DetachAll detaches all attachments. Read then returns the remaining records. Afterwards,
// Stats includes the hits that no sample represents.
func (s *Session) DetachAll() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.each(s.detach)
}

// leftOut reports whether a sample is the first sample after SetHits.
func (e *event) leftOut(rec *Record) bool {
	drawn := e.hits.drawn.Load()
	return drawn != 0 && rec.Time >= drawn && e.hits.drawn.CompareAndSwap(drawn, 0)
}

// hitsSince returns the number of hits of a sample's event since the event's previous
// sample. lost is the number of these hits whose samples were lost.
func (s *Session) hitsSince(rec *Record, e *event) (hits, lost uint64) {
	at, before := rec.Sample.Hits, e.hits.atSample
	if e.attachment.pid > 0 {
		// The kernel counts the hits of each thread separately. It does not count lost samples
		// per thread.
		of := s.threadHits[rec.TID]
		if of == nil {
			if len(s.threadHits) >= maxLatest {
				e.hits.sampled.Add(1)
				return 1, 0
			}
			of = make(map[uint64]uint64)
			s.threadHits[rec.TID] = of
		}
		before = of[e.id]
		of[e.id] = at
	} else {
		lost = rec.Sample.HitsLost - e.hits.lostAtSample
		e.hits.atSample, e.hits.lostAtSample = at, rec.Sample.HitsLost
	}
	if at < before { // another thread reused this id unnoticed
		before = 0
	}
	hits = max(at-before, 1)
	e.hits.sampled.Add(hits)
	if c := &e.attachment.carried[e.tracepoint]; *c > 0 {
		hits, *c = hits+*c, 0
	}
	return hits, min(lost, hits-1)
}
