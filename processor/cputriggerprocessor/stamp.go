// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
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

// reason is why profiles pass: the openings of the gate, the one that fired first
// in front, and where the capture lies in time against that one's trigger.
type reason struct {
	openings []*trigger.Opening
	phase    trigger.Phase
	indices  []int32 // of its attributes in the dictionary
	labels   int32   // index in stamper.labels
}

// labels are the attributes of a reason that are on the resource: backends make a
// series of each set.
type labels []label

type label struct{ key, value string }

// reasonKeys are the attributes of a reason that may be on the resource too, beside
// its policy and kind.
var reasonKeys = []string{
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

// stamper puts reasons on profiles, and their attributes into the dictionary. It is
// used again for other batches.
type stamper struct {
	onResource []string // those of reasonKeys that are labels
	dictionary dictionary.Appender
	reasons    []reason
	labels     []labels
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
	clear(s.labels)
	s.labels = s.labels[:0]
	s.dictionary.Release()
}

// stamp puts the reason of its openings on a profile captured in [start, end), and
// returns its labels, which label puts on the resource.
func (s *stamper) stamp(p pprofile.Profile, openings []*trigger.Opening, start, end time.Time) (labels int32) {
	r := s.reason(openings, openings[0].Phase(start, end))
	p.AttributeIndices().Append(r.indices...)
	return r.labels
}

// label puts labels on a resource, in place of those of another gate.
func (s *stamper) label(resource pcommon.Map, labels int32) {
	resource.RemoveIf(func(key string, _ pcommon.Value) bool { return isReason(key) })
	for _, l := range s.labels[labels] {
		resource.PutStr(l.key, l.value)
	}
}

// labelled finds or adds labels. There are few in a batch.
func (s *stamper) labelled(l labels) int32 {
	for i := range s.labels {
		if slices.Equal(s.labels[i], l) {
			return int32(i)
		}
	}
	s.labels = append(s.labels, l)
	return int32(len(s.labels) - 1)
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
	of := labels{{attr.TriggerPolicy, first.Policy}, {attr.TriggerKind, string(first.Kind())}}
	text := func(key, value string) {
		if value == "" { // a baseline without readings has none
			return
		}
		r.indices = append(r.indices, s.dictionary.Attribute(key, dictionary.Str(value)))
		if slices.Contains(s.onResource, key) {
			of = append(of, label{key, value})
		}
	}
	// Numbers are text too: backends drop attributes of other types.
	number := func(key string, value float64) {
		text(key, strconv.FormatFloat(round(value), 'f', -1, 64))
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
	r.labels = s.labelled(of)
}

// split gives the profiles of a resource whose labels differ from its own a resource
// for each set of labels, at the end of the batch. The plan follows in its order.
func (p *plan) split(out pprofile.Profiles) {
	type part struct {
		of     pprofile.ResourceProfiles
		scopes []int   // of the profiles' scopes, in the resource that they leave
		order  [][]int // decisions of each
	}
	var order []int // of decisions in the batch
	var moved []*part
	i := -1
	for ri := range out.ResourceProfiles().Len() {
		rp, own, parts := out.ResourceProfiles().At(ri), int32(-1), map[int32]*part{}
		for si, sp := range rp.ScopeProfiles().All() {
			sp.Profiles().RemoveIf(func(profile pprofile.Profile) bool {
				i = p.nextLeaving(i)
				labels := p.decisions[i].labels
				if own < 0 && p.decisions[i].route == stamped {
					own = labels
				}
				if p.decisions[i].route != stamped || labels == own {
					order = append(order, i)
					return false
				}
				to := parts[labels]
				if to == nil {
					to = &part{of: out.ResourceProfiles().AppendEmpty()}
					rp.Resource().CopyTo(to.of.Resource())
					to.of.SetSchemaUrl(rp.SchemaUrl())
					p.stamper.label(to.of.Resource().Attributes(), labels)
					parts[labels] = to
					moved = append(moved, to)
				}
				if n := len(to.scopes); n == 0 || to.scopes[n-1] != si {
					scope := to.of.ScopeProfiles().AppendEmpty()
					sp.Scope().CopyTo(scope.Scope())
					scope.SetSchemaUrl(sp.SchemaUrl())
					to.scopes, to.order = append(to.scopes, si), append(to.order, nil)
				}
				n := len(to.scopes) - 1
				to.order[n] = append(to.order[n], i)
				profile.MoveTo(to.of.ScopeProfiles().At(n).Profiles().AppendEmpty())
				return true
			})
		}
		rp.ScopeProfiles().RemoveIf(func(sp pprofile.ScopeProfiles) bool { return sp.Profiles().Len() == 0 })
	}
	for _, m := range moved {
		order = append(order, slices.Concat(m.order...)...)
	}
	decisions, admissions := slices.Clone(p.decisions), slices.Clone(p.admissions)
	i = -1
	for _, from := range order {
		i = nextLeaving(decisions, i)
		p.decisions[i], p.admissions[i] = decisions[from], admissions[from]
	}
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

// referredTo reports whether a dictionary has the key of an attribute to remove, as
// one that was sent with references has: that string and the value's would stay.
func (f attributeFilter) referredTo(d pprofile.ProfilesDictionary) bool {
	for _, s := range d.StringTable().All() {
		if strings.HasPrefix(s, "process.") && f[s] {
			return true
		}
	}
	return false
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
