// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package routing decides whether each profile of a batch is sent to the next
// component, recorded or dropped.
package routing

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/requests"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// Router decides whether each profile of a batch is sent to the next component, recorded or
// dropped. It runs on the goroutines of the clients that send batches.
type Router struct {
	Scope         identify.Scope
	PassUnmatched bool              // unmatched is set to pass
	Remove        attributes.Filter // attributes to remove from resources
	OnResource    []string          // resource_attributes
	Units         *units.Set
	Host          identify.Host // nil if control groups cannot be read
	Requests      *requests.Intake
	Next          xconsumer.Profiles
	Counters      *counters.Counters
	Now           func() time.Time
	Log           *zap.Logger

	plans   sync.Pool
	starts  starts
	matched atomic.Bool // a profile has matched a unit
	logged  sync.Map    // logged reasons, by identify.Unmatched
}

// Consume routes a batch. It returns the error of the next component.
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

// SendRecorded sends a record. It reports whether the record is settled. For a settled
// record, it returns the outcomes of the record's samples.
func (r *Router) SendRecorded(ctx context.Context, b recorder.Batch) (settled bool, counts counters.Samples) {
	pd, err := recorder.Unpack(b.Data)
	if err != nil { // this cannot happen, because the recorder marshalled it
		counts[counters.SampleRefused] += int64(b.Samples)
		return true, counts
	}
	p := r.newPlan()
	defer r.release(p)
	p.refusedBefore = b.Refused
	r.decideRecorded(p, pd, b)
	err = r.send(ctx, pd, p)
	if err != nil && !consumererror.IsPermanent(err) {
		return false, counts
	}
	p.count(err, &counts)
	return true, counts
}

// decide returns a plan with a verdict on each profile of a batch.
func (r *Router) decide(pd pprofile.Profiles) *plan {
	p := r.newPlan()
	for _, rp := range pd.ResourceProfiles().All() {
		r.decideResource(p, pd, rp)
	}
	for why, c := range p.unmatched {
		r.logUnmatched(why, c)
	}
	return p
}

// decideResource decides which profiles of one resource pass. All these profiles belong
// to one unit, but each profile has its own capture window and type.
func (r *Router) decideResource(p *plan, pd pprofile.Profiles, rp pprofile.ResourceProfiles) {
	first := len(p.verdicts)
	var last time.Time
	for _, sp := range rp.ScopeProfiles().All() {
		for _, profile := range sp.Profiles().All() {
			start, end := captureWindow(profile, p.now)
			if end.After(last) {
				last = end
			}
			p.add(dictionary.ProfileRef{Resource: rp, Scope: sp, Profile: profile}, start, end)
		}
		p.withEmpty = p.withEmpty || sp.Profiles().Len() == 0
	}
	if len(p.verdicts) == first {
		p.withEmpty = true
		return
	}
	c := identify.ClaimOf(rp.Resource().Attributes())
	id, why := identify.Identity{}, identify.NoControlGroups
	if r.Host != nil {
		id, why = identify.Match(r.Host, r.Scope, c, last)
		c.Replaced = why == "" && !r.Units.Named(id.Name) && identify.Replaced(r.Host, c)
	}
	why = r.Units.Admit(id, c, why, p.now, p.verdicts[first:])
	if why == identify.OtherCgroup && r.PassUnmatched && !pd.IsReadOnly() { // a passing profile must not carry the id of another container
		rp.Resource().Attributes().Remove(attr.ContainerID)
		rp.Resource().Attributes().Remove(attr.PodUID)
	}
	for _, v := range p.verdicts[first:] {
		reason := why
		if reason == "" && identify.StartedAfter(id.Started, v.End) {
			reason, v.Openings = identify.StartedLater, v.Openings[:0]
		}
		v.Linked = hasLinks(pd.Dictionary()) && isLinked(v.Profile) && r.Requests.Expect()
		open := r.filter(v, pd.Dictionary())
		if isEmpty(v.Profile) { // backends refuse empty profiles
			v.Dry = v.Dry[:0]
		} else {
			r.decideProfile(p, v, open, reason)
			if reason == "" {
				r.matched.Store(true)
			} else if v.Outcome == counters.SampleUnmatched {
				p.unmatched[reason] = c
			}
		}
		if len(v.Dry) > 0 {
			v.Bytes = (&pprofile.ProtoMarshaler{}).ProfileSize(v.Profile)
		}
	}
}

// decideProfile decides whether a profile is sent, recorded or dropped. open is true if an
// opening other than a dry run admits the profile, regardless of its type. The argument
// unmatched is empty if the profile matches a unit.
func (r *Router) decideProfile(p *plan, v *units.Verdict, open bool, unmatched identify.Unmatched) {
	switch {
	case len(v.Openings) > 0 && (v.Queued || v.Linked && v.CanWait):
		p.record(v)
	case len(v.Openings) > 0:
		p.stamp(v)
	case open:
		v.Outcome = counters.SampleFiltered
	case unmatched == "" && v.Wanted:
		p.record(v)
	case unmatched == "":
		v.Outcome = v.Shut
		if v.Outcome == counters.SampleGateShut && len(v.Dry) > 0 {
			v.Outcome = counters.SampleDryRun
		}
	default:
		v.Outcome = counters.SampleUnmatched
		if r.PassUnmatched {
			p.pass(v)
		}
	}
}

// decideRecorded decides which profiles of a record are sent. The unit and the openings
// are known, so only the types of the profiles matter.
func (r *Router) decideRecorded(p *plan, pd pprofile.Profiles, b recorder.Batch) {
	for of := range dictionary.All(pd) {
		v := p.add(of, b.Start, b.End)
		v.Openings = append(v.Openings, b.Openings...)
		r.filter(v, pd.Dictionary())
		if len(v.Openings) > 0 {
			p.stamp(v)
		} else {
			v.Outcome = counters.SampleFiltered
		}
	}
}

// filter keeps the openings whose policies include the type of a profile. It
// moves openings of dry runs to Dry. open reports whether the profile had an
// opening other than a dry run.
func (r *Router) filter(v *units.Verdict, d pprofile.ProfilesDictionary) (open bool) {
	out := v.Openings[:0]
	for _, o := range v.Openings {
		fits := passesType(o.Types, d, v.Profile)
		open = open || !o.DryRun
		switch {
		case fits && o.DryRun:
			v.Dry = append(v.Dry, o)
		case fits:
			out = append(out, o)
		}
	}
	v.Openings = out
	return open
}

// passesType reports whether the profile_types of a policy include the type of a profile.
func passesType(types []string, d pprofile.ProfilesDictionary, p pprofile.Profile) bool {
	if len(types) == 0 {
		return true
	}
	of := dictionary.NewReader(d).ProfileType(p)
	kind := of.Sample
	if kind == "samples" { // then the period type names the sampled quantity
		kind = of.Period
	}
	return slices.ContainsFunc(types, func(t string) bool {
		name, unit, typed := strings.Cut(t, "/")
		return !typed && name == kind || typed && name == of.Sample && unit == of.Unit
	})
}

// logUnmatched logs each reason once. Profiles of ended processes are normal, so they are
// not logged after any profile has matched a unit.
func (r *Router) logUnmatched(why identify.Unmatched, c identify.Claim) {
	if why.OfEnded() && r.matched.Load() {
		return
	}
	if _, logged := r.logged.LoadOrStore(why, true); logged {
		return
	}
	r.Log.Info("profiles match no unit", zap.String("why", string(why)),
		zap.String(attr.ContainerID, units.Shorten(c.ContainerID)), zap.String(attr.Cgroup, units.Shorten(c.Cgroup)), zap.Int(attr.PID, c.PID),
		zap.String(attr.ExecutableName, units.Shorten(c.ExecutableName)), zap.String(attr.HostName, units.Shorten(c.HostName)), zap.String(attr.HostID, units.Shorten(c.HostID)))
}

// send sends the profiles that were passed or stamped, and counts these profiles for
// their openings. The batch must not be used afterwards.
func (r *Router) send(ctx context.Context, pd pprofile.Profiles, p *plan) error {
	var err error
	if len(p.leaving) > 0 {
		out, clean := p.part(pd, r.Remove)
		r.stamp(out, clean, p)
		if p.stamped > 0 {
			p.measure(out)
			out = r.withinBudget(out, p)
		}
		if len(p.leaving) > 0 {
			if err = r.Next.ConsumeProfiles(ctx, out); err != nil {
				r.starts.giveBack(p.taken)
			} else {
				r.Counters.AddLinked(p.joined, p.unknown)
				r.Requests.Spend(p.uses)
			}
		}
	}
	r.Units.Settle(p.verdicts, err, p.refusedBefore, p.now)
	return err
}

// stamp sets the attributes of the profiles to send, and of their resources.
func (r *Router) stamp(out pprofile.Profiles, clean bool, p *plan) {
	if p.stamped > 0 {
		p.stamper.Begin(out.Dictionary(), clean)
		defer p.stamper.End()
	}
	first := 0 // index of the resource's first verdict
	for i, v := range p.leaving {
		if v.Route == units.Stamped {
			v.Labels = p.stamper.Stamp(v.Profile, v.Openings, v.Start, v.End)
			if hasLinks(out.Dictionary()) {
				r.join(out.Dictionary(), p, v)
			}
		}
		if i+1 == len(p.leaving) || p.leaving[i+1].Resource != v.Resource {
			p.label(out, p.leaving[first:i+1], r.Remove)
			first = i + 1
		}
	}
	p.taken = r.starts.separate(out, p.taken[:0])
}

// hasLinks reports whether samples may link to spans. The first link of a dictionary is
// always empty, so it does not count.
func hasLinks(d pprofile.ProfilesDictionary) bool { return d.LinkTable().Len() > 1 }

// isLinked reports whether a sample of a profile links to a span.
func isLinked(profile pprofile.Profile) bool {
	for _, s := range profile.Samples().All() {
		if s.LinkIndex() > 0 {
			return true
		}
	}
	return false
}

// textOf returns the value of a sample's attribute. ok is false if the sample does not have
// the attribute.
func textOf(d pprofile.ProfilesDictionary, s pprofile.Sample, key string) (text string, ok bool) {
	for have, v := range dictionary.NewReader(d).Attributes(s.AttributeIndices()) {
		if have == key {
			return v.AsString(), true
		}
	}
	return "", false
}

// timeOf returns the number of milliseconds of thread time that a profile's value of 1
// represents. It returns 0 if the values are neither CPU time nor waiting time of threads.
// waiting is the sample type of waiting threads, and empty for CPU time.
func timeOf(d pprofile.ProfilesDictionary, p pprofile.Profile) (ms float64, waiting string) {
	switch t := dictionary.NewReader(d).ProfileType(p); {
	case t.Sample == "samples" && t.Period == "cpu" && t.PeriodUnit == "nanoseconds":
		return float64(p.Period()) / 1e6, ""
	case t.Unit == "nanoseconds" && (t.Sample == "off_cpu" || t.Sample == "runqueue"):
		return 1e-6, t.Sample
	}
	return 0, ""
}

// join adds the attributes of the request to the samples whose span is known. If no spans
// pass through the processor, join leaves the samples unchanged.
func (r *Router) join(d pprofile.ProfilesDictionary, p *plan, v *units.Verdict) {
	if !r.Requests.Expect() {
		return
	}
	slow := math.Inf(1)
	for _, o := range v.Openings {
		if requests.IsTime(o.Monitor) {
			slow = min(slow, o.Threshold)
		}
	}
	links := d.LinkTable()
	ms, waiting := timeOf(d, v.Profile)
	for _, s := range v.Profile.Samples().All() {
		i := int(s.LinkIndex())
		if i <= 0 || i >= links.Len() {
			continue
		}
		l, n := links.At(i), int64(max(1, s.TimestampsUnixNano().Len()))
		e, ok := r.Requests.Join(v.Openings[0].Unit, l.TraceID(), l.SpanID())
		if !ok {
			p.unknown += n
			continue
		}
		p.joined += n
		if used := (requests.Use{Ended: e, Waiting: waiting, Took: ms * float64(dictionary.ValueOf(s))}); used.Took > 0 {
			if waiting != "" {
				reason, _ := textOf(d, s, attr.Wait)
				used.Waiting = cmp.Or(reason, waiting)
			}
			for _, o := range v.Openings {
				used.Opening = o.ID
				p.uses = append(p.uses, used)
			}
		}
		route, class := attr.HTTPRoute, "normal"
		switch {
		case e.Failed:
			class = "failed"
		case e.Time > slow:
			class = "slow"
		}
		if e.RPC {
			route = attr.RPCMethod
		}
		s.AttributeIndices().Append(p.stamper.Attribute(attr.Request, class))
		if _, known := textOf(d, s, route); e.Route != "" && !known { // a label of the goroutine may be the route
			s.AttributeIndices().Append(p.stamper.Attribute(route, e.Route))
		}
	}
}

// withinBudget removes the profiles that exceed max_bytes_per_hour from a batch. It
// reserves the bytes of the remaining profiles.
func (r *Router) withinBudget(out pprofile.Profiles, p *plan) pprofile.Profiles {
	n := r.Units.Reserve(p.leaving, p.now)
	p.stamped -= n
	p.leaving = slices.DeleteFunc(p.leaving, func(v *units.Verdict) bool {
		held := v.Route == units.HeldBack
		if held {
			pprofile.NewProfile().MoveTo(v.Profile)
		}
		return held
	})
	if n == 0 || len(p.leaving) == 0 {
		return out
	}
	p.refs = p.refs[:0]
	for of := range dictionary.All(out) {
		if !isEmpty(of.Profile) {
			p.refs = append(p.refs, &of)
		}
	}
	return p.subset.Copy(out, p.refs)
}

// maxAhead is the maximum time by which a profile may end in the future, because clocks
// differ. If a profile ends later, captureWindow assumes that the clock was set back
// after the capture.
const maxAhead = time.Minute

// captureWindow returns the time span in which a profile was captured. It computes the
// age of the profile by the wall clock, and subtracts the age from now. Later changes of
// the wall clock therefore do not move the window relative to the openings of gates. A
// profile without a time is treated as captured now.
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

// samplesIn returns the number of events in a profile. A sample counts once per timestamp,
// or once if it has no timestamps.
func samplesIn(p pprofile.Profile) (n int) {
	samples := p.Samples()
	for i := range samples.Len() {
		n += max(1, samples.At(i).TimestampsUnixNano().Len())
	}
	return n
}

// CountSamples returns the number of samples in a batch.
func CountSamples(pd pprofile.Profiles) (n int) {
	for of := range dictionary.All(pd) {
		n += samplesIn(of.Profile)
	}
	return n
}
