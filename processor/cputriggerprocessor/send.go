// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
)

// ConsumeProfiles lets out the profiles of units whose gate is open, or was when
// they were taken, and records those that may still be asked for.
func (p *cpuTrigger) ConsumeProfiles(ctx context.Context, pd pprofile.Profiles) error {
	var counts counters.Samples
	defer p.counters.AddSamples(ctx, &counts)
	if p.closed.Load() {
		for _, rp := range pd.ResourceProfiles().All() {
			for _, sp := range rp.ScopeProfiles().All() {
				for _, profile := range sp.Profiles().All() {
					counts[counters.SampleShutdown] += int64(samplesIn(profile))
				}
			}
		}
		return errShutdown
	}
	j := p.gate.judge(pd)
	defer p.gate.release(j)
	if len(j.groups) > 0 {
		j.capture(pd, &counts)
		p.units.Record(j.captures, &counts)
	}
	err := p.gate.send(ctx, pd, j)
	for _, v := range j.verdicts {
		switch {
		case v.fate == recorded:
			continue
		case err != nil && v.fate != dropped && v.fate != withheld:
			v.outcome = counters.SampleRefused
		}
		counts[v.outcome] += int64(v.samples)
	}
	return err
}

// capture marshals what is to be recorded, each group by itself.
func (j *judgement) capture(pd pprofile.Profiles, counts *counters.Samples) {
	for _, g := range j.groups {
		a := &j.admissions[g.first]
		c := recorder.Capture{Unit: g.unit, Start: a.start, End: a.end, Dry: g.dry, Samples: g.samples}
		var err error
		if len(j.groups) == 1 && !j.hollow && j.picked(g) == len(j.verdicts) {
			c.Data, err = recorder.Pack(pd)
		} else {
			j.pick(g)
			c.Data, err = recorder.Pack(j.subset.Copy(pd, j.picks))
		}
		if err != nil { // what cannot be marshalled cannot be kept
			counts[counters.SampleEvicted] += int64(c.Samples)
			continue
		}
		j.captures = append(j.captures, c)
	}
}

func (j *judgement) picked(g group) int {
	j.pick(g)
	return len(j.picks)
}

// pick lists the profiles of a group.
func (j *judgement) pick(g group) {
	j.picks = j.picks[:0]
	for i := g.first; ; i = j.verdicts[i].next {
		j.picks = append(j.picks, j.verdicts[i].at)
		if i == g.last {
			return
		}
	}
}

// send hands on what of a batch is to leave, and tells the openings what became
// of it. The batch is not to be used afterwards.
func (g *gate) send(ctx context.Context, pd pprofile.Profiles, j *judgement) error {
	var err error
	if j.leaving > 0 {
		out, clean := j.part(pd)
		j.dress(out, clean, g.remove)
		if j.stamped > 0 {
			g.measure(out, j)
		}
		if g.byteBudget && j.stamped > 0 {
			out = g.withinBudget(out, j)
		}
		if j.leaving > 0 {
			err = g.next.ConsumeProfiles(ctx, out)
		}
	}
	if j.stamped > 0 || j.dry > 0 {
		g.units.settle(j, err, g.byteBudget)
	}
	return err
}

// part is the part of a batch that leaves: the batch itself if it is all of it.
// clean says that no key of a reason is in its dictionary.
func (j *judgement) part(pd pprofile.Profiles) (out pprofile.Profiles, clean bool) {
	if j.leaving == len(j.verdicts) && !j.hollow && !pd.IsReadOnly() {
		if clean = !hasReason(pd.Dictionary()); clean || j.stamped == 0 {
			return pd, clean
		}
	}
	j.picks = j.picks[:0]
	for _, v := range j.verdicts {
		if v.fate.leaves() {
			v.at.Strip = v.fate == stamped
			j.picks = append(j.picks, v.at)
		}
	}
	return j.subset.Copy(pd, j.picks), false
}

// dress stamps what leaves.
func (j *judgement) dress(out pprofile.Profiles, clean bool, remove attributeFilter) {
	s := &j.stamper
	if j.stamped > 0 {
		s.begin(out.Dictionary(), clean)
		defer s.end()
	}
	n := 0
	for _, rp := range out.ResourceProfiles().All() {
		var first *trigger.Opening
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				for !j.verdicts[n].fate.leaves() {
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
				j.one = n - 1
			}
		}
		attributes := rp.Resource().Attributes()
		setServiceName(attributes)
		if first == nil { // unmatched profiles pass with what a later component may match
			remove.applyTo(attributes, attr.Cgroup)
			continue
		}
		remove.apply(attributes)
		attributes.PutStr(attr.TriggerPolicy, first.Policy)
	}
}

// measureEvery is how often sizes are measured of what one opening lets out,
// where no budget counts them: measuring each of a flood of batches would cost a
// thirtieth of their way through a collector.
const measureEvery = 10 * time.Millisecond

// measured is what an opening let out when it was measured last.
type measured struct {
	opening   *trigger.Opening
	at        time.Time
	perSample float64 // bytes
}

// measure finds out how large each part of what leaves is, as marshalled. A batch
// of one profile that comes less than measureEvery after another of its opening
// is taken for as large by its samples, unless a budget counts bytes.
func (g *gate) measure(out pprofile.Profiles, j *judgement) {
	var marshaler pprofile.ProtoMarshaler
	if j.stamped > 1 || j.leaving > 1 {
		j.share(out)
		return
	}
	v, opening := &j.verdicts[j.one], j.admissions[j.one].openings[0]
	if last := g.measured.Load(); last != nil && last.opening == opening && !g.byteBudget && j.now.Sub(last.at) < measureEvery {
		v.bytes = int(last.perSample * float64(v.samples))
		return
	}
	v.bytes = marshaler.ProfilesSize(out)
	g.measured.Store(&measured{opening: opening, at: j.now, perSample: float64(v.bytes) / float64(max(1, v.samples))})
}

// share gives each profile its own size and, by its samples, a part of what all
// share.
func (j *judgement) share(out pprofile.Profiles) {
	var marshaler pprofile.ProtoMarshaler
	samples, bytes, n := 0, 0, 0
	for _, rp := range out.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				for !j.verdicts[n].fate.leaves() {
					n++
				}
				v := &j.verdicts[n]
				n++
				if v.fate == stamped {
					v.bytes = marshaler.ProfileSize(p)
					bytes += v.bytes
					samples += v.samples
				}
			}
		}
	}
	shared := marshaler.ProfilesSize(out) - bytes
	for i := range j.verdicts {
		if v := &j.verdicts[i]; v.fate == stamped {
			v.bytes += shared * v.samples / max(1, samples)
		}
	}
}

// withinBudget takes from what is to leave what max_bytes_per_hour does not
// allow, and sets aside there what the rest needs.
func (g *gate) withinBudget(out pprofile.Profiles, j *judgement) pprofile.Profiles {
	held := 0
	g.units.mu.Lock()
	for i := range j.verdicts {
		v := &j.verdicts[i]
		if v.fate != stamped {
			continue
		}
		if g.units.afford(j.admissions[i].openings[0], g.units.promised+v.bytes, j.now) {
			g.units.promised += v.bytes
			continue
		}
		v.fate, v.outcome = withheld, counters.SampleOverBudget
		j.stamped--
		j.leaving--
		held++
	}
	g.units.mu.Unlock()
	if held == 0 || j.leaving == 0 {
		return out
	}
	j.picks = j.picks[:0]
	n := 0
	for ri, rp := range out.ResourceProfiles().All() {
		for si, sp := range rp.ScopeProfiles().All() {
			for pi := range sp.Profiles().Len() {
				for !j.verdicts[n].fate.leaves() {
					n++
				}
				if j.verdicts[n].fate != withheld {
					j.picks = append(j.picks, dictionary.ProfileRef{Resource: int32(ri), Scope: int32(si), Profile: int32(pi)})
				}
				n++
			}
		}
	}
	return j.subset.Copy(out, j.picks)
}

// admission asks which openings let a profile through, and what else is to be
// known of its unit.
type admission struct {
	start, end time.Time
	openings   []*trigger.Opening // the answer, the one that fired first in front
	dry        []*trigger.Opening // those that would, of policies that let nothing out
	unit       *trigger.Unit
	shut       counters.SampleOutcome // what becomes of it if none does and it is not recorded
	wanted     bool                   // it is recorded if none does
	busy       bool                   // records of the unit are on their way out: it goes behind them
}

// ask answers for the profiles of one unit, which is here or was; the lock is
// held.
func (us *units) ask(u *trigger.Unit, here bool, now time.Time, profiles []admission) {
	busy, wanted, shut := us.recorder.Sending(u), here && us.recorder.Wants(u, now), recorder.ShutOutcome(u, false)
	for i := range profiles {
		p := &profiles[i]
		p.openings = u.Admit(p.openings, p.start, p.end)
		p.unit, p.busy, p.shut = u, busy, shut
		p.wanted = wanted && us.recorder.Keeps(p.end, now)
	}
}

// settle tells the openings what became of the profiles that they let out.
func (us *units) settle(j *judgement, err error, byteBudget bool) {
	why := ""
	if err != nil {
		why = cut(err.Error())
	}
	us.mu.Lock()
	defer us.mu.Unlock()
	for i := range j.verdicts {
		v, a := &j.verdicts[i], &j.admissions[i]
		for _, o := range a.dry {
			o.Accepted(v.samples, v.bytes)
		}
		if v.fate != stamped {
			continue
		}
		if byteBudget {
			us.promised -= v.bytes
			if err == nil {
				us.engine.SpendBytes(v.bytes, j.now)
			}
		}
		for _, o := range a.openings {
			switch {
			case err == nil:
				if o.Profiles == 0 { // from now on a cooldown follows
					us.began = true
					us.wake()
				}
				o.Accepted(v.samples, v.bytes)
			case !j.again:
				o.Refuse(why)
			}
		}
	}
}

// sendRecorded sends what the recorder held. It reports whether the batch is
// settled.
func (p *cpuTrigger) sendRecorded(ctx context.Context, b recorder.Batch) bool {
	var counts counters.Samples
	defer p.counters.AddSamples(ctx, &counts)
	pd, err := recorder.Unpack(b.Data)
	if err != nil { // it was marshalled here
		counts[counters.SampleRefused] += int64(b.Samples)
		return true
	}
	j := p.gate.judgement()
	defer p.gate.release(j)
	j.again = b.Again
	p.gate.judgeRecorded(j, pd, b)
	err = p.gate.send(ctx, pd, j)
	if err != nil && !consumererror.IsPermanent(err) {
		return false
	}
	for _, v := range j.verdicts {
		if err != nil && v.fate == stamped {
			v.outcome = counters.SampleRefused
		}
		counts[v.outcome] += int64(v.samples)
	}
	return true
}

// judgeRecorded judges the profiles of a record by their types alone: their unit
// and their openings are known.
func (g *gate) judgeRecorded(j *judgement, pd pprofile.Profiles, b recorder.Batch) {
	for ri, rp := range pd.ResourceProfiles().All() {
		for si, sp := range rp.ScopeProfiles().All() {
			for pi, profile := range sp.Profiles().All() {
				j.ask(b.Start, b.End)
				a := &j.admissions[len(j.admissions)-1]
				a.openings = append(a.openings, b.Openings...)
				g.sieve(a, pd.Dictionary(), profile)
				v := verdict{
					outcome: counters.SampleFiltered, samples: samplesIn(profile),
					at: dictionary.ProfileRef{Resource: int32(ri), Scope: int32(si), Profile: int32(pi)},
				}
				if len(a.openings) > 0 {
					v.outcome, v.fate = counters.SamplePassed, stamped
					j.leaving++
					j.stamped++
				}
				j.verdicts = append(j.verdicts, v)
			}
		}
	}
}
