// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"slices"
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
	recorder.Capture
	refs []*dictionary.ProfileRef
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
	verdicts      []*units.Verdict
	groups        []*group
	byKey         map[groupKey]*group
	leaving       []*units.Verdict // verdicts about profiles for the next component
	stamped       int              // profiles for the next component that have a reason
	withEmpty     bool             // a resource or scope has no profiles
	refusedBefore bool             // the next component refused the batch before, and the refusal is already counted
	// unmatched contains an example claim for each reason why profiles match no unit.
	unmatched map[identify.Unmatched]identify.Claim

	subset   dictionary.Subset
	stamper  attributes.Stamper
	refs     []*dictionary.ProfileRef
	captures []recorder.Capture
	taken    []taken

	uses            []requests.Use // the time of samples whose request is known
	joined, unknown int64          // events whose request is known, or not known
}

// newPlan returns an empty plan.
func (r *Router) newPlan() *plan {
	p, ok := r.plans.Get().(*plan)
	if !ok {
		p = &plan{byKey: map[groupKey]*group{}, unmatched: map[identify.Unmatched]identify.Claim{}, subset: dictionary.Subset{Strip: attributes.IsReason}, stamper: attributes.Stamper{OnResource: r.OnResource}}
	}
	p.now = r.Now()
	return p
}

// release makes a plan available for another batch.
func (r *Router) release(p *plan) {
	for _, v := range p.verdicts { // the sent batch belongs to the next component, so keep no references into it
		v.ProfileRef = dictionary.ProfileRef{}
	}
	p.verdicts, p.leaving = p.verdicts[:0], p.leaving[:0]
	clear(p.groups)
	clear(p.refs)
	p.groups, p.refs = p.groups[:0], p.refs[:0]
	clear(p.byKey)
	clear(p.unmatched)
	clear(p.captures)
	p.captures = p.captures[:0]
	clear(p.uses)
	p.uses, p.joined, p.unknown = p.uses[:0], 0, 0
	p.stamped, p.withEmpty, p.refusedBefore = 0, false, false
	r.plans.Put(p)
}

// add adds an undecided profile. It reuses the memory of an earlier verdict.
func (p *plan) add(of dictionary.ProfileRef, start, end time.Time) *units.Verdict {
	n := len(p.verdicts)
	p.verdicts = slices.Grow(p.verdicts, 1)[:n+1]
	v := p.verdicts[n]
	if v == nil {
		v = new(units.Verdict)
		p.verdicts[n] = v
	}
	*v = units.Verdict{ProfileRef: of, Start: start, End: end, Samples: samplesIn(of.Profile), Openings: v.Openings[:0], Dry: v.Dry[:0]}
	return v
}

// stamp decides that a profile is sent with a reason.
func (p *plan) stamp(v *units.Verdict) {
	v.Route, v.Outcome, v.Strip = units.Stamped, counters.SamplePassed, true
	p.stamped++
	p.leaving = append(p.leaving, v)
}

// pass decides that a profile is sent without attributes that describe a reason.
func (p *plan) pass(v *units.Verdict) {
	v.Route = units.Passed
	p.leaving = append(p.leaving, v)
}

// record marks a profile as recorded, and adds the profile to the group of its unit and
// capture window.
func (p *plan) record(v *units.Verdict) {
	v.Route = units.Recorded
	key := groupKey{unit: v.Unit, start: v.Start.UnixNano(), end: v.End.UnixNano(), dry: len(v.Dry) > 0}
	g := p.byKey[key]
	if g == nil {
		g = &group{Capture: recorder.Capture{Unit: v.Unit, Start: v.Start, End: v.End, Dry: key.dry}}
		p.byKey[key], p.groups = g, append(p.groups, g)
	}
	g.refs = append(g.refs, &v.ProfileRef)
	g.Samples += v.Samples
	g.Linked = g.Linked || v.Linked
}

// capture marshals each group of profiles to record. It removes the process attributes
// first. Otherwise the dictionary would contain the strings of these attributes, and the
// profiles would have to be copied without these strings before they are sent.
func (p *plan) capture(pd pprofile.Profiles, remove attributes.Filter, counts *counters.Samples) {
	for _, g := range p.groups {
		part := pd
		if p.withEmpty || len(g.refs) != len(p.verdicts) || pd.IsReadOnly() {
			part = p.subset.Copy(pd, g.refs)
		}
		for _, rp := range part.ResourceProfiles().All() {
			remove.Apply(rp.Resource().Attributes())
		}
		var err error
		if g.Data, err = recorder.Pack(part); err != nil { // a profile that cannot be marshalled cannot be recorded
			counts[counters.SampleEvicted] += int64(g.Samples)
			continue
		}
		p.captures = append(p.captures, g.Capture)
	}
}

// part returns the part of a batch to send. It returns the batch itself if all its profiles
// are sent, and if no string in its dictionary must be removed. clean is true if the
// dictionary is known to contain no key of a reason.
func (p *plan) part(pd pprofile.Profiles, remove attributes.Filter) (out pprofile.Profiles, clean bool) {
	if len(p.leaving) == len(p.verdicts) && !p.withEmpty && !pd.IsReadOnly() {
		d := pd.Dictionary()
		if clean = !attributes.HasReason(d); (clean || p.stamped == 0) && !remove.ReferredTo(d) {
			return pd, clean
		}
	}
	p.refs = p.refs[:0]
	for _, v := range p.leaving {
		p.refs = append(p.refs, &v.ProfileRef)
	}
	return p.subset.Copy(pd, p.refs), false
}

// measure sets the marshalled size of each stamped profile. This is the size of the profile
// itself, plus a share of the common data in proportion to the profile's samples.
func (p *plan) measure(out pprofile.Profiles) {
	var marshaler pprofile.ProtoMarshaler
	weight := func(v *units.Verdict) int { return max(1, v.Samples) }
	weights, own := 0, 0
	for _, v := range p.leaving {
		if v.Route == units.Stamped {
			v.Bytes = marshaler.ProfileSize(v.Profile)
			own += v.Bytes
			weights += weight(v)
		}
	}
	shared := marshaler.ProfilesSize(out) - own
	for _, v := range p.leaving {
		if v.Route == units.Stamped {
			v.Bytes += shared * weight(v) / weights
		}
	}
}

// count counts the samples of all profiles that were not recorded. err is the error of the
// next component.
func (p *plan) count(err error, counts *counters.Samples) {
	for _, v := range p.verdicts {
		switch {
		case v.Route == units.Recorded:
			continue
		case err != nil && (v.Route == units.Passed || v.Route == units.Stamped):
			v.Outcome = counters.SampleRefused
		}
		counts[v.Outcome] += int64(v.Samples)
	}
}

// label sets the attributes of a resource whose profiles are sent. The argument of contains
// the verdicts about these profiles. A resource can have only one set of labels. For each
// further set of labels, the stamped profiles move to a new resource at the end of the
// batch.
func (p *plan) label(out pprofile.Profiles, of []*units.Verdict, remove attributes.Filter) {
	own := of[0].Resource
	resource := own.Resource().Attributes()
	attributes.SetServiceName(resource)
	first := slices.IndexFunc(of, func(v *units.Verdict) bool { return v.Route == units.Stamped })
	if first < 0 { // unmatched profiles keep attributes that a later component may match
		if remove[attr.Cgroup] {
			resource.Remove(attr.Cgroup)
		}
		return
	}
	remove.Apply(resource)
	labels := of[first].Labels
	type destination struct {
		dictionary.ProfileRef                        // the profile that was moved last
		from                  pprofile.ScopeProfiles // the scope that contained it before
	}
	moved := map[int32]destination{} // by labels
	for _, v := range of[first:] {
		if v.Route != units.Stamped || v.Labels == labels {
			continue
		}
		to, ok := moved[v.Labels]
		if !ok {
			to.Resource = out.ResourceProfiles().AppendEmpty()
			own.Resource().CopyTo(to.Resource.Resource())
			to.Resource.SetSchemaUrl(own.SchemaUrl())
			p.stamper.Label(to.Resource.Resource().Attributes(), v.Labels)
		}
		if to.from != v.Scope {
			to.from, to.Scope = v.Scope, to.Resource.ScopeProfiles().AppendEmpty()
			v.Scope.Scope().CopyTo(to.Scope.Scope())
			to.Scope.SetSchemaUrl(v.Scope.SchemaUrl())
		}
		to.Profile = to.Scope.Profiles().AppendEmpty()
		v.Profile.MoveTo(to.Profile)
		moved[v.Labels], v.ProfileRef = to, to.ProfileRef
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
