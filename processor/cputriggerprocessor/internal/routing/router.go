// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package routing decides what becomes of each profile of a batch: it goes to the
// next component, into the recorder, or nowhere. That holds for profiles without a
// unit too.
package routing

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// Router decides for each profile of a batch whether it goes to the next
// component, into the recorder, or nowhere. It runs on the senders' goroutines.
type Router struct {
	Scope         identify.Scope
	PassUnmatched bool              // unmatched: pass
	Remove        attributes.Filter // of resources
	OnResource    []string          // resource_attributes
	Units         *units.Set
	Host          identify.Host // nil where control groups cannot be read
	Next          xconsumer.Profiles
	LimitBytes    bool // max_bytes_per_hour is set
	Counters      *counters.Counters
	Now           func() time.Time
	Log           *zap.Logger

	plans  sync.Pool
	logged sync.Map // of identify.Unmatched: reasons that were logged
}

// Consume routes a batch. Its error is that of the next component.
func (r *Router) Consume(ctx context.Context, pd pprofile.Profiles) error {
	var counts counters.Samples
	defer r.Counters.AddSamples(ctx, &counts)
	p := r.decide(pd)
	defer r.release(p)
	if len(p.groups) > 0 {
		p.capture(pd, r.Remove, &counts)
		r.Units.Record(p.captures, &counts)
	}
	err := r.send(ctx, pd, p)
	p.count(err, &counts)
	return err
}

// SendRecorded sends what the recorder held. It reports whether the batch is
// settled, and what became of its samples then.
func (r *Router) SendRecorded(ctx context.Context, b recorder.Batch) (settled bool, counts counters.Samples) {
	pd, err := recorder.Unpack(b.Data)
	if err != nil { // it was marshalled here
		counts[counters.SampleRefused] += int64(b.Samples)
		return true, counts
	}
	p := r.newPlan()
	defer r.release(p)
	p.again = b.Again
	r.decideRecorded(p, pd, b)
	err = r.send(ctx, pd, p)
	if err != nil && !consumererror.IsPermanent(err) {
		return false, counts
	}
	p.count(err, &counts)
	return true, counts
}

// decide decides for each profile of a batch.
func (r *Router) decide(pd pprofile.Profiles) *plan {
	p := r.newPlan()
	for i, rp := range pd.ResourceProfiles().All() {
		r.decideResource(p, pd, rp, i)
	}
	return p
}

// decideResource decides for the profiles of one resource: they belong to one
// unit, and each has a capture window and a type of its own.
func (r *Router) decideResource(p *plan, pd pprofile.Profiles, rp pprofile.ResourceProfiles, number int) {
	first := len(p.decisions)
	var last time.Time
	for si, sp := range rp.ScopeProfiles().All() {
		for pi, profile := range sp.Profiles().All() {
			start, end := captureWindow(profile, p.now)
			if end.After(last) {
				last = end
			}
			p.add(start, end, samplesIn(profile), number, si, pi)
		}
		p.hollow = p.hollow || sp.Profiles().Len() == 0
	}
	if len(p.decisions) == first {
		p.hollow = true
		return
	}
	c := identify.ClaimOf(rp.Resource().Attributes())
	id, why := identify.Identity{}, identify.NoControlGroups
	if r.Host != nil {
		id, why = identify.Match(r.Host, r.Scope, c, last)
		c.Replaced = why == "" && !r.Units.Named(id.Name) && identify.Replaced(r.Host, c)
	}
	why = r.Units.Admit(id, c, why, p.now, p.admissions[first:])
	if why == identify.OtherCgroup && r.PassUnmatched && !pd.IsReadOnly() { // what passes has no name that is another's
		rp.Resource().Attributes().Remove(attr.ContainerID)
		rp.Resource().Attributes().Remove(attr.PodUID)
	}

	i := first
	for _, sp := range rp.ScopeProfiles().All() {
		for _, profile := range sp.Profiles().All() {
			a, reason := &p.admissions[i], why
			if reason == "" && identify.StartedAfter(id.Started, a.End) {
				reason, a.Openings = identify.StartedLater, a.Openings[:0]
			}
			open := r.filter(a, pd.Dictionary(), profile)
			if a.Samples == 0 && profile.OriginalPayload().Len() == 0 { // backends refuse it
				a.Dry = a.Dry[:0]
			} else {
				r.decideProfile(p, i, open, reason)
				if reason != "" && p.decisions[i].outcome == counters.SampleUnmatched {
					r.logUnmatched(reason, c)
				}
			}
			if len(a.Dry) > 0 {
				a.Bytes = (&pprofile.ProtoMarshaler{}).ProfileSize(profile)
				p.dry++
			}
			i++
		}
	}
}

// decideProfile decides for a profile of a plan. open: an opening that is no dry
// run admits it, whatever its type. unmatched is empty if its unit is here.
func (r *Router) decideProfile(p *plan, i int, open bool, unmatched identify.Unmatched) {
	d, a := &p.decisions[i], &p.admissions[i]
	switch {
	case len(a.Openings) > 0 && a.Queued:
		p.record(i)
	case len(a.Openings) > 0:
		p.stamp(i)
	case open:
		d.outcome = counters.SampleFiltered
	case unmatched == "" && a.Wanted:
		p.record(i)
	case unmatched == "":
		d.outcome = a.Shut
		if d.outcome == counters.SampleGateShut && len(a.Dry) > 0 {
			d.outcome = counters.SampleDryRun
		}
	default:
		d.outcome = counters.SampleUnmatched
		if r.PassUnmatched {
			p.pass(i)
		}
	}
}

// decideRecorded decides for the profiles of a record by their types alone: their
// unit and their openings are known.
func (r *Router) decideRecorded(p *plan, pd pprofile.Profiles, b recorder.Batch) {
	for ri, rp := range pd.ResourceProfiles().All() {
		for si, sp := range rp.ScopeProfiles().All() {
			for pi, profile := range sp.Profiles().All() {
				i := p.add(b.Start, b.End, samplesIn(profile), ri, si, pi)
				a := &p.admissions[i]
				a.Openings = append(a.Openings, b.Openings...)
				r.filter(a, pd.Dictionary(), profile)
				if len(a.Openings) > 0 {
					p.stamp(i)
				} else {
					p.decisions[i].outcome = counters.SampleFiltered
				}
			}
		}
	}
}

// filter keeps the openings whose policy passes the type of a profile, and moves
// those of dry runs to Dry. It reports whether there was one that is no dry run.
func (r *Router) filter(a *units.Admission, d pprofile.ProfilesDictionary, profile pprofile.Profile) (open bool) {
	out := a.Openings[:0]
	for _, o := range a.Openings {
		fits := passesType(o.Types, d, profile)
		open = open || !o.DryRun
		switch {
		case fits && o.DryRun:
			a.Dry = append(a.Dry, o)
		case fits:
			out = append(out, o)
		}
	}
	a.Openings = out
	return open
}

// passesType reports whether the profile_types of a policy have the type of a
// profile.
func passesType(types []string, d pprofile.ProfilesDictionary, p pprofile.Profile) bool {
	if len(types) == 0 {
		return true
	}
	of := dictionary.NewReader(d).ProfileType(p)
	kind := of.Sample
	if kind == "samples" { // of what is in the period
		kind = of.Period
	}
	return slices.ContainsFunc(types, func(t string) bool {
		name, unit, typed := strings.Cut(t, "/")
		return !typed && name == kind || typed && name == of.Sample && unit == of.Unit
	})
}

// logUnmatched logs each reason once.
func (r *Router) logUnmatched(why identify.Unmatched, c identify.Claim) {
	if _, logged := r.logged.Load(why); logged {
		return
	}
	if _, logged := r.logged.LoadOrStore(why, true); logged {
		return
	}
	r.Log.Info("profiles match no unit", zap.String("why", string(why)),
		zap.String(attr.ContainerID, units.Shorten(c.ContainerID)), zap.String(attr.Cgroup, units.Shorten(c.Cgroup)), zap.Int(attr.PID, c.PID),
		zap.String(attr.ExecutableName, units.Shorten(c.ExecutableName)), zap.String(attr.HostName, units.Shorten(c.HostName)), zap.String(attr.HostID, units.Shorten(c.HostID)))
}

// send sends the profiles that leave, and counts them for their openings. The
// batch must not be used afterwards.
func (r *Router) send(ctx context.Context, pd pprofile.Profiles, p *plan) error {
	var err error
	if p.leaving > 0 {
		out, clean := p.part(pd, r.Remove)
		r.stamp(out, clean, p)
		if p.stamped > 0 {
			p.measure(out)
		}
		if r.LimitBytes && p.stamped > 0 {
			out = r.withinBudget(out, p)
		}
		if p.leaving > 0 {
			err = r.Next.ConsumeProfiles(ctx, out)
		}
	}
	if p.stamped > 0 || p.dry > 0 {
		r.Units.Settle(p.admissions, err, p.again, p.now)
	}
	return err
}

// stamp sets the attributes of what leaves. Profiles of one resource with different
// labels get a resource each.
func (r *Router) stamp(out pprofile.Profiles, clean bool, p *plan) {
	s, mixed := &p.stamper, false
	if p.stamped > 0 {
		s.Begin(out.Dictionary(), clean)
		defer s.End()
	}
	i := -1
	for _, rp := range out.ResourceProfiles().All() {
		first := int32(-1)
		for _, sp := range rp.ScopeProfiles().All() {
			for _, profile := range sp.Profiles().All() {
				i = p.nextLeaving(i)
				a := &p.admissions[i]
				if p.decisions[i].route != stamped {
					continue
				}
				labels := s.Stamp(profile, a.Openings, a.Start, a.End)
				p.decisions[i].labels = labels
				if first < 0 {
					first = labels
				}
				mixed = mixed || labels != first
			}
		}
		resource := rp.Resource().Attributes()
		attributes.SetServiceName(resource)
		if first < 0 { // unmatched profiles pass with what a later component may match
			r.Remove.ApplyTo(resource, attr.Cgroup)
			continue
		}
		r.Remove.Apply(resource)
		s.Label(resource, first)
	}
	if mixed {
		p.split(out)
	}
	p.separate(out)
}

// withinBudget removes from a batch the profiles that max_bytes_per_hour does not
// allow, and reserves the bytes of the others.
func (r *Router) withinBudget(out pprofile.Profiles, p *plan) pprofile.Profiles {
	n := r.Units.Reserve(p.admissions, p.now)
	if n == 0 {
		return out
	}
	i := -1
	p.refs = p.refs[:0]
	for ri, rp := range out.ResourceProfiles().All() {
		for si, sp := range rp.ScopeProfiles().All() {
			for pi := range sp.Profiles().Len() {
				i = p.nextLeaving(i)
				if d := &p.decisions[i]; d.route == stamped && !p.admissions[i].Leaves {
					d.route, d.outcome = heldBack, counters.SampleOverBudget
				} else {
					p.refs = append(p.refs, dictionary.ProfileRef{Resource: int32(ri), Scope: int32(si), Profile: int32(pi)})
				}
			}
		}
	}
	p.stamped -= n
	p.leaving -= n
	if p.leaving == 0 {
		return out
	}
	return p.subset.Copy(out, p.refs)
}

// maxAhead bounds how far in the future a profile may end, by clocks that differ.
// Beyond it the clock was set back since the profile was captured.
const maxAhead = time.Minute

// captureWindow returns when a profile was captured, on the clock of its arrival:
// its end is as long ago as by the wall clock now, so a wall clock that is set
// later does not move it against the openings of gates. Arrival counts for a
// profile without a time.
func captureWindow(p pprofile.Profile, now time.Time) (start, end time.Time) {
	if p.Time() == 0 || p.Time() > math.MaxInt64 {
		return now, now
	}
	duration := time.Duration(min(p.DurationNano(), math.MaxInt64))
	ahead := p.Time().AsTime().Add(duration).Sub(now)
	if ahead > maxAhead {
		ahead = 0
	}
	end = now.Add(ahead)
	return end.Add(-duration), end
}

// samplesIn counts events: the timestamps of a sample, or one without timestamps.
func samplesIn(p pprofile.Profile) (n int) {
	samples := p.Samples()
	for i := range samples.Len() {
		n += max(1, samples.At(i).TimestampsUnixNano().Len())
	}
	return n
}

// CountSamples counts the samples of a batch.
func CountSamples(pd pprofile.Profiles) (n int) {
	for _, rp := range pd.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, profile := range sp.Profiles().All() {
				n += samplesIn(profile)
			}
		}
	}
	return n
}
