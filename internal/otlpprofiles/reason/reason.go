// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package reason defines why a gate opened or stayed shut, and the attributes of profiles
// and of events that contain the reason.
package reason

import (
	"cmp"
	"math"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/trigger"
)

// Reason is why a gate opened or stayed shut. Empty texts, zero times and the number NaN
// have no attribute.
type Reason struct {
	ID, Unit string
	// Policy is the policy that opened the gate. In the attributes of a profile, the names
	// of the other policies that hold the gate open follow, after commas.
	Policy string
	Kind   string // hot, baseline, manual or alert
	// Monitor and Condition are the monitor without and with its parameters.
	Monitor, Condition string
	Value, Threshold   float64
	Window             string
	Time, Until        time.Time
	Phase              string
}

// field is an attribute and the field of a Reason that contains its value.
type field struct {
	key   string
	value any // *string, *float64 or *time.Time
}

// fields returns the attributes in the order in which they are written.
func (r *Reason) fields() [12]field {
	return [...]field{
		{attr.TriggerPolicy, &r.Policy},
		{attr.TriggerID, &r.ID},
		{attr.TriggerKind, &r.Kind},
		{attr.Unit, &r.Unit},
		{attr.TriggerMonitor, &r.Monitor},
		{attr.TriggerCondition, &r.Condition},
		{attr.TriggerValue, &r.Value},
		{attr.TriggerThreshold, &r.Threshold},
		{attr.TriggerWindow, &r.Window},
		{attr.TriggerTime, &r.Time},
		{attr.TriggerUntil, &r.Until},
		{attr.TriggerPhase, &r.Phase},
	}
}

// Put calls a function with each attribute of a reason. Numbers are numbers, as in events.
func (r Reason) Put(put func(attribute.KeyValue)) {
	for _, f := range r.fields() {
		switch v := f.value.(type) {
		case *string:
			if *v != "" {
				put(attribute.String(f.key, *v))
			}
		case *float64:
			if finite(*v) {
				put(attribute.Float64(f.key, *v))
			}
		case *time.Time:
			if !v.IsZero() {
				put(attribute.String(f.key, v.UTC().Format(time.RFC3339Nano)))
			}
		}
	}
}

// Attributes returns the attributes of a reason.
func (r Reason) Attributes() (out []attribute.KeyValue) {
	r.Put(func(a attribute.KeyValue) { out = append(out, a) })
	return out
}

// Text returns the value of an attribute as profiles contain it. Numbers are texts, because
// backends drop attributes of other types.
func Text(v attribute.Value) string {
	if v.Type() == attribute.FLOAT64 {
		return strconv.FormatFloat(v.AsFloat64(), 'f', -1, 64)
	}
	return v.AsString()
}

// From returns the reason that attributes contain. get returns the text of an attribute, or
// an empty text. Numbers and times that are not valid are unknown.
func From(get func(key string) string) (r Reason) {
	for _, f := range r.fields() {
		text := get(f.key)
		switch v := f.value.(type) {
		case *string:
			*v = text
		case *float64:
			*v = Number(text)
		case *time.Time:
			if t, err := time.Parse(time.RFC3339, text); err == nil && t.UTC().Year() >= 1970 && t.UTC().Year() <= 2200 {
				*v = t
			}
		}
	}
	return r
}

// FromProfile returns the reason of a profile. Its resource contains the policy that opened
// the gate, and the kind. If they are missing, the attributes of the profile imply them.
func FromProfile(profile, resource func(key string) string) Reason {
	r := From(profile)
	first, _, _ := strings.Cut(r.Policy, ",")
	r.Policy, r.Kind = cmp.Or(resource(attr.TriggerPolicy), first), resource(attr.TriggerKind)
	switch {
	case r.Kind != "":
	case r.Window == string(trigger.ManualKind) || r.Window == string(trigger.AlertKind):
		r.Kind = r.Window
	case r.Phase == string(trigger.BaselinePhase):
		r.Kind = string(trigger.BaselineKind)
	default:
		r.Kind = string(trigger.HotKind)
	}
	return r
}

// Number returns the finite number that a text contains, or NaN.
func Number(text string) float64 {
	if f, err := strconv.ParseFloat(text, 64); err == nil && finite(f) {
		return f
	}
	return math.NaN()
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// Round rounds a number to three decimal places. Values of monitors are rounded before they
// are written.
func Round(f float64) float64 { return math.Round(f*1000) / 1000 }
