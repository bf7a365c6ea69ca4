// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// FuzzTraces checks that no batch of traces can crash the intake.
func FuzzTraces(f *testing.F) {
	r := newRig(f, Condition{Monitor: "http_error_rate"})
	sampled := old(500, time.Second)
	sampled.state = "ot=th:8"
	for _, s := range []span{stable(200, time.Second), sampled} {
		b, err := (&ptrace.ProtoMarshaler{}).MarshalTraces(r.traces(container, s))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		td, err := (&ptrace.ProtoUnmarshaler{}).UnmarshalTraces(b)
		if err != nil {
			t.Skip()
		}
		for _, rs := range td.ResourceSpans().All() {
			require.NoError(t, rs.Resource().Attributes().FromRaw(container))
			for _, ss := range rs.ScopeSpans().All() {
				for _, s := range ss.Spans().All() {
					s.SetKind(ptrace.SpanKindServer)
				}
			}
		}
		r := newRig(
			t, Condition{Monitor: "http_error_rate", URI: URI{Regex: "a|b"}}, Condition{Monitor: "http_response_time", Percentile: 99}, Condition{Monitor: "rpc_avg_response_time"},
			Condition{Monitor: "rpc_error_rate", Methods: []string{"GET"}}, Condition{Monitor: "http_request_rate"},
		)
		r.in.ObserveTraces(td)
		for _, out := range r.tick(2 * time.Second) {
			if out.Err == nil {
				require.False(t, math.IsNaN(out.Reading.Num) || math.IsInf(out.Reading.Num, 0) || out.Reading.Num < 0)
			}
		}
	})
}
