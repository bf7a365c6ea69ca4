// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
)

// maxWeight limits the number of requests that one sampled span represents.
const maxWeight = 1 << 20

// request contains those attributes of a span or a data point that describe the request.
type request struct {
	protocol
	method, service string // the method of RPC may include the service
	route, path     string
	status          int // negative if not known
	failed          bool
	weight          float64
}

// ObserveTraces counts server spans for the conditions.
func (in *Intake) ObserveTraces(td ptrace.Traces) {
	in.join.spans.Store(true)
	if in.plan.Load().protocols == [3]bool{} && !in.join.links.Load() {
		return
	}
	now := in.cfg.Now()
	var counts counters.Items
	for _, rs := range td.ResourceSpans().All() {
		in.observeSpans(rs, now, &counts)
	}
	in.cfg.Counters.AddItems(&counts)
}

func (in *Intake) observeSpans(rs ptrace.ResourceSpans, now time.Time, counts *counters.Items) {
	var s *source
	sought := false
	for _, scope := range rs.ScopeSpans().All() {
		for _, span := range scope.Spans().All() {
			if span.Kind() != ptrace.SpanKindServer {
				continue
			}
			if !sought {
				sought = true
				if s = in.source(rs.Resource().Attributes(), now); s != nil {
					defer s.mu.Unlock()
				}
			}
			if s == nil {
				counts[counters.ItemOverLimit]++
				continue
			}
			counts[in.observeSpan(s, span, now)]++
		}
	}
}

func (in *Intake) observeSpan(s *source, span ptrace.Span, now time.Time) counters.ItemOutcome {
	p, r := s.plan, in.readSpan(span)
	in.join.add(s, span, &r)
	if p == nil { // an unmatched source has no plan
		p = in.plan.Load()
	}
	if !p.protocols[r.protocol] {
		return counters.ItemIgnored
	}
	if s.unmatched || s.gone {
		return counters.ItemUnmatched
	}
	start, end := int64(span.StartTimestamp()), int64(span.EndTimestamp())
	if !timely(end, now) {
		in.logBad("spans ended long before or after they came")
		return counters.ItemLate
	}
	ms := float64(end-start) / 1e6
	known := start > 0 && ms >= 0
	outcome := counters.ItemOK
	if !known {
		in.logBad("spans end before they start")
		outcome = counters.ItemInvalid
	}
	uri := p.matchesOf(&r)
	counted := false
	for i := range p.selections {
		sel := &p.selections[i]
		if !sel.has(&r, uri) || now.Before(s.counts[i].byMetric) {
			continue
		}
		counted = true
		t := &s.counts[i].tally
		t.items++
		t.seen++
		t.requests += r.weight
		t.rated += r.weight
		if sel.statuses.has(r.code()) {
			t.failed += r.weight
			t.failure = exemplar{spanOf(span), ms}
		}
		if !known {
			continue
		}
		t.timed += r.weight
		t.sum += ms * r.weight
		if sel.values {
			t.values.add(ms, r.weight)
		}
		t.slowest.keep(exemplar{spanOf(span), ms})
	}
	if !counted {
		return counters.ItemIgnored
	}
	return outcome
}

func spanOf(span ptrace.Span) Span { return Span{span.TraceID(), span.SpanID()} }

// timely reports whether a time is close to now. It returns true for a missing time.
func timely(at int64, now time.Time) bool {
	if at == 0 {
		return true
	}
	ago := now.UnixNano() - at
	return at > 0 && ago <= int64(maxLate) && ago >= -int64(maxAhead)
}

// logBad logs the reason why telemetry is not counted. It logs each reason once.
func (in *Intake) logBad(why string) {
	if in.first(why) {
		in.cfg.Log.Warn("telemetry not counted", zap.String("why", why))
	}
}

// has reports whether a selection includes a request. uri contains the bits of the patterns
// that match the route or path.
func (s *selection) has(r *request, uri uint64) bool {
	if s.protocol != r.protocol || s.uri != 0 && uri&s.uri == 0 {
		return false
	}
	return len(s.methods) == 0 || slices.ContainsFunc(s.methods, r.isMethod)
}

func (r *request) isMethod(name string) bool {
	if r.protocol == overHTTP {
		return strings.EqualFold(name, r.method)
	}
	return name == r.method || strings.HasSuffix(r.method, "/"+name)
}

// code returns the status of a request. A failed request without a status counts as HTTP
// status 500 or as gRPC code UNKNOWN.
func (r *request) code() int {
	switch {
	case r.status >= 0:
		return r.status
	case !r.failed:
		return -1
	case r.protocol == overHTTP:
		return httpInternal
	}
	return grpcUnknown
}

// readSpan reads the attributes of a span. It supports the old and the stable semantic
// conventions.
func (in *Intake) readSpan(span ptrace.Span) request {
	r := request{status: -1, weight: 1}
	rejected := ""
	for k, v := range span.Attributes().All() {
		if k == attr.SamplingThreshold {
			rejected = v.Str()
			continue
		}
		r.read(k, v)
	}
	if r.protocol == noProtocol {
		return r
	}
	r.finish()
	r.failed = r.failed || span.Status().Code() == ptrace.StatusCodeError
	if state := span.TraceState().AsRaw(); state != "" {
		if th, ok := threshold(state); ok {
			rejected = th
		}
	}
	if rejected != "" {
		if r.weight = weightOf(rejected); r.weight != 1 && in.first("sampled") {
			in.cfg.Log.Info("spans are sampled: each counts as the requests that it stands for")
		}
	}
	return r
}

// read reads one attribute.
func (r *request) read(k string, v pcommon.Value) {
	switch k {
	case attr.HTTPMethod, attr.OldHTTPMethod:
		if r.protocol == noProtocol {
			r.protocol, r.method = overHTTP, v.Str()
		}
	case attr.HTTPStatus, attr.OldHTTPStatus:
		if n := number(v); n >= 100 && n < 600 {
			r.status = n
		}
	case attr.HTTPRoute:
		r.route = v.Str()
	case attr.URLPath:
		r.path = v.Str()
	case attr.OldHTTPTarget:
		if r.path == "" {
			r.path, _, _ = strings.Cut(v.Str(), "?")
		}
	case attr.OldHTTPURL:
		if r.path == "" {
			r.path = pathOf(v.Str())
		}
	case attr.RPCSystem, attr.OldRPCSystem:
		r.protocol = overRPC
	case attr.OldRPCService:
		r.service = v.Str()
	case attr.RPCMethod:
		r.method = v.Str()
	case attr.OldGRPCStatus:
		if n := number(v); n >= 0 && n < len(grpcCodes) {
			r.status = n
		}
	case attr.RPCStatus, attr.OldConnectStatus:
		if n := grpcCode(v.Str()); n >= 0 {
			r.status = n
		} else {
			r.failed = r.failed || k == attr.OldConnectStatus
		}
	case attr.ErrorType:
		r.failed = true
	}
}

// finish completes a request after its attributes have been read.
func (r *request) finish() {
	if r.protocol != overRPC {
		return
	}
	if r.service != "" && !strings.Contains(r.method, "/") && len(r.service)+len(r.method) < maxURI {
		r.method = r.service + "/" + r.method
	}
	r.route, r.path = r.method, ""
	if r.status < 0 && !r.failed {
		r.status = 0
	}
}

func number(v pcommon.Value) int {
	switch v.Type() {
	case pcommon.ValueTypeInt:
		if n := v.Int(); n >= 0 && n < 1000 {
			return int(n)
		}
	case pcommon.ValueTypeStr:
		if n, err := strconv.Atoi(v.Str()); err == nil {
			return n
		}
	}
	return -1
}

// pathOf returns the path of a URL.
func pathOf(url string) string {
	if _, rest, ok := strings.Cut(url, "://"); ok {
		if i := strings.IndexByte(rest, '/'); i >= 0 {
			url = rest[i:]
		} else {
			url = "/"
		}
	}
	url, _, _ = strings.Cut(url, "?")
	url, _, _ = strings.Cut(url, "#")
	return url
}

// threshold returns the rejection threshold (th) from the ot entry of a trace state.
func threshold(state string) (string, bool) {
	for member := range strings.SplitSeq(state, ",") {
		value, ok := strings.CutPrefix(strings.TrimSpace(member), "ot=")
		if !ok {
			continue
		}
		for field := range strings.SplitSeq(value, ";") {
			if th, ok := strings.CutPrefix(field, "th:"); ok {
				return th, true
			}
		}
	}
	return "", false
}

// weightOf returns the number of spans that one sampled span represents. The rejection
// threshold th is a fraction of up to 14 hexadecimal digits. If th is invalid, the weight
// is 1.
func weightOf(th string) float64 {
	if th == "" || len(th) > 14 {
		return 1
	}
	n, err := strconv.ParseUint(th, 16, 64)
	if err != nil {
		return 1
	}
	n <<= 4 * (14 - len(th))
	const all = 1 << 56
	return min(all/float64(all-n), maxWeight)
}
