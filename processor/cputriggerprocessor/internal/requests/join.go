// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"strings"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// maxEnded limits the server spans that are remembered for samples. The
// oldest span is forgotten first.
const maxEnded = 1 << 16

// Ended is a server span that ended.
type Ended struct {
	Span
	// Route is the route of HTTP, or the method of RPC if RPC is set. It may be empty.
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
	// at contains indices of ended. The keys are trace ids, and span ids that
	// are padded with zeros. The trace id is needed because a sample may link to
	// a child of the server span.
	at map[pcommon.TraceID]int
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

// Join returns the server span of a unit that a sample links to.
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

// IsTime reports whether a monitor is a response time in milliseconds.
func IsTime(monitor string) bool {
	q := kinds[monitor].quantity
	return q == averageTime || q == percentileTime
}
