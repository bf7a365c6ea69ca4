// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/truncate"
)

// These are the names of events.
const (
	GateOpened      = "hotprofile.gate.opened"
	GateClosed      = "hotprofile.gate.closed"
	GateNotOpened   = "hotprofile.gate.not_opened"
	GateRequests    = "hotprofile.gate.requests"
	ProfileWritten  = "hotprofile.profile.written"
	PoliciesChanged = "hotprofile.policies.changed"
	PolicyUnmatched = "hotprofile.policy.unmatched"
)

// EventNames returns the names of all kinds of events.
func EventNames() []string {
	return []string{GateOpened, GateClosed, GateNotOpened, GateRequests, ProfileWritten, PoliciesChanged, PolicyUnmatched}
}

// Event is a decision or an action of a component. An event and its lists must not be
// changed after the event is published.
type Event struct {
	Name string
	Time time.Time
	// Body describes the event in one sentence for human readers.
	Body string
	// Resource contains the attributes of the unit's resource, and Attributes contains the
	// attributes of the event. Package internal/otlpprofiles/attr defines the keys.
	Resource, Attributes []attribute.KeyValue
	// TraceID and SpanID identify a span that is one of the reasons for the event. Both
	// are zero if there is no such span.
	TraceID trace.TraceID
	SpanID  trace.SpanID
	// Dropped is the number of attributes that were dropped because of the limits.
	// PublishEvent adds the number of attributes that it drops.
	Dropped int
}

// Request is an element of the attribute hotprofile.requests, encoded as JSON. Its times are
// in milliseconds. A request can wait and run in several threads at once.
type Request struct {
	TraceID  string             `json:"trace_id"`
	Route    string             `json:"route,omitempty"`
	Failed   bool               `json:"failed,omitempty"`
	Duration float64            `json:"duration"`
	CPU      float64            `json:"cpu"`
	Waits    map[string]float64 `json:"waits,omitempty"` // by the reason of the wait
}

// AddText adds an attribute to the event, unless the value is empty.
func (e *Event) AddText(key, value string) {
	if value != "" {
		e.Attributes = append(e.Attributes, attribute.String(key, value))
	}
}

// These constants limit one event, and the events that wait for one subscriber.
const (
	maxEventAttributes = 64   // of the resource and of the event each; the last attributes are dropped
	maxEventText       = 1024 // bytes of a text; the rest is cut
	maxEventList       = 32   // texts of a list; the last texts are dropped
	maxEventsWaiting   = 1000 // the newest event is dropped

	// dropEpisode is the minimum time without a dropped event before dropped events are
	// logged again.
	dropEpisode = time.Minute
)

// events distributes events to subscribers.
type events struct {
	mu          sync.Mutex // held only briefly
	subscribers []*Subscription
	listening   atomic.Bool
}

// Subscription receives the events that are published while it is open.
type Subscription struct {
	of     *HotUnits
	name   string
	wanted []string // names of the wanted events; empty for all events
	events chan Event

	last time.Time // time of the last dropped event; guarded by the lock of events
}

// Subscribe returns a subscription to the events whose names are in wanted. Without
// wanted names, it is a subscription to all events. name identifies the subscription in
// the log and the metric. A subscription holds at most 1,000 waiting events. Further
// events are dropped for this subscription, counted and logged.
func (h *HotUnits) Subscribe(name string, wanted ...string) *Subscription {
	s := &Subscription{of: h, name: name, wanted: wanted, events: make(chan Event, maxEventsWaiting)}
	h.events.mu.Lock()
	defer h.events.mu.Unlock()
	h.events.subscribers = append(h.events.subscribers, s)
	h.events.listening.Store(true)
	return s
}

// Events returns the channel of the events. The channel is never closed.
func (s *Subscription) Events() <-chan Event { return s.events }

// AppendWaiting appends the events that are already waiting to a list. most is
// the maximum length of the list.
func (s *Subscription) AppendWaiting(list []Event, most int) []Event {
	for len(list) < most {
		select {
		case e := <-s.events:
			list = append(list, e)
		default:
			return list
		}
	}
	return list
}

// Close ends the subscription. Close may be called twice. Events that were already
// received stay in the channel.
func (s *Subscription) Close() {
	e := &s.of.events
	e.mu.Lock()
	defer e.mu.Unlock()
	e.subscribers = slices.DeleteFunc(e.subscribers, func(other *Subscription) bool { return other == s })
	e.listening.Store(len(e.subscribers) > 0)
}

// Listening reports whether there are subscribers. Without subscribers, publishers do not
// have to create events. A nil HotUnits has no subscribers.
func (h *HotUnits) Listening() bool { return h != nil && h.events.listening.Load() }

// PublishEvent sends an event to all subscribers that want it. It never waits for a
// subscriber. If the channel of a subscriber is full, the event is dropped for this
// subscriber, counted and logged. A nil HotUnits ignores the event.
func (h *HotUnits) PublishEvent(e Event) {
	if !h.Listening() {
		return
	}
	e.Body = cutText(e.Body)
	e.Resource = e.bound(e.Resource)
	e.Attributes = e.bound(e.Attributes)
	h.telemetry.HotUnitsEvents.Add(context.Background(), 1, metric.WithAttributes(attribute.String("event", e.Name)))
	var slow []*Subscription
	h.events.mu.Lock()
	for _, s := range h.events.subscribers {
		if len(s.wanted) > 0 && !slices.Contains(s.wanted, e.Name) {
			continue
		}
		select {
		case s.events <- e:
		default:
			h.telemetry.HotUnitsEventsDropped.Add(context.Background(), 1, metric.WithAttributes(attribute.String("subscriber", s.name)))
			now := time.Now()
			if now.Sub(s.last) > dropEpisode {
				slow = append(slow, s)
			}
			s.last = now
		}
	}
	h.events.mu.Unlock()
	for _, s := range slow {
		h.log.Warn("events dropped: their subscriber is too slow", zap.String("subscriber", s.name), zap.Int("waiting", maxEventsWaiting))
	}
}

// bound keeps attributes of the event within the limits. It truncates strings and lists,
// and drops attributes.
func (e *Event) bound(all []attribute.KeyValue) []attribute.KeyValue {
	out := slices.Clone(all[:min(len(all), maxEventAttributes)])
	for i := range out {
		out[i].Value = boundValue(out[i].Value)
	}
	e.Dropped += len(all) - len(out)
	return out
}

func boundValue(v attribute.Value) attribute.Value {
	switch v.Type() {
	case attribute.STRING:
		return attribute.StringValue(cutText(v.AsString()))
	case attribute.STRINGSLICE:
		list := v.AsStringSlice()
		list = list[:min(len(list), maxEventList)]
		for i, s := range list {
			list[i] = cutText(s)
		}
		return attribute.StringSliceValue(list)
	}
	return v
}

func cutText(s string) string { return truncate.Cut(s, maxEventText) }
