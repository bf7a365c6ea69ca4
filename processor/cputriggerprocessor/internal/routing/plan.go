// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// route is the destination of a profile.
type route uint8

const (
	dropped  route = iota
	passed         // to the next component, without a reason
	stamped        // to the next component, with a reason in place of one that it may have
	recorded       // into the recorder
	heldBack       // nowhere: it was stamped, and max_bytes_per_hour does not allow it
)

// leaves reports whether a profile is in the batch for the next component, or was
// until the budget was asked.
func (r route) leaves() bool { return r == passed || r == stamped || r == heldBack }

// decision is the decision about a profile.
type decision struct {
	outcome counters.SampleOutcome // if the next component accepts it, where it leaves
	route   route
	ref     dictionary.ProfileRef // in the batch
	labels  int32                 // of a stamped profile, in the stamper
	next    int                   // index of the next profile of its group, above 0
}

// group is the profiles of a batch that are recorded together: those of one unit
// and capture window.
type group struct {
	groupKey
	first, last int // indices of decisions
	samples     int
}

type groupKey struct {
	unit       *trigger.Unit
	start, end int64
	dry        bool
}

// plan holds the decisions about the profiles of a batch, in their order. It is
// reused for other batches.
type plan struct {
	now        time.Time
	admissions []units.Admission
	decisions  []decision
	groups     []group
	byKey      map[groupKey]int // index in groups
	leaving    int              // profiles for the next component
	stamped    int              // of those, the ones with a reason
	dry        int              // profiles that a dry run would have passed
	hollow     bool             // a resource or scope has no profiles
	again      bool             // the next component refused it before, which was counted then

	subset   dictionary.Subset
	stamper  attributes.Stamper
	refs     []dictionary.ProfileRef
	captures []recorder.Capture
	// starts has the begins that are taken, each with an earlier begin that may be free.
	starts map[start]pcommon.Timestamp
}

// newPlan returns an empty plan.
func (r *Router) newPlan() *plan {
	p, ok := r.plans.Get().(*plan)
	if !ok {
		p = &plan{byKey: map[groupKey]int{}, starts: map[start]pcommon.Timestamp{}, subset: dictionary.Subset{Strip: attributes.IsReason}, stamper: attributes.Stamper{OnResource: r.OnResource}}
	}
	p.now = r.Now()
	return p
}

// release makes a plan available for another batch.
func (r *Router) release(p *plan) {
	p.admissions, p.decisions, p.groups = p.admissions[:0], p.decisions[:0], p.groups[:0]
	clear(p.byKey)
	clear(p.captures)
	p.captures = p.captures[:0]
	p.leaving, p.stamped, p.dry, p.hollow, p.again = 0, 0, 0, false, false
	r.plans.Put(p)
}

// add adds a profile, in the memory of an earlier one, and returns its index.
func (p *plan) add(start, end time.Time, samples, resource, scope, profile int) int {
	n := len(p.admissions)
	if n == cap(p.admissions) {
		p.admissions = append(p.admissions, units.Admission{})
	}
	p.admissions = p.admissions[:n+1]
	a := &p.admissions[n]
	*a = units.Admission{Start: start, End: end, Samples: samples, Openings: a.Openings[:0], Dry: a.Dry[:0]}
	p.decisions = append(p.decisions, decision{ref: dictionary.ProfileRef{Resource: int32(resource), Scope: int32(scope), Profile: int32(profile)}})
	return n
}

// stamp decides that a profile leaves with a reason.
func (p *plan) stamp(i int) {
	p.decisions[i].route, p.decisions[i].outcome = stamped, counters.SamplePassed
	p.admissions[i].Leaves = true
	p.stamped++
	p.leaving++
}

// pass decides that a profile leaves as it is.
func (p *plan) pass(i int) {
	p.decisions[i].route = passed
	p.leaving++
}

// record decides that a profile is recorded, with the others of its unit and
// capture window.
func (p *plan) record(i int) {
	d, a := &p.decisions[i], &p.admissions[i]
	d.route = recorded
	key := groupKey{unit: a.Unit, start: a.Start.UnixNano(), end: a.End.UnixNano(), dry: len(a.Dry) > 0}
	n := len(p.groups) - 1
	if n < 0 || p.groups[n].groupKey != key {
		var known bool
		if n, known = p.byKey[key]; !known {
			p.byKey[key] = len(p.groups)
			p.groups = append(p.groups, group{groupKey: key, first: i, last: i, samples: a.Samples})
			return
		}
	}
	g := &p.groups[n]
	p.decisions[g.last].next = i
	g.last = i
	g.samples += a.Samples
}

// capture marshals each group of profiles to record, without the attributes that are
// removed from what leaves: marshalled, their strings are in the dictionary, and what
// leaves would have to be copied without them.
func (p *plan) capture(pd pprofile.Profiles, remove attributes.Filter, counts *counters.Samples) {
	for _, g := range p.groups {
		a := &p.admissions[g.first]
		c := recorder.Capture{Unit: g.unit, Start: a.Start, End: a.End, Dry: g.dry, Samples: g.samples}
		p.pick(g)
		part := pd
		if p.hollow || len(p.refs) != len(p.decisions) || pd.IsReadOnly() {
			part = p.subset.Copy(pd, p.refs)
		}
		for _, rp := range part.ResourceProfiles().All() {
			remove.Apply(rp.Resource().Attributes())
		}
		var err error
		if c.Data, err = recorder.Pack(part); err != nil { // what cannot be marshalled cannot be kept
			counts[counters.SampleEvicted] += int64(c.Samples)
			continue
		}
		p.captures = append(p.captures, c)
	}
}

// pick lists the profiles of a group in refs.
func (p *plan) pick(g group) {
	p.refs = p.refs[:0]
	for i := g.first; ; i = p.decisions[i].next {
		p.refs = append(p.refs, p.decisions[i].ref)
		if i == g.last {
			return
		}
	}
}

// part returns the part of a batch that leaves: the batch itself if that is all of
// it, and its dictionary has no string of an attribute that will be removed. clean: no
// key of a reason is in its dictionary.
func (p *plan) part(pd pprofile.Profiles, remove attributes.Filter) (out pprofile.Profiles, clean bool) {
	if p.leaving == len(p.decisions) && !p.hollow && !pd.IsReadOnly() {
		d := pd.Dictionary()
		if clean = !attributes.HasReason(d); (clean || p.stamped == 0) && !remove.ReferredTo(d) {
			return pd, clean
		}
	}
	p.refs = p.refs[:0]
	for _, d := range p.decisions {
		if d.route.leaves() {
			d.ref.Strip = d.route == stamped
			p.refs = append(p.refs, d.ref)
		}
	}
	return p.subset.Copy(pd, p.refs), false
}

// nextLeaving returns the index of the first profile after i that leaves. The
// profiles of the part that leaves are in that order.
func (p *plan) nextLeaving(i int) int { return nextLeaving(p.decisions, i) }

func nextLeaving(decisions []decision, i int) int {
	for i++; !decisions[i].route.leaves(); i++ {
	}
	return i
}

// measure sets the size of each profile that leaves, as marshalled: its own, and by
// its samples a part of what all share.
func (p *plan) measure(out pprofile.Profiles) {
	var marshaler pprofile.ProtoMarshaler
	weight := func(a *units.Admission) int { return max(1, a.Samples) }
	weights, own, i := 0, 0, -1
	for _, rp := range out.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, profile := range sp.Profiles().All() {
				i = p.nextLeaving(i)
				if a := &p.admissions[i]; a.Leaves {
					a.Bytes = marshaler.ProfileSize(profile)
					own += a.Bytes
					weights += weight(a)
				}
			}
		}
	}
	shared := marshaler.ProfilesSize(out) - own
	for i := range p.admissions {
		if a := &p.admissions[i]; a.Leaves {
			a.Bytes += shared * weight(a) / weights
		}
	}
}

// count counts the samples of all profiles but those that were recorded. err is
// that of the next component.
func (p *plan) count(err error, counts *counters.Samples) {
	for i, d := range p.decisions {
		switch {
		case d.route == recorded:
			continue
		case err != nil && (d.route == passed || d.route == stamped):
			d.outcome = counters.SampleRefused
		}
		counts[d.outcome] += int64(p.admissions[i].Samples)
	}
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
					p.stamper.Label(to.of.Resource().Attributes(), labels)
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
