// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
)

// reason is why profiles pass: the openings of the gate, the one that fired first
// in front, and where the capture lies in time against that one's trigger.
type reason struct {
	openings []*trigger.Opening
	phase    trigger.Phase
	indices  []int32 // of its attributes in the dictionary
}

// stamper puts reasons on profiles, and their attributes into the dictionary. It is
// used again for other batches.
type stamper struct {
	dictionary dictionary.Appender
	reasons    []reason
}

// begin begins a batch with the dictionary d. clean: no key of a reason is in d.
func (s *stamper) begin(d pprofile.ProfilesDictionary, clean bool) {
	reuse := isReason
	if clean {
		reuse = nil
	}
	s.dictionary.Reset(d, reuse)
}

// end releases the batch.
func (s *stamper) end() {
	clear(s.reasons)
	s.reasons = s.reasons[:0]
	s.dictionary.Release()
}

// stamp puts the reason of its openings on a profile captured in [start, end).
func (s *stamper) stamp(p pprofile.Profile, openings []*trigger.Opening, start, end time.Time) {
	p.AttributeIndices().Append(s.reason(openings, openings[0].Phase(start, end)).indices...)
}

// reason finds or adds one. There are few in a batch.
func (s *stamper) reason(openings []*trigger.Opening, phase trigger.Phase) *reason {
	for i := range s.reasons {
		if r := &s.reasons[i]; r.phase == phase && slices.Equal(r.openings, openings) {
			return r
		}
	}
	s.reasons = append(s.reasons, reason{openings: openings, phase: phase})
	r := &s.reasons[len(s.reasons)-1]
	s.add(r)
	return r
}

// add puts the attributes of a reason into the dictionary.
func (s *stamper) add(r *reason) {
	first := r.openings[0]
	window := first.Window
	if first.Manual {
		window = trigger.Manual
	}
	policies := make([]string, len(r.openings))
	for i, o := range r.openings {
		policies[i] = o.Policy
	}
	text := func(key, value string) {
		if value != "" { // a baseline without readings has none
			r.indices = append(r.indices, s.dictionary.Attribute(key, dictionary.Str(value)))
		}
	}
	number := func(key string, value float64) {
		r.indices = append(r.indices, s.dictionary.Attribute(key, dictionary.Double(value)))
	}
	text(attr.TriggerPolicy, strings.Join(policies, ","))
	text(attr.TriggerID, first.ID)
	text(attr.Unit, first.Unit)
	text(attr.TriggerMonitor, first.Monitor)
	number(attr.TriggerValue, first.Value)
	number(attr.TriggerThreshold, first.Threshold)
	text(attr.TriggerWindow, window)
	text(attr.TriggerTime, first.FiredAt.UTC().Format(time.RFC3339Nano))
	text(attr.TriggerUntil, first.Until.UTC().Format(time.RFC3339Nano))
	text(attr.TriggerPhase, string(r.phase))
}

// isReason reports whether a gate stamps attributes with the key.
func isReason(key string) bool {
	return key == attr.Unit || strings.HasPrefix(key, attr.TriggerPrefix)
}

// hasReason reports whether another gate may have stamped a profile.
func hasReason(d pprofile.ProfilesDictionary) bool {
	for _, s := range d.StringTable().All() {
		if isReason(s) {
			return true
		}
	}
	return false
}

// setServiceName sets service.name on a resource that has none.
func setServiceName(attributes pcommon.Map) {
	if v, ok := attributes.Get(attr.ServiceName); ok && v.AsString() != "" {
		return
	}
	name := identify.UnknownService
	if v, ok := attributes.Get(attr.ExecutableName); ok && v.Str() != "" {
		name += ":" + v.Str()
	}
	attributes.PutStr(attr.ServiceName, name)
}

// processAttributes are the resource attributes that differ between processes of
// one program. Backends make a series of each combination of resource
// attributes, so these are removed from what leaves, except those listed in
// keep_process_attributes. Names are those of the semantic conventions 1.43.
var processAttributes = []string{
	attr.Command,
	attr.CommandArgs,
	attr.CommandLine,
	attr.CreationTime,
	attr.ExecutablePath,
	attr.GroupLeaderPID,
	attr.Interactive,
	attr.Cgroup,
	attr.ParentPID,
	attr.PID,
	attr.SessionLeaderPID,
	attr.Title,
	attr.VPID,
	attr.WorkingDirectory,
}

// attributeFilter removes process attributes from resources.
type attributeFilter map[string]bool // names to remove

// newAttributeFilter returns a filter that removes processAttributes except keep.
func newAttributeFilter(keep []string) attributeFilter {
	remove := attributeFilter{}
	for _, name := range processAttributes {
		if !slices.Contains(keep, name) {
			remove[name] = true
		}
	}
	return remove
}

func (f attributeFilter) apply(resource pcommon.Map) {
	resource.RemoveIf(func(name string, _ pcommon.Value) bool { return f[name] })
}

// applyTo is apply for one attribute alone.
func (f attributeFilter) applyTo(resource pcommon.Map, name string) {
	if f[name] {
		resource.Remove(name)
	}
}
