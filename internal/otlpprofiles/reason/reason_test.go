// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// textsOf returns a function that returns the texts of attributes, as profiles contain them.
func textsOf(attributes []attribute.KeyValue) func(key string) string {
	texts := map[string]string{}
	for _, a := range attributes {
		texts[string(a.Key)] = Text(a.Value)
	}
	return func(key string) string { return texts[key] }
}

// whole returns a reason whose fields all have a value.
func whole() Reason {
	at := time.Date(2026, 5, 28, 20, 26, 42, 500_000_001, time.UTC)
	return Reason{
		ID: "5f0e9a4e6a3b1c22", Unit: "0a1b", Policy: "cpu,memory", Kind: "hot", Monitor: "http_response_time", Condition: "http_response_time(percentile=95)",
		Value: 93.5, Threshold: 1e-3, Window: "30s average", Time: at, Until: at.Add(30 * time.Second), Phase: "both",
	}
}

func TestAReasonIsReadAsItWasWritten(t *testing.T) {
	want := whole()
	require.Len(t, want.Attributes(), 12, "each field is an attribute")
	require.Equal(t, want, From(textsOf(want.Attributes())))

	none := Reason{Value: math.NaN(), Threshold: math.NaN()}
	require.Empty(t, none.Attributes())
	got := From(textsOf(nil))
	require.Equal(t, fmt.Sprint(none), fmt.Sprint(got), "NaN does not equal itself")
}

// TestNumbersAreFinite covers numbers that cannot be sent to webhooks as JSON numbers.
func TestNumbersAreFinite(t *testing.T) {
	for text, want := range map[string][]attribute.KeyValue{
		"97.3": {attribute.Float64(attr.TriggerValue, 97.3)},
		"":     nil, "NaN": nil, "-Inf": nil, "1e999": nil, "high": nil,
	} {
		got := From(textsOf([]attribute.KeyValue{attribute.String(attr.TriggerValue, text)}))
		require.Equal(t, want, got.Attributes(), text)
	}
	require.Equal(t, "100000000000000000000000", Text(attribute.Float64Value(1e23)), "no exponent")
}

func TestTimesArePlausible(t *testing.T) {
	for _, text := range []string{"0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "now", ""} {
		require.Zero(t, From(textsOf([]attribute.KeyValue{attribute.String(attr.TriggerTime, text)})).Time, text)
	}
}

// TestAProfileOfAnOlderSender covers resources without the policy and the kind.
func TestAProfileOfAnOlderSender(t *testing.T) {
	none := textsOf(nil)
	for kind, attributes := range map[string][]attribute.KeyValue{
		"hot":      {attribute.String(attr.TriggerWindow, "30s average"), attribute.String(attr.TriggerPhase, "before")},
		"baseline": {attribute.String(attr.TriggerWindow, "30s average"), attribute.String(attr.TriggerPhase, "baseline")},
		"manual":   {attribute.String(attr.TriggerWindow, "manual"), attribute.String(attr.TriggerPhase, "after")},
		"alert":    {attribute.String(attr.TriggerWindow, "alert"), attribute.String(attr.TriggerPhase, "after")},
	} {
		got := FromProfile(textsOf(append(attributes, attribute.String(attr.TriggerPolicy, "cpu,memory"))), none)
		require.Equal(t, kind, got.Kind)
		require.Equal(t, "cpu", got.Policy, "the first policy opened the gate")
	}
	resource := textsOf([]attribute.KeyValue{attribute.String(attr.TriggerPolicy, "a,b"), attribute.String(attr.TriggerKind, "alert")})
	got := FromProfile(textsOf(whole().Attributes()), resource)
	require.Equal(t, "a,b", got.Policy, "the resource has one policy")
	require.Equal(t, "alert", got.Kind)
}

func TestRound(t *testing.T) {
	for f, want := range map[float64]float64{93.45678: 93.457, 0.0004: 0, -1.0006: -1.001} {
		require.Equal(t, want, Round(f))
	}
}

// FuzzFrom checks that the attributes of any reason are read as they were written, whatever
// the attributes were from which the reason was read.
func FuzzFrom(f *testing.F) {
	f.Add("cpu,memory", "93.5", "80", "30s average", "2026-05-28T20:26:42.5Z", "2026-05-28T20:27:12+02:00")
	f.Add("", "1e999", "NaN", "manual", "2200-12-31T23:59:59-12:00", "0001-01-01T00:00:00Z")
	f.Fuzz(func(t *testing.T, text, value, threshold, window, at, until string) {
		from := map[string]string{
			attr.TriggerValue: value, attr.TriggerThreshold: threshold, attr.TriggerWindow: window,
			attr.TriggerTime: at, attr.TriggerUntil: until,
		}
		get := func(key string) string {
			if v, ok := from[key]; ok {
				return v
			}
			return text
		}
		first := From(get)
		for _, a := range first.Attributes() {
			require.NotEmpty(t, Text(a.Value))
		}
		require.Equal(t, first.Attributes(), From(textsOf(first.Attributes())).Attributes())
		require.NotEmpty(t, FromProfile(get, get).Kind)
	})
}
