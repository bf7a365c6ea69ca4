// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/trigger"
)

// gate judges batches of profiles, on their senders' goroutines.
type gate struct {
	scope         Scope
	passUnmatched bool
	types         map[string][]profileType // per policy; none: all
	units         *units
	host          host      // nil where control groups cannot be read
	recorder      *recorder // nil without pre_trigger
	now           func() time.Time
	log           *zap.Logger

	judgements sync.Pool
	said       sync.Map // of noUnit: why profiles were unmatched, each logged once
}

// verdict is what is decided of one profile.
type verdict struct {
	outcome sampleOutcome // if the next component accepts it, where it is not dropped
	fate    fate
	samples int
	bytes   int // as marshalled, with its part of what profiles share
}

// judgement is what is decided of a batch: per profile, in order, the question
// that was asked and the verdict. It is used again for other batches.
type judgement struct {
	admissions []admission
	verdicts   []verdict
	leaving    int // profiles that are not dropped
	stamped    int // of those, the ones with a reason
	hollow     bool
}

func (g *gate) judge(pd pprofile.Profiles) *judgement {
	j, ok := g.judgements.Get().(*judgement)
	if !ok {
		j = &judgement{}
	}
	now := g.now()
	for _, rp := range pd.ResourceProfiles().All() {
		g.judgeResource(j, pd.Dictionary(), rp, now)
	}
	return j
}

// release gives a judgement back.
func (g *gate) release(j *judgement) {
	j.admissions, j.verdicts = j.admissions[:0], j.verdicts[:0]
	j.leaving, j.stamped, j.hollow = 0, 0, false
	g.judgements.Put(j)
}

// judgeResource judges the profiles of one resource: they belong to one unit,
// and each has a capture window and a type of its own.
func (g *gate) judgeResource(j *judgement, d pprofile.ProfilesDictionary, rp pprofile.ResourceProfiles, now time.Time) {
	first := len(j.verdicts)
	var last time.Time
	for _, sp := range rp.ScopeProfiles().All() {
		for _, p := range sp.Profiles().All() {
			start, end := captureWindow(p, now)
			if end.After(last) {
				last = end
			}
			j.ask(start, end)
			j.verdicts = append(j.verdicts, verdict{samples: samplesIn(p)})
		}
		j.hollow = j.hollow || sp.Profiles().Len() == 0
	}
	if len(j.verdicts) == first {
		j.hollow = true
		return
	}
	c := claimOf(rp.Resource().Attributes())
	t, why := target{}, noControlGroups
	if g.host != nil {
		t, why = match(g.host, g.scope, c, last)
	}
	why = g.units.Admit(t, c, why, now, j.admissions[first:])

	i := first
	for _, sp := range rp.ScopeProfiles().All() {
		for _, p := range sp.Profiles().All() {
			v, a := &j.verdicts[i], &j.admissions[i]
			i++
			reason := why
			if reason == "" && t.since.After(a.end) {
				reason, a.openings = startedLater, a.openings[:0]
			}
			open := len(a.openings) > 0
			if open {
				a.openings = g.ofType(a.openings, d, p)
			}
			switch {
			case len(a.openings) > 0:
				v.outcome, v.fate = samplePassed, stamped
			case open:
				v.outcome = sampleFiltered
			case reason == "":
				v.outcome = sampleGateShut
			default:
				v.outcome = sampleUnmatched
				if g.passUnmatched {
					v.fate = kept
				}
				g.sayUnmatched(reason, c)
			}
			if v.samples == 0 && p.OriginalPayload().Len() == 0 {
				v.fate = dropped // backends refuse it
			}
			if v.fate != dropped {
				j.leaving++
			}
			if v.fate == stamped {
				j.stamped++
			}
		}
	}
}

// ofType keeps the openings whose policy lets out the type of a profile.
func (g *gate) ofType(openings []*trigger.Opening, d pprofile.ProfilesDictionary, p pprofile.Profile) []*trigger.Opening {
	return slices.DeleteFunc(openings, func(o *trigger.Opening) bool { return !letsOut(g.types[o.Policy], d, p) })
}

// ask adds a question, in the memory of an earlier one.
func (j *judgement) ask(start, end time.Time) {
	n := len(j.admissions)
	if n == cap(j.admissions) {
		j.admissions = append(j.admissions, admission{})
	}
	j.admissions = j.admissions[:n+1]
	a := &j.admissions[n]
	a.start, a.end, a.openings = start, end, a.openings[:0]
}

// sayUnmatched says once for each reason why profiles are of no known unit.
func (g *gate) sayUnmatched(why noUnit, c claim) {
	if _, said := g.said.Load(why); said {
		return
	}
	if _, said := g.said.LoadOrStore(why, true); said {
		return
	}
	g.log.Info("profiles of no known unit", zap.String("why", string(why)),
		zap.String(attrContainerID, cut(c.containerID)), zap.String(attrCgroup, cut(c.cgroup)), zap.Int(attrPID, c.pid),
		zap.String(attrExecutableName, cut(c.executableName)), zap.String(attrHostName, cut(c.hostName)), zap.String(attrHostID, cut(c.hostID)))
}

// captureWindow is when a profile was taken. Without a time, arrival stands for
// it.
func captureWindow(p pprofile.Profile, now time.Time) (start, end time.Time) {
	if p.Time() == 0 || p.Time() > math.MaxInt64 {
		return now, now
	}
	start = p.Time().AsTime()
	return start, start.Add(time.Duration(min(p.DurationNano(), math.MaxInt64)))
}

// samplesIn counts events: a sample's timestamps if it has any, else one.
func samplesIn(p pprofile.Profile) (n int) {
	samples := p.Samples()
	for i := range samples.Len() {
		n += max(1, samples.At(i).TimestampsUnixNano().Len())
	}
	return n
}

// letsOut says whether a policy's profile_types have the type of a profile.
func letsOut(types []profileType, d pprofile.ProfilesDictionary, p pprofile.Profile) bool {
	if len(types) == 0 {
		return true
	}
	str := func(i int32) string {
		if i < 0 || int(i) >= d.StringTable().Len() {
			return ""
		}
		return d.StringTable().At(int(i))
	}
	name, unit := str(p.SampleType().TypeStrindex()), str(p.SampleType().UnitStrindex())
	kind := name
	if name == "samples" { // of what, the period says
		kind = str(p.PeriodType().TypeStrindex())
	}
	for _, t := range types {
		if t.unit == "" && t.name == kind || t.unit != "" && t.name == name && t.unit == unit {
			return true
		}
	}
	return false
}

// ConsumeProfiles lets out the profiles of units whose gate is open, or was when
// they were taken.
func (p *cpuTrigger) ConsumeProfiles(ctx context.Context, pd pprofile.Profiles) error {
	var counts [numSampleOutcomes]int64
	defer p.counters.sample(ctx, &counts)
	if p.closed.Load() {
		for _, rp := range pd.ResourceProfiles().All() {
			for _, sp := range rp.ScopeProfiles().All() {
				for _, profile := range sp.Profiles().All() {
					counts[sampleShutdown] += int64(samplesIn(profile))
				}
			}
		}
		return errShutdown
	}
	j := p.gate.judge(pd)
	defer p.gate.release(j)
	var err error
	if j.leaving > 0 {
		out := j.part(pd)
		j.dress(out)
		err = p.next.ConsumeProfiles(ctx, out)
	}
	p.units.settle(j, err)
	for _, v := range j.verdicts {
		if v.fate != dropped && err != nil {
			v.outcome = sampleRefused
		}
		counts[v.outcome] += int64(v.samples)
	}
	return err
}

// part is the part of a batch that leaves: the batch itself if it is all of it.
func (j *judgement) part(pd pprofile.Profiles) pprofile.Profiles {
	if j.leaving == len(j.verdicts) && !j.hollow && !pd.IsReadOnly() && (j.stamped == 0 || !hasReason(pd.Dictionary())) {
		return pd
	}
	return split(pd, func(profile int) fate { return j.verdicts[profile].fate })
}

// dress stamps what leaves, and finds out how large each part of it is.
func (j *judgement) dress(out pprofile.Profiles) {
	var s *stamper
	if j.stamped > 0 {
		s = newStamper(out.Dictionary())
	}
	var size pprofile.ProtoMarshaler
	samples, bytes, n := 0, 0, 0
	for _, rp := range out.ResourceProfiles().All() {
		var first *trigger.Opening
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				for j.verdicts[n].fate == dropped {
					n++
				}
				v, a := &j.verdicts[n], &j.admissions[n]
				n++
				if v.fate != stamped {
					continue
				}
				s.stamp(p, a.openings, a.start, a.end)
				if o := a.openings[0]; first == nil || o.FiredAt.Before(first.FiredAt) || o.FiredAt.Equal(first.FiredAt) && o.Policy < first.Policy {
					first = o
				}
				v.bytes = size.ProfileSize(p)
				bytes += v.bytes
				samples += v.samples
			}
		}
		dress(rp.Resource().Attributes())
		if first != nil {
			rp.Resource().Attributes().PutStr(attrPolicy, first.Policy)
		}
	}
	if samples == 0 {
		return
	}
	shared := size.ProfilesSize(out) - bytes
	for i := range j.verdicts {
		if v := &j.verdicts[i]; v.fate == stamped {
			v.bytes += shared * v.samples / samples
		}
	}
}

// settle tells the openings what became of the profiles that they let out.
func (us *units) settle(j *judgement, err error) {
	if j.stamped == 0 {
		return
	}
	why := ""
	if err != nil {
		why = cut(err.Error())
	}
	us.mu.Lock()
	defer us.mu.Unlock()
	for i, v := range j.verdicts {
		if v.fate != stamped {
			continue
		}
		for _, o := range j.admissions[i].openings {
			if err != nil {
				o.Refuse(why)
			} else {
				o.Accepted(v.samples, v.bytes)
			}
		}
	}
}
