// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package attributes sets the attributes of profiles that leave, which say why they
// do, and removes those that identify one process.
package attributes

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
)

// reason explains why profiles pass: the openings of the gate, the one that fired first
// in front, and where the capture lies in time against that one's trigger.
type reason struct {
	openings []*trigger.Opening
	phase    trigger.Phase
	indices  []int32 // of its attributes in the dictionary
	labels   int32   // index in Stamper.labels
}

// labels are the attributes of a reason that are on the resource: backends make a
// series of each set.
type labels []label

type label struct{ key, value string }

// OfReason are the attributes of a reason that may be on the resource too, beside
// its policy and kind.
var OfReason = []string{
	attr.Unit,
	attr.TriggerID,
	attr.TriggerMonitor,
	attr.TriggerPhase,
	attr.TriggerThreshold,
	attr.TriggerTime,
	attr.TriggerUntil,
	attr.TriggerValue,
	attr.TriggerWindow,
}

// Stamper puts reasons on profiles, and their attributes into the dictionary. It is
// used again for other batches.
type Stamper struct {
	OnResource []string // those of OfReason that are labels
	dictionary dictionary.Appender
	reasons    []reason
	labels     []labels
}

// Begin begins a batch with the dictionary d. clean: no key of a reason is in d.
func (s *Stamper) Begin(d pprofile.ProfilesDictionary, clean bool) {
	reuse := IsReason
	if clean {
		reuse = nil
	}
	s.dictionary.Reset(d, reuse)
}

// End releases the batch.
func (s *Stamper) End() {
	clear(s.reasons)
	s.reasons = s.reasons[:0]
	clear(s.labels)
	s.labels = s.labels[:0]
	s.dictionary.Release()
}

// Stamp puts the reason of its openings on a profile captured in [start, end), and
// returns its labels, which Label puts on the resource.
func (s *Stamper) Stamp(p pprofile.Profile, openings []*trigger.Opening, start, end time.Time) (labels int32) {
	r := s.reason(openings, openings[0].Phase(start, end))
	p.AttributeIndices().Append(r.indices...)
	return r.labels
}

// Label puts labels on a resource, in place of those of another gate.
func (s *Stamper) Label(resource pcommon.Map, labels int32) {
	resource.RemoveIf(func(key string, _ pcommon.Value) bool { return IsReason(key) })
	for _, l := range s.labels[labels] {
		resource.PutStr(l.key, l.value)
	}
}

// labelled finds or adds labels. There are few in a batch.
func (s *Stamper) labelled(l labels) int32 {
	for i := range s.labels {
		if slices.Equal(s.labels[i], l) {
			return int32(i)
		}
	}
	s.labels = append(s.labels, l)
	return int32(len(s.labels) - 1)
}

// reason finds or adds one. There are few in a batch.
func (s *Stamper) reason(openings []*trigger.Opening, phase trigger.Phase) *reason {
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
func (s *Stamper) add(r *reason) {
	first := r.openings[0]
	window := first.Window
	if first.Manual { // by hand or by alert
		window = string(first.Kind())
	}
	policies := make([]string, len(r.openings))
	for i, o := range r.openings {
		policies[i] = o.Policy
	}
	of := labels{{attr.TriggerPolicy, first.Policy}, {attr.TriggerKind, string(first.Kind())}}
	text := func(key, value string) {
		if value == "" { // a baseline without readings has none
			return
		}
		r.indices = append(r.indices, s.dictionary.Attribute(key, dictionary.Str(value)))
		if slices.Contains(s.OnResource, key) {
			of = append(of, label{key, value})
		}
	}
	// Numbers are text too: backends drop attributes of other types.
	number := func(key string, value float64) {
		text(key, strconv.FormatFloat(math.Round(value*1000)/1000, 'f', -1, 64))
	}
	text(attr.TriggerPolicy, strings.Join(policies, ","))
	text(attr.TriggerID, first.ID)
	text(attr.Unit, first.Unit)
	text(attr.TriggerMonitor, first.Monitor)
	number(attr.TriggerValue, first.Value)
	number(attr.TriggerThreshold, first.Threshold)
	text(attr.TriggerWindow, window)
	text(attr.TriggerTime, first.FiredAt.UTC().Format(time.RFC3339Nano))
	text(attr.TriggerUntil, first.Until().UTC().Format(time.RFC3339Nano))
	text(attr.TriggerPhase, string(r.phase))
	r.labels = s.labelled(of)
}

// IsReason reports whether a gate stamps attributes with the key.
func IsReason(key string) bool {
	return key == attr.Unit || strings.HasPrefix(key, attr.TriggerPrefix)
}

// HasReason reports whether another gate may have stamped a profile.
func HasReason(d pprofile.ProfilesDictionary) bool {
	for _, s := range d.StringTable().All() {
		if IsReason(s) {
			return true
		}
	}
	return false
}

// SetServiceName sets service.name on a resource that has none.
func SetServiceName(attributes pcommon.Map) {
	if v, ok := attributes.Get(attr.ServiceName); ok && v.AsString() != "" {
		return
	}
	name := identify.UnknownService
	if v, ok := attributes.Get(attr.ExecutableName); ok && v.Str() != "" {
		name += ":" + v.Str()
	}
	attributes.PutStr(attr.ServiceName, name)
}

// OfProcess are the resource attributes that differ between processes of
// one program. Backends make a series of each combination of resource
// attributes, so these are removed from what leaves, except those listed in
// keep_process_attributes. Names are those of the semantic conventions 1.43.
var OfProcess = []string{
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

// Filter removes process attributes from resources.
type Filter map[string]bool // names to remove

// NewFilter returns a filter that removes OfProcess except keep.
func NewFilter(keep []string) Filter {
	remove := Filter{}
	for _, name := range OfProcess {
		if !slices.Contains(keep, name) {
			remove[name] = true
		}
	}
	return remove
}

// ReferredTo reports whether a dictionary has the key of an attribute to remove, as
// one that was sent with references has: that string and the value's would stay.
func (f Filter) ReferredTo(d pprofile.ProfilesDictionary) bool {
	for _, s := range d.StringTable().All() {
		if strings.HasPrefix(s, "process.") && f[s] {
			return true
		}
	}
	return false
}

// Apply removes the attributes from a resource.
func (f Filter) Apply(resource pcommon.Map) {
	resource.RemoveIf(func(name string, _ pcommon.Value) bool { return f[name] })
}
