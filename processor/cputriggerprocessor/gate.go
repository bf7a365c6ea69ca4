// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
)

// gate judges batches of profiles, on their senders' goroutines.
type gate struct {
	scope         Scope
	passUnmatched bool
	remove        attributeFilter
	types         map[string][]profileType // per policy; none: all
	units         *units
	host          identify.Host // nil where control groups cannot be read
	next          xconsumer.Profiles
	byteBudget    bool // max_bytes_per_hour is set
	now           func() time.Time
	log           *zap.Logger

	measured   atomic.Pointer[measured]
	judgements sync.Pool
	said       sync.Map // of identify.Unmatched: why profiles were unmatched, each logged once
}

// fate is what happens to a profile.
type fate uint8

const (
	dropped  fate = iota
	kept          // leaves as it came
	stamped       // leaves with a reason, in place of one that it may have
	recorded      // goes into the flight recorder
	withheld      // was to leave, and max_bytes_per_hour does not allow it
)

// leaves says whether a profile is in what is prepared for the next component.
func (f fate) leaves() bool { return f == kept || f == stamped || f == withheld }

// verdict is what is decided of one profile.
type verdict struct {
	outcome counters.SampleOutcome // if the next component accepts it, where it leaves
	fate    fate
	samples int
	bytes   int                   // as marshalled, with its part of what profiles share
	at      dictionary.ProfileRef // where it is in the batch
	next    int                   // the number of the next one of its group, above 0
}

// group are the profiles of a batch that are recorded together: those of one
// unit and capture window.
type group struct {
	groupKey
	first, last int // verdicts
	samples     int
}

type groupKey struct {
	unit       *trigger.Unit
	start, end int64
	dry        bool
}

// judgement is what is decided of a batch: per profile, in order, the question
// that was asked and the verdict. It is used again for other batches.
type judgement struct {
	now        time.Time
	admissions []admission
	verdicts   []verdict
	groups     []group
	byKey      map[groupKey]int // groups, by number
	leaving    int              // profiles that are handed on
	stamped    int              // of those, the ones with a reason
	one        int              // the verdict of one of them
	dry        int              // profiles that a policy would let out that lets nothing out
	hollow     bool             // some resource or scope has no profiles
	again      bool             // it was refused before, and the openings know

	subset   dictionary.Subset
	stamper  stamper
	picks    []dictionary.ProfileRef
	captures []recorder.Capture
}

func (g *gate) judge(pd pprofile.Profiles) *judgement {
	j := g.judgement()
	for i, rp := range pd.ResourceProfiles().All() {
		g.judgeResource(j, pd.Dictionary(), rp, i)
	}
	return j
}

func (g *gate) judgement() *judgement {
	j, ok := g.judgements.Get().(*judgement)
	if !ok {
		j = &judgement{byKey: map[groupKey]int{}, subset: dictionary.Subset{Strip: isReason}}
	}
	j.now = g.now()
	return j
}

// release gives a judgement back.
func (g *gate) release(j *judgement) {
	j.admissions, j.verdicts, j.groups = j.admissions[:0], j.verdicts[:0], j.groups[:0]
	clear(j.byKey)
	clear(j.captures)
	j.captures = j.captures[:0]
	j.leaving, j.stamped, j.dry, j.hollow, j.again = 0, 0, 0, false, false
	g.judgements.Put(j)
}

// judgeResource judges the profiles of one resource: they belong to one unit,
// and each has a capture window and a type of its own.
func (g *gate) judgeResource(j *judgement, d pprofile.ProfilesDictionary, rp pprofile.ResourceProfiles, number int) {
	first := len(j.verdicts)
	var last time.Time
	for si, sp := range rp.ScopeProfiles().All() {
		for pi, p := range sp.Profiles().All() {
			start, end := captureWindow(p, j.now)
			if end.After(last) {
				last = end
			}
			j.ask(start, end)
			j.verdicts = append(j.verdicts, verdict{samples: samplesIn(p), at: dictionary.ProfileRef{Resource: int32(number), Scope: int32(si), Profile: int32(pi)}})
		}
		j.hollow = j.hollow || sp.Profiles().Len() == 0
	}
	if len(j.verdicts) == first {
		j.hollow = true
		return
	}
	c := identify.ClaimOf(rp.Resource().Attributes())
	t, why := identify.Identity{}, identify.NoControlGroups
	if g.host != nil {
		t, why = identify.Match(g.host, g.scope, c, last)
	}
	why = g.units.Admit(t, c, why, j.now, j.admissions[first:])

	i := first
	for _, sp := range rp.ScopeProfiles().All() {
		for _, p := range sp.Profiles().All() {
			v, a := &j.verdicts[i], &j.admissions[i]
			reason := why
			if reason == "" && t.Started.After(a.end) {
				reason, a.openings = identify.StartedLater, a.openings[:0]
			}
			open := g.sieve(a, d, p)
			switch {
			case v.samples == 0 && p.OriginalPayload().Len() == 0: // backends refuse it
				a.dry = a.dry[:0]
			case len(a.openings) > 0 && a.busy:
				v.fate = recorded
			case len(a.openings) > 0:
				v.outcome, v.fate = counters.SamplePassed, stamped
			case open:
				v.outcome = counters.SampleFiltered
			case reason == "" && a.wanted:
				v.fate = recorded
			case reason == "":
				v.outcome = a.shut
				if v.outcome == counters.SampleGateShut && len(a.dry) > 0 {
					v.outcome = counters.SampleDryRun
				}
			default:
				v.outcome = counters.SampleUnmatched
				if g.passUnmatched {
					v.fate = kept
				}
				g.sayUnmatched(reason, c)
			}
			switch v.fate {
			case stamped:
				j.stamped++
				j.leaving++
			case kept:
				j.leaving++
			case recorded:
				j.group(i)
			}
			if len(a.dry) > 0 {
				v.bytes = (&pprofile.ProtoMarshaler{}).ProfileSize(p)
				j.dry++
			}
			i++
		}
	}
}

// sieve keeps the openings whose policy lets out the type of a profile, and puts
// those aside that let nothing out. It says whether there was another one.
func (g *gate) sieve(a *admission, d pprofile.ProfilesDictionary, p pprofile.Profile) (open bool) {
	out := a.openings[:0]
	for _, o := range a.openings {
		fits := letsOut(g.types[o.Policy], d, p)
		open = open || !o.DryRun
		switch {
		case fits && o.DryRun:
			a.dry = append(a.dry, o)
		case fits:
			out = append(out, o)
		}
	}
	a.openings = out
	return open
}

// group has a profile recorded with the others of its unit and capture window.
func (j *judgement) group(i int) {
	v, a := &j.verdicts[i], &j.admissions[i]
	key := groupKey{unit: a.unit, start: a.start.UnixNano(), end: a.end.UnixNano(), dry: len(a.dry) > 0}
	n := len(j.groups) - 1
	if n < 0 || j.groups[n].groupKey != key {
		var known bool
		if n, known = j.byKey[key]; !known {
			n = len(j.groups)
			j.byKey[key] = n
			j.groups = append(j.groups, group{groupKey: key, first: i, last: i, samples: v.samples})
			return
		}
	}
	g := &j.groups[n]
	j.verdicts[g.last].next = i
	g.last = i
	g.samples += v.samples
}

// ask adds a question, in the memory of an earlier one.
func (j *judgement) ask(start, end time.Time) {
	n := len(j.admissions)
	if n == cap(j.admissions) {
		j.admissions = append(j.admissions, admission{})
	}
	j.admissions = j.admissions[:n+1]
	a := &j.admissions[n]
	*a = admission{start: start, end: end, openings: a.openings[:0], dry: a.dry[:0]}
}

// sayUnmatched says once for each reason why profiles are of no known unit.
func (g *gate) sayUnmatched(why identify.Unmatched, c identify.Claim) {
	if _, said := g.said.Load(why); said {
		return
	}
	if _, said := g.said.LoadOrStore(why, true); said {
		return
	}
	g.log.Info("profiles of no known unit", zap.String("why", string(why)),
		zap.String(attr.ContainerID, cut(c.ContainerID)), zap.String(attr.Cgroup, cut(c.Cgroup)), zap.Int(attr.PID, c.PID),
		zap.String(attr.ExecutableName, cut(c.ExecutableName)), zap.String(attr.HostName, cut(c.HostName)), zap.String(attr.HostID, cut(c.HostID)))
}

// maxAhead is how far the end of a profile may lie in the future, by clocks that
// do not quite agree. Beyond it the clock was set back since it was taken.
const maxAhead = time.Minute

// captureWindow is when a profile was taken, on the clock of its arrival: as long
// ago as its end is by the wall clock now. So a wall clock that is set afterwards
// does not move it against the openings of gates. Without a time, arrival stands
// for it.
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
	is := dictionary.NewReader(d).ProfileType(p)
	kind := is.Sample
	if kind == "samples" { // of what, the period says
		kind = is.Period
	}
	for _, t := range types {
		if t.unit == "" && t.name == kind || t.unit != "" && t.name == is.Sample && t.unit == is.Unit {
			return true
		}
	}
	return false
}
