// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// maxEnded limits the server spans that are remembered for samples. The
// oldest span is forgotten first.
const maxEnded = 1 << 16

// Ended is a server span that ended.
type Ended struct {
	Span
	// Route is the HTTP route, or the RPC method if RPC is set. It may be empty.
	Route  string
	RPC    bool
	Failed bool
	// Time is the duration in milliseconds.
	Time float64

	source *source
}

// joiner finds the span of a sample. It remembers spans only after the
// first sample with a link.
type joiner struct {
	spans, links atomic.Bool // whether any were seen

	mu    sync.Mutex
	ended []Ended
	next  int // index in ended of the next span
	// at maps trace ids and span ids to indices of ended. Span ids are padded with zeros.
	// The trace id is needed because a sample may link to a child of the server span.
	at map[pcommon.TraceID]int
	// slow contains the slowest requests of each opening. The key is the id of the opening.
	slow *simplelru.LRU[string, []Slow]
}

// These constants limit the requests whose time is kept.
const (
	maxSlow         = 10   // of an opening
	maxSlowOpenings = 1024 // the opening that is used least recently gives way
	maxKinds        = 8    // kinds of waits of a request
)

// Use is the time that one sample represents.
type Use struct {
	Opening string // id
	Ended
	Waiting string  // the kind of the wait; empty if the thread ran
	Took    float64 // in milliseconds, like the other times
}

// Slow is a slow request with the CPU time and the wait times of its samples.
type Slow struct {
	Ended
	CPU   float64
	Waits map[string]float64 // by kind
}

// Spend adds the time of samples to the slowest requests of their openings.
func (in *Intake) Spend(uses []Use) {
	if len(uses) == 0 {
		return
	}
	in.join.mu.Lock()
	defer in.join.mu.Unlock()
	for _, use := range uses {
		slow, _ := in.join.slow.Get(use.Opening)
		i := slices.IndexFunc(slow, func(s Slow) bool { return s.Span == use.Span })
		if i < 0 {
			// A request that is not added now is never added later, because ten other requests
			// are slower.
			if i = len(slow) - 1; i < maxSlow-1 {
				slow = append(slow, Slow{})
				i++
			} else if slow[i].Time >= use.Time {
				continue
			}
			slow[i] = Slow{Ended: use.Ended, Waits: map[string]float64{}}
			for ; i > 0 && slow[i-1].Time < slow[i].Time; i-- {
				slow[i-1], slow[i] = slow[i], slow[i-1]
			}
			in.join.slow.Add(strings.Clone(use.Opening), slow)
		}
		switch waits := slow[i].Waits; {
		case use.Waiting == "":
			slow[i].CPU += use.Took
		case len(waits) < maxKinds || waits[use.Waiting] > 0:
			waits[strings.Clone(use.Waiting)] += use.Took
		}
	}
}

// TakeSlowest removes and returns the slowest requests of an opening, the slowest first. Only
// requests with samples are included.
func (in *Intake) TakeSlowest(opening string) []Slow {
	in.join.mu.Lock()
	defer in.join.mu.Unlock()
	slow, _ := in.join.slow.Peek(opening)
	in.join.slow.Remove(opening)
	return slow
}

func keyOf(id pcommon.SpanID) (key pcommon.TraceID) {
	copy(key[:], id[:])
	return key
}

// add remembers a span.
func (j *joiner) add(s *source, span ptrace.Span, r *request) {
	if !j.links.Load() {
		return
	}
	faults, _ := statusesOf(r.protocol, nil) // the defaults are valid
	e := Ended{
		Span: spanOf(span), Route: strings.Clone(r.route[:min(len(r.route), maxURI)]), RPC: r.protocol == overRPC, source: s,
		Failed: r.failed || faults.has(r.code()), Time: float64(span.EndTimestamp()-span.StartTimestamp()) / 1e6,
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.ended) < maxEnded {
		j.ended = append(j.ended, Ended{})
	}
	old := &j.ended[j.next]
	for _, key := range []pcommon.TraceID{old.Trace, keyOf(old.ID)} {
		if j.at[key] == j.next {
			delete(j.at, key)
		}
	}
	*old = e
	j.at[e.Trace], j.at[keyOf(e.ID)] = j.next, j.next
	j.next = (j.next + 1) % maxEnded
}

// Expect is called when samples have links. It reports whether spans pass
// through the processor.
func (in *Intake) Expect() bool {
	in.join.links.Store(true)
	return in.join.spans.Load()
}

// Join returns the server span to which a sample of a unit links.
func (in *Intake) Join(unit string, trace pcommon.TraceID, id pcommon.SpanID) (e Ended, ok bool) {
	in.join.mu.Lock()
	i, ok := in.join.at[keyOf(id)]
	if !ok && !trace.IsEmpty() {
		i, ok = in.join.at[trace]
	}
	if ok {
		e = in.join.ended[i]
	}
	in.join.mu.Unlock()
	if !ok {
		return e, false
	}
	u := in.lookup(unit)
	e.source.mu.Lock()
	defer e.source.mu.Unlock()
	return e, u != nil && e.source.unit == u
}

// IsTime reports whether a monitor measures a response time in milliseconds.
func IsTime(monitor string) bool {
	q := kinds[monitor].quantity
	return q == averageTime || q == percentileTime
}
