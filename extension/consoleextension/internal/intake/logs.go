// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package intake converts OTLP data and puts it into the store. It accepts events of gates
// and policies, readings of units, profiles, and the metrics and logs of collectors. All
// other data is ignored.
package intake

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/reason"
)

// maxRead is the maximum number of attributes that are read from a resource or record.
// The store keeps fewer attributes.
const maxRead = 128

// Logs puts events, and the logs of collectors, into the store. It returns when the
// events are on disk or the context ends.
func Logs(ctx context.Context, to *store.Store, ld plog.Logs) error {
	for _, rl := range ld.ResourceLogs().All() {
		resource := textsOf(rl.Resource().Attributes())
		collector := instanceOf(resource)
		for _, sl := range rl.ScopeLogs().All() {
			var own ownLogs
			for _, r := range sl.LogRecords().All() {
				if !event(to, resource, r) && isCollector(sl.Scope().Name()) && collector.ID != "" {
					own.add(sl.Scope(), r)
				}
			}
			if len(own.logs) > 0 {
				to.PutLogs(collector, own.logs, own.starts)
			}
		}
	}
	return to.Commit(ctx)
}

// event puts an event of hotprofile into the store. It returns false for other records.
func event(to *store.Store, resource map[string]string, r plog.LogRecord) bool {
	name := r.EventName()
	if name == "" {
		name = text(r.Attributes(), attr.OldEventName)
	}
	of := store.Unit{Host: resource[attr.HostName], Name: text(r.Attributes(), attr.Unit), Resource: resource}
	at := timeOf(r)
	switch name {
	case hotunitsextension.GateOpened, hotunitsextension.GateClosed:
		to.PutOpening(opening(of, r, name == hotunitsextension.GateClosed, at))
	case hotunitsextension.GateRequests:
		to.PutOpening(store.Opening{ID: text(r.Attributes(), attr.TriggerID), Unit: of, Requests: requests(list(r.Attributes(), attr.Requests))})
	case hotunitsextension.GateNotOpened:
		to.PutRefusal(refusal(of, r, at))
	case hotunitsextension.PoliciesChanged:
		to.PutPolicyChange(store.PolicyChange{
			At: at, Host: of.Host, From: text(r.Attributes(), attr.PoliciesFrom), Version: text(r.Attributes(), attr.PoliciesVersion),
			Added:   list(r.Attributes(), attr.PoliciesAdded),
			Removed: list(r.Attributes(), attr.PoliciesRemoved),
			Changed: list(r.Attributes(), attr.PoliciesChanged),
		})
	case hotunitsextension.PolicyUnmatched:
		to.PutPolicyChange(store.PolicyChange{At: at, Host: of.Host, Unmatched: text(r.Attributes(), attr.TriggerPolicy), Why: text(r.Attributes(), attr.GateWhy)})
	default:
		return strings.HasPrefix(name, attr.Prefix)
	}
	return true
}

// reasonOf returns the reason that an event contains.
func reasonOf(r plog.LogRecord) reason.Reason {
	return reason.From(func(key string) string { return text(r.Attributes(), key) })
}

// opening converts an event to an opening.
func opening(of store.Unit, r plog.LogRecord, closed bool, at time.Time) store.Opening {
	a, o := r.Attributes(), openingOf(of, reasonOf(r))
	o.Triggered, o.Traces = at, list(a, attr.TriggerTraces)
	o.TraceID, o.SpanID = r.TraceID().String(), r.SpanID().String() // empty without a span
	if closed {
		o.Closed, o.Why = at, text(a, attr.GateWhy)
		o.Triggered = at.Add(-seconds(numberAt(a, attr.GateDuration)))
		o.Samples, o.Bytes = int64(numberAt(a, attr.GateSamples)), int64(numberAt(a, attr.GateBytes))
		o.NothingExported = text(a, attr.GateNothingExported)
	}
	return o
}

// requests decodes requests, and omits invalid requests.
func requests(list []string) (all []store.Request) {
	for _, text := range list {
		var r store.Request
		if json.Unmarshal([]byte(text), &r) == nil {
			all = append(all, r)
		}
	}
	return all
}

func refusal(of store.Unit, r plog.LogRecord, at time.Time) store.Refusal {
	why := reasonOf(r)
	return store.Refusal{
		At: at, Unit: of, Policy: why.Policy, Kind: why.Kind, Monitor: why.Monitor, Window: why.Window,
		Value: known(why.Value), Threshold: known(why.Threshold),
		Why: text(r.Attributes(), attr.GateWhy), Budget: text(r.Attributes(), attr.GateBudget),
	}
}

// ownLogs collects the log records of one scope that a collector wrote about itself.
type ownLogs struct {
	logs   []store.Log
	starts bool // the collector has started
}

// add adds a log record. It omits the attributes that describe the source location.
func (o *ownLogs) add(scope pcommon.InstrumentationScope, r plog.LogRecord) {
	l := store.Log{
		At: timeOf(r), Severity: severity(r), Body: r.Body().AsString(), Attributes: textsOf(r.Attributes()),
		Component: strings.TrimSpace(text(scope.Attributes(), attr.ComponentKind) + " " + text(scope.Attributes(), attr.ComponentID)),
	}
	maps.DeleteFunc(l.Attributes, func(k, _ string) bool { return strings.HasPrefix(k, "code.") })
	if _, ok := l.Attributes["Version"]; ok && l.Component == "" && strings.HasPrefix(l.Body, "Starting ") {
		o.logs, o.starts = nil, true
	}
	o.logs = append(o.logs, l)
}

// severity returns the severity of a record, such as DEBUG, INFO, WARN, ERROR or FATAL.
func severity(r plog.LogRecord) string {
	if name := r.SeverityNumber().String(); r.SeverityNumber() > plog.SeverityNumberUnspecified && name != "" {
		return strings.ToUpper(strings.TrimRight(name, "234"))
	}
	return strings.ToUpper(r.SeverityText())
}

// isCollector reports whether a scope belongs to a collector's own telemetry.
func isCollector(scope string) bool {
	return strings.HasPrefix(scope, "go.opentelemetry.io/collector/") || strings.HasPrefix(scope, "github.com/hotprofile/")
}

// instanceOf returns the collector that a resource describes. The ID is empty if the
// resource contains neither service.instance.id nor host.name.
func instanceOf(resource map[string]string) store.Instance {
	i := store.Instance{
		ID: resource[attr.ServiceInstanceID], Host: resource[attr.HostName], Service: resource[attr.ServiceName],
		Version: resource[attr.ServiceVersion],
	}
	if i.ID == "" && i.Host != "" {
		i.ID = i.Service + "@" + i.Host
	}
	return i
}

func timeOf(r plog.LogRecord) time.Time {
	if t := r.Timestamp(); t != 0 {
		return t.AsTime()
	}
	return r.ObservedTimestamp().AsTime()
}

// textsOf converts at most maxRead attributes to strings.
func textsOf(m pcommon.Map) map[string]string {
	out := make(map[string]string, min(m.Len(), maxRead))
	for k, v := range m.All() {
		if len(out) == maxRead {
			break
		}
		out[k] = v.AsString()
	}
	return out
}

func text(m pcommon.Map, key string) string {
	if v, ok := m.Get(key); ok {
		return v.AsString()
	}
	return ""
}

func numberAt(m pcommon.Map, key string) float64 { return known(reason.Number(text(m, key))) }

// known returns 0 for a number that is not known, because the store has no NaN.
func known(f float64) float64 {
	if math.IsNaN(f) {
		return 0
	}
	return f
}

// seconds converts a number of seconds to a duration of at most one year.
func seconds(f float64) time.Duration {
	const most = 365 * 24 * 3600
	if !(f > 0) {
		return 0
	}
	return time.Duration(min(f, most) * float64(time.Second))
}

func list(m pcommon.Map, key string) []string {
	v, ok := m.Get(key)
	if !ok {
		return nil
	}
	if v.Type() != pcommon.ValueTypeSlice {
		return []string{v.AsString()}
	}
	var out []string
	for _, e := range v.Slice().All() {
		if len(out) == maxRead {
			break
		}
		out = append(out, e.AsString())
	}
	return out
}
