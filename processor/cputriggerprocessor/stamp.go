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
	"github.com/hotprofile/hotprofile/internal/trigger"
)

// reason is why profiles were let out: the openings that did, the one that fired
// first in front, and where their capture lies against that one's trigger.
type reason struct {
	openings []*trigger.Opening
	phase    trigger.Phase
	indices  []int32 // of its attributes, once they are in the dictionary
}

// entry is one of the attribute table: a string or a number.
type entry struct {
	key, text string
	number    float64
}

func (r *reason) attributes() []entry {
	first := r.openings[0]
	window := first.Window
	if first.Manual {
		window = trigger.Manual
	}
	policies := make([]string, len(r.openings))
	for i, o := range r.openings {
		policies[i] = o.Policy
	}
	return []entry{
		{key: attr.TriggerPolicy, text: strings.Join(policies, ",")},
		{key: attr.TriggerID, text: first.ID},
		{key: attr.Unit, text: first.Unit},
		{key: attr.TriggerMonitor, text: first.Monitor},
		{key: attr.TriggerValue, number: first.Value},
		{key: attr.TriggerThreshold, number: first.Threshold},
		{key: attr.TriggerWindow, text: window},
		{key: attr.TriggerTime, text: first.FiredAt.UTC().Format(time.RFC3339Nano)},
		{key: attr.TriggerUntil, text: first.Until.UTC().Format(time.RFC3339Nano)},
		{key: attr.TriggerPhase, text: string(r.phase)},
	}
}

// maxFew is how many attributes are looked for one by one: those of a few
// reasons.
const maxFew = 40

// stamper puts reasons on profiles and their attributes into the dictionary,
// each once. It is used again for other batches.
type stamper struct {
	dictionary pprofile.ProfilesDictionary
	reasons    []reason
	keys       []placed[string] // of those that may be stamped, the ones in the string table
	few        []placed[entry]  // in the attribute table
	known      map[entry]int32  // likewise, once they are more than a few
}

// placed is something in a table of the dictionary.
type placed[T comparable] struct {
	what T
	at   int32
}

func find[T comparable](list []placed[T], what T) (at int32, ok bool) {
	for i := range list {
		if list[i].what == what {
			return list[i].at, true
		}
	}
	return 0, false
}

// begin looks which of the attributes' keys a dictionary already has: a clean one
// has none.
func (s *stamper) begin(d pprofile.ProfilesDictionary, clean bool) {
	s.dictionary = d
	if d.StringTable().Len() == 0 {
		d.StringTable().Append("")
	}
	if d.AttributeTable().Len() == 0 {
		d.AttributeTable().AppendEmpty()
	}
	if clean {
		return
	}
	for i, str := range d.StringTable().All() {
		if i > 0 && isReason(str) {
			s.keys = append(s.keys, placed[string]{str, int32(i)})
		}
	}
	if len(s.keys) == 0 {
		return
	}
	for i, a := range d.AttributeTable().All() {
		k := int(a.KeyStrindex())
		if i == 0 || k <= 0 || k >= d.StringTable().Len() || a.UnitStrindex() != 0 {
			continue
		}
		if key := d.StringTable().At(k); isReason(key) {
			switch v := a.Value(); v.Type() {
			case pcommon.ValueTypeStr:
				s.remember(entry{key: key, text: v.Str()}, int32(i))
			case pcommon.ValueTypeDouble:
				s.remember(entry{key: key, number: v.Double()}, int32(i))
			}
		}
	}
}

// end lets go of the batch.
func (s *stamper) end() {
	clear(s.reasons)
	clear(s.keys)
	clear(s.few)
	*s = stamper{reasons: s.reasons[:0], keys: s.keys[:0], few: s.few[:0]}
}

func (s *stamper) remember(a entry, at int32) {
	if s.known == nil && len(s.few) < maxFew {
		s.few = append(s.few, placed[entry]{a, at})
		return
	}
	if s.known == nil {
		s.known = map[entry]int32{}
		for _, p := range s.few {
			s.known[p.what] = p.at
		}
	}
	s.known[a] = at
}

func (s *stamper) find(a entry) (at int32, ok bool) {
	if s.known == nil {
		return find(s.few, a)
	}
	at, ok = s.known[a]
	return at, ok
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
	for _, a := range r.attributes() {
		if a.text == "" && !isNumber(a.key) { // a baseline without readings
			continue
		}
		r.indices = append(r.indices, s.attribute(a))
	}
	return r
}

func (s *stamper) attribute(a entry) int32 {
	if i, ok := s.find(a); ok {
		return i
	}
	key, ok := find(s.keys, a.key)
	if !ok {
		key = int32(s.dictionary.StringTable().Len())
		s.dictionary.StringTable().Append(a.key)
		s.keys = append(s.keys, placed[string]{a.key, key})
	}
	i := int32(s.dictionary.AttributeTable().Len())
	out := s.dictionary.AttributeTable().AppendEmpty()
	out.SetKeyStrindex(key)
	if !isNumber(a.key) {
		out.Value().SetStr(a.text)
	} else {
		out.Value().SetDouble(a.number)
	}
	s.remember(a, i)
	return i
}

// isReason says whether an attribute is one that a gate stamps.
func isReason(key string) bool {
	return key == attr.Unit || strings.HasPrefix(key, attr.TriggerPrefix)
}

// hasReason says whether some profile may have been stamped by another gate.
func hasReason(d pprofile.ProfilesDictionary) bool {
	for _, s := range d.StringTable().All() {
		if isReason(s) {
			return true
		}
	}
	return false
}

func isNumber(key string) bool { return key == attr.TriggerValue || key == attr.TriggerThreshold }

// setServiceName names the service of a resource that has no service.name.
func setServiceName(attributes pcommon.Map) {
	if v, ok := attributes.Get(attr.ServiceName); ok && v.AsString() != "" {
		return
	}
	name := unknownService
	if v, ok := attributes.Get(attr.ExecutableName); ok && v.Str() != "" {
		name += ":" + v.Str()
	}
	attributes.PutStr(attr.ServiceName, name)
}

// unknownService is what a service is called that has no name, followed by its
// executable's.
const unknownService = "unknown_service"
