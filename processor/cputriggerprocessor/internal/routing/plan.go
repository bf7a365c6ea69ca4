// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/requests"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// group is a set of profiles in a batch that are recorded together. The profiles share
// one unit and one capture window.
type group struct {
	groupKey
	first, last int // indices of verdicts
	samples     int
	linked      bool
}

type groupKey struct {
	unit       *trigger.Decision
	start, end int64
	dry        bool
}

// plan contains the verdicts about the profiles of a batch, in the order of the profiles.
// Plans are reused for later batches.
type plan struct {
	now           time.Time
	verdicts      []units.Verdict
	groups        []group
	byKey         map[groupKey]int // index in groups
	leaving       int              // profiles for the next component
	stamped       int              // profiles for the next component that have a reason
	dry           int              // profiles that the gate of a dry run would have passed
	withEmpty     bool             // a resource or scope has no profiles
	refusedBefore bool             // the next component refused the batch before, and the refusal is already counted
	// unmatched contains an example claim for each reason why profiles match no unit.
	unmatched map[identify.Unmatched]identify.Claim

	subset   dictionary.Subset
	stamper  attributes.Stamper
	refs     []dictionary.ProfileRef
	captures []recorder.Capture
	taken    []taken

	uses            []requests.Use // the time of samples whose request is known
	joined, unknown int64          // events whose request is known, or not known
}

// newPlan returns an empty plan.
func (r *Router) newPlan() *plan {
	p, ok := r.plans.Get().(*plan)
	if !ok {
		p = &plan{byKey: map[groupKey]int{}, unmatched: map[identify.Unmatched]identify.Claim{}, subset: dictionary.Subset{Strip: attributes.IsReason}, stamper: attributes.Stamper{OnResource: r.OnResource}}
	}
	p.now = r.Now()
	return p
}

// release makes a plan available for another batch.
func (r *Router) release(p *plan) {
	for i := range p.verdicts { // the sent batch belongs to the next component, so keep no references into it
		v := &p.verdicts[i]
		v.Resource, v.Scope, v.Profile = pprofile.ResourceProfiles{}, pprofile.ScopeProfiles{}, pprofile.Profile{}
	}
	p.verdicts, p.groups = p.verdicts[:0], p.groups[:0]
	clear(p.byKey)
	clear(p.unmatched)
	clear(p.captures)
	p.captures = p.captures[:0]
	clear(p.uses)
	p.uses, p.joined, p.unknown = p.uses[:0], 0, 0
	p.leaving, p.stamped, p.dry, p.withEmpty, p.refusedBefore = 0, 0, 0, false, false
	r.plans.Put(p)
}

// add adds an undecided profile. It reuses the memory of an earlier verdict.
func (p *plan) add(start, end time.Time, samples, resource, scope, profile int) *units.Verdict {
	n := len(p.verdicts)
	if n == cap(p.verdicts) {
		p.verdicts = append(p.verdicts, units.Verdict{})
	}
	p.verdicts = p.verdicts[:n+1]
	v := &p.verdicts[n]
	*v = units.Verdict{
		Ref:   dictionary.ProfileRef{Resource: int32(resource), Scope: int32(scope), Profile: int32(profile)},
		Start: start, End: end, Samples: samples, Openings: v.Openings[:0], Dry: v.Dry[:0],
	}
	return v
}

// stamp decides that a profile is sent with a reason.
func (p *plan) stamp(v *units.Verdict) {
	v.Route, v.Outcome = units.Stamped, counters.SamplePassed
	p.stamped++
	p.leaving++
}

// pass decides that a profile is sent without attributes that describe a reason.
func (p *plan) pass(v *units.Verdict) {
	v.Route = units.Passed
	p.leaving++
}

// record marks a profile as recorded, and adds the profile to the group of its unit and
// capture window.
func (p *plan) record(i int) {
	v := &p.verdicts[i]
	v.Route = units.Recorded
	key := groupKey{unit: v.Unit, start: v.Start.UnixNano(), end: v.End.UnixNano(), dry: len(v.Dry) > 0}
	n := len(p.groups) - 1
	if n < 0 || p.groups[n].groupKey != key {
		var known bool
		if n, known = p.byKey[key]; !known {
			p.byKey[key] = len(p.groups)
			p.groups = append(p.groups, group{groupKey: key, first: i, last: i, samples: v.Samples, linked: v.Linked})
			return
		}
	}
	g := &p.groups[n]
	p.verdicts[g.last].Next = i
	g.last = i
	g.samples += v.Samples
	g.linked = g.linked || v.Linked
}

// capture marshals each group of profiles to record. It removes the process attributes
// first. Otherwise the dictionary would contain the strings of these attributes, and the
// profiles would have to be copied without these strings before they are sent.
func (p *plan) capture(pd pprofile.Profiles, remove attributes.Filter, counts *counters.Samples) {
	for _, g := range p.groups {
		v := &p.verdicts[g.first]
		c := recorder.Capture{Unit: g.unit, Start: v.Start, End: v.End, Dry: g.dry, Linked: g.linked, Samples: g.samples}
		p.pick(g)
		part := pd
		if p.withEmpty || len(p.refs) != len(p.verdicts) || pd.IsReadOnly() {
			part = p.subset.Copy(pd, p.refs)
		}
		for _, rp := range part.ResourceProfiles().All() {
			remove.Apply(rp.Resource().Attributes())
		}
		var err error
		if c.Data, err = recorder.Pack(part); err != nil { // a profile that cannot be marshalled cannot be recorded
			counts[counters.SampleEvicted] += int64(c.Samples)
			continue
		}
		p.captures = append(p.captures, c)
	}
}

// pick sets refs to the profiles of a group.
func (p *plan) pick(g group) {
	p.refs = p.refs[:0]
	for i := g.first; ; i = p.verdicts[i].Next {
		p.refs = append(p.refs, p.verdicts[i].Ref)
		if i == g.last {
			return
		}
	}
}

// part returns the part of a batch to send. It returns the batch itself if all its profiles
// are sent, and if no string in its dictionary must be removed. clean is true if the
// dictionary is known to contain no key of a reason.
func (p *plan) part(pd pprofile.Profiles, remove attributes.Filter) (out pprofile.Profiles, clean bool) {
	if p.leaving == len(p.verdicts) && !p.withEmpty && !pd.IsReadOnly() {
		d := pd.Dictionary()
		if clean = !attributes.HasReason(d); (clean || p.stamped == 0) && !remove.ReferredTo(d) {
			p.place(pd)
			return pd, clean
		}
	}
	p.refs = p.refs[:0]
	for i := range p.verdicts {
		if v := &p.verdicts[i]; v.Leaves() {
			v.Ref.Strip = v.Route == units.Stamped
			p.refs = append(p.refs, v.Ref)
		}
	}
	out = p.subset.Copy(pd, p.refs)
	p.place(out)
	return out, false
}

// place sets the fields Resource, Scope and Profile of each verdict whose profile is in the
// batch to send.
func (p *plan) place(out pprofile.Profiles) {
	i := 0
	for _, rp := range out.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, profile := range sp.Profiles().All() {
				for !p.verdicts[i].Leaves() {
					i++
				}
				v := &p.verdicts[i]
				v.Resource, v.Scope, v.Profile = rp, sp, profile
				i++
			}
		}
	}
}

// measure sets the marshalled size of each stamped profile. This is the size of the profile
// itself, plus a share of the common data in proportion to the profile's samples.
func (p *plan) measure(out pprofile.Profiles) {
	var marshaler pprofile.ProtoMarshaler
	weight := func(v *units.Verdict) int { return max(1, v.Samples) }
	weights, own := 0, 0
	for i := range p.verdicts {
		if v := &p.verdicts[i]; v.Route == units.Stamped {
			v.Bytes = marshaler.ProfileSize(v.Profile)
			own += v.Bytes
			weights += weight(v)
		}
	}
	shared := marshaler.ProfilesSize(out) - own
	for i := range p.verdicts {
		if v := &p.verdicts[i]; v.Route == units.Stamped {
			v.Bytes += shared * weight(v) / weights
		}
	}
}

// count counts the samples of all profiles that were not recorded. err is the error of the
// next component.
func (p *plan) count(err error, counts *counters.Samples) {
	for i := range p.verdicts {
		v := &p.verdicts[i]
		switch {
		case v.Route == units.Recorded:
			continue
		case err != nil && (v.Route == units.Passed || v.Route == units.Stamped):
			v.Outcome = counters.SampleRefused
		}
		counts[v.Outcome] += int64(v.Samples)
	}
}

// label sets the attributes of a resource whose profiles are sent. A resource can have
// only one set of labels. For each further set of labels, the stamped profiles move to a
// new resource at the end of the batch.
func (p *plan) label(out pprofile.Profiles, of []units.Verdict, remove attributes.Filter) {
	var own pprofile.ResourceProfiles
	left, labels := false, int32(-1)
	for i := range of {
		v := &of[i]
		if v.Leaves() {
			own, left = v.Resource, true
		}
		if v.Route == units.Stamped && labels < 0 {
			labels = v.Labels
		}
	}
	if !left {
		return
	}
	resource := own.Resource().Attributes()
	attributes.SetServiceName(resource)
	if labels < 0 { // unmatched profiles keep attributes that a later component may match
		if remove[attr.Cgroup] {
			resource.Remove(attr.Cgroup)
		}
		return
	}
	remove.Apply(resource)
	type destination struct {
		resource pprofile.ResourceProfiles
		scope    int32 // the scope of the profile that was moved last
	}
	moved := map[int32]destination{} // by labels
	for i := range of {
		v := &of[i]
		if v.Route != units.Stamped || v.Labels == labels {
			continue
		}
		to, ok := moved[v.Labels]
		if !ok {
			to = destination{out.ResourceProfiles().AppendEmpty(), -1}
			own.Resource().CopyTo(to.resource.Resource())
			to.resource.SetSchemaUrl(own.SchemaUrl())
			p.stamper.Label(to.resource.Resource().Attributes(), v.Labels)
		}
		scopes := to.resource.ScopeProfiles()
		if to.scope != v.Ref.Scope {
			scope := scopes.AppendEmpty()
			v.Scope.Scope().CopyTo(scope.Scope())
			scope.SetSchemaUrl(v.Scope.SchemaUrl())
			to.scope = v.Ref.Scope
		}
		moved[v.Labels] = to
		v.Resource, v.Scope = to.resource, scopes.At(scopes.Len()-1)
		from := v.Profile
		v.Profile = v.Scope.Profiles().AppendEmpty()
		from.MoveTo(v.Profile)
	}
	p.stamper.Label(resource, labels)
	if len(moved) > 0 {
		own.ScopeProfiles().RemoveIf(func(sp pprofile.ScopeProfiles) bool {
			sp.Profiles().RemoveIf(isEmpty)
			return sp.Profiles().Len() == 0
		})
	}
}

// isEmpty reports whether a profile has neither samples nor an original payload. Backends
// refuse such profiles. After a profile was moved, the original is empty too.
func isEmpty(profile pprofile.Profile) bool {
	return profile.Samples().Len() == 0 && profile.OriginalPayload().Len() == 0
}
