// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/hostid"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/reason"
	"github.com/hotprofile/hotprofile/internal/truncate"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// publishTo makes the component publish events and provide readings. It must be called
// before the first batch.
func (p *cpuTrigger) publishTo(hot *hotunitsextension.HotUnits) {
	p.reporter.events = hot
	p.reporter.host = []attribute.KeyValue{attribute.String(attr.HostName, hostid.Best(hostid.Names(p.cfg.RootPath)))}
	p.serving.add(hot.ServeReadings(func(dst []hotunitsextension.UnitReadings, most int) ([]hotunitsextension.UnitReadings, int) {
		return p.units.Readings(dst, most, p.now(), p.peers.Load().Peers)
	}))
	p.keepResources()
}

// keepResources makes the set keep the resources of units. Call it before
// the first batch.
func (p *cpuTrigger) keepResources() {
	p.units.KeepResources(func(key string) bool { return p.router.Remove[key] || attributes.IsReason(key) })
}

// policiesChanged logs and publishes the names of the added, removed and changed policies.
func (r *reporter) policiesChanged(c policyChanges, version, from string, now time.Time) {
	r.log.Info("policies changed", zap.String("from", from), zap.String("version", version),
		zap.Strings("added", c.added), zap.Strings("removed", c.removed), zap.Strings("changed", c.changed))
	if !r.events.Listening() {
		return
	}
	e := hotunitsextension.Event{
		Name: hotunitsextension.PoliciesChanged, Time: now, Resource: r.host,
		Body: fmt.Sprintf("policies changed: %d added, %d removed, %d changed", len(c.added), len(c.removed), len(c.changed)),
		Attributes: []attribute.KeyValue{
			attribute.String(attr.PoliciesVersion, version), attribute.String(attr.PoliciesFrom, from),
		},
	}
	for _, names := range []struct {
		key   string
		names []string
	}{{attr.PoliciesAdded, c.added}, {attr.PoliciesRemoved, c.removed}, {attr.PoliciesChanged, c.changed}} {
		if len(names.names) > 0 {
			e.Attributes = append(e.Attributes, attribute.StringSlice(names.key, names.names))
		}
	}
	r.events.PublishEvent(e)
}

// publishUnmatched publishes an event about a policy that matches no unit.
func (r *reporter) publishUnmatched(u units.Unused, now time.Time) {
	why := u.Why
	if u.Match != "" {
		why = u.Match + ": " + why
	}
	r.events.PublishEvent(hotunitsextension.Event{
		Name: hotunitsextension.PolicyUnmatched, Time: now, Resource: r.host,
		Body:       fmt.Sprintf("policy %s matches no unit: %s", u.Policy, why),
		Attributes: []attribute.KeyValue{attribute.String(attr.TriggerPolicy, u.Policy), attribute.String(attr.GateWhy, why)},
	})
}

// event returns an event for a transition, with the
// attributes that all gate events contain.
func event(name, body string, t units.Transition, more ...attribute.KeyValue) hotunitsextension.Event {
	e := hotunitsextension.Event{Name: name, Time: t.Time, Resource: t.Resource, Dropped: t.ResourceDropped}
	e.Body = fmt.Sprintf("gate of %s %s by policy %s", nameOf(t), body, t.Policy)
	why := reason.Reason{
		Unit: t.Unit.Name(), Policy: t.Policy, Monitor: t.Cause.Monitor, Condition: t.Cause.Key, Window: t.Cause.Window,
		Value: reason.Round(t.Cause.Value), Threshold: t.Cause.Threshold,
	}
	if t.Cause.Window != "" {
		e.Body += fmt.Sprintf(": %s %s, threshold %s, %s", t.Cause.Monitor, figure(t.Cause.Value), figure(t.Cause.Threshold), t.Cause.Window)
	} else { // there is no condition, such as for a baseline without readings
		why.Value, why.Threshold = math.NaN(), math.NaN()
	}
	if t.Opening != nil {
		why.ID, why.Kind = t.Opening.ID, string(t.Opening.Kind())
	}
	if name == hotunitsextension.GateOpened {
		why.Until = t.Until
	}
	e.Attributes = append(why.Attributes(), more...)
	return e
}

// nameOf returns a human-readable name of a transition's unit. It is the service if the
// service is known.
func nameOf(t units.Transition) string { return cmp.Or(t.Service, t.Unit.Name()) }

func figure(f float64) string { return strconv.FormatFloat(reason.Round(f), 'f', -1, 64) }

// setSpan adds the span of a request that contributed to a transition, if such a span is
// known. The transition must be recent, because the span belongs to the last reading.
func (r *reporter) setSpan(e *hotunitsextension.Event, t units.Transition) {
	span := r.requests.Span(t.Unit.Name(), t.Cause.Key)
	e.TraceID, e.SpanID = trace.TraceID(span.Trace), trace.SpanID(span.ID)
}

func (r *reporter) publishOpened(t units.Transition) {
	switch {
	case !r.events.Listening():
	case t.Opening.DryRun:
		r.publishNotOpened(t, "dry run")
	default:
		e := event(hotunitsextension.GateOpened, "opened", t)
		r.setSpan(&e, t)
		var traces []string
		for _, id := range r.requests.Slowest(t.Unit.Name(), t.Cause.Key) {
			traces = append(traces, id.String())
		}
		if len(traces) > 0 {
			e.Attributes = append(e.Attributes, attribute.StringSlice(attr.TriggerTraces, traces))
		}
		r.events.PublishEvent(e)
	}
}

func (r *reporter) publishClosed(t units.Transition, nothing string) {
	if !r.events.Listening() || t.Opening.DryRun {
		return
	}
	e := event(hotunitsextension.GateClosed, "closed", t,
		attribute.String(attr.GateWhy, string(t.Reason)),
		attribute.Int(attr.GateSamples, t.Samples),
		attribute.Int(attr.GateBytes, t.Bytes),
		attribute.Float64(attr.GateDuration, reason.Round(t.Time.Sub(t.Opening.FiredAt).Seconds())))
	e.AddText(attr.GateNothingExported, nothing)
	r.events.PublishEvent(e)
}

// Requests are published lateProfiles after an opening has closed. Until then, late
// profiles of the opening may still be exported.
const (
	lateProfiles = 20 * time.Second
	maxRoute     = 200 // bytes of a route in an event
	maxKind      = 32  // bytes of a kind of wait
)

// publishRequests publishes the slowest requests of openings that have closed. It waits for
// late profiles, unless the processor shuts down.
func (r *reporter) publishRequests(now time.Time, shutdown bool) {
	for len(r.closes) > 0 && (shutdown || now.Sub(r.closes[0].Time) >= lateProfiles) {
		t := r.closes[0]
		r.closes = r.closes[1:]
		var list []string
		for _, s := range r.requests.TakeSlowest(t.Opening.ID) {
			of := hotunitsextension.Request{TraceID: s.Trace.String(), Route: truncate.Cut(s.Route, maxRoute), Failed: s.Failed, Duration: reason.Round(s.Time), CPU: reason.Round(s.CPU), Waits: map[string]float64{}}
			for kind, ms := range s.Waits {
				of.Waits[truncate.Cut(kind, maxKind)] = reason.Round(ms)
			}
			if text, err := json.Marshal(of); err == nil {
				list = append(list, string(text))
			}
		}
		if len(list) > 0 {
			e := event(hotunitsextension.GateRequests, "", t, attribute.StringSlice(attr.Requests, list))
			e.Body = fmt.Sprintf("slowest requests of %s while its gate was open by policy %s", nameOf(t), t.Policy)
			e.Time = now
			r.events.PublishEvent(e)
		}
	}
}

// publishNotOpened publishes the reason why a gate does not open. It publishes only the
// first reason after a condition began to hold.
func (r *reporter) publishNotOpened(t units.Transition, why string) {
	if !r.events.Listening() || t.Repeated {
		return
	}
	e := event(hotunitsextension.GateNotOpened, "not opened ("+why+")", t, attribute.String(attr.GateWhy, why))
	e.AddText(attr.GateBudget, t.Budget)
	r.setSpan(&e, t)
	r.events.PublishEvent(e)
}
