// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package units holds the units that are watched, with the decision core and the
// recorder, which one lock guards. The methods of Set take it, and so do those of the
// recorder that its sender calls.
package units

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
)

const (
	// Max bounds the units. Profiles of further ones are unmatched; units are
	// forgotten as they go.
	Max = 10_000

	// maxDeparted bounds the ended processes whose late profiles are still matched,
	// each for departedFor; at the bound further ones are not remembered.
	maxDeparted = 4096
	departedFor = 30 * time.Second
)

// ErrTooMany is returned for a unit beyond the bound.
var ErrTooMany = errors.New(string(identify.TooManyUnits))

// Config configures a Set.
type Config struct {
	Engine    *trigger.Engine
	Recorder  *recorder.Recorder
	Lock      *sync.Mutex // the recorder's too
	Selectors *Selectors
	// ByService: cooldowns or budgets are a service's, so a unit opens no gate
	// before its first profile, which names its service.
	ByService bool
	// LimitBytes: max_bytes_per_hour is set.
	LimitBytes bool
}

// departure is a process that was a unit and has ended.
type departure struct {
	name    string
	started time.Time
	until   time.Time
}

// Set is the units that are watched. Its lock is held for moments only, never over
// I/O, a log line or a call of the next component. It is safe for concurrent use.
type Set struct {
	cfg     Config
	changed chan struct{}

	mu         *sync.Mutex // of Config; guards the rest, and what cfg points to
	promised   int         // bytes of max_bytes_per_hour that are on their way
	byName     map[string]*Unit
	added      []*Unit           // since the last TakeAdded
	departed   map[int]departure // by pid
	sweptAt    time.Time         // departed
	pending    []Transition
	began      bool      // the first profile of an opening was accepted since TakePending
	heldBackAt time.Time // when max_bytes_per_hour held a profile back last
	tooMany    int       // cgroups of the last scan that are not watched, at the bound
	claimed    int       // those that carry the id of a container that runs elsewhere
	resources  resources
}

// New returns a set without units.
func New(cfg Config) *Set {
	return &Set{cfg: cfg, mu: cfg.Lock, changed: make(chan struct{}, 1), byName: map[string]*Unit{}, departed: map[int]departure{}}
}

// Changed returns a channel that gets a token when there are transitions to
// report.
func (s *Set) Changed() <-chan struct{} { return s.changed }

// Lookup returns a unit by its name.
func (s *Set) Lookup(name string) (*Unit, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.byName[name]
	return u, ok
}

// Named reports whether a profile or a request has named a unit.
func (s *Set) Named(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.byName[name]
	return ok && u.serviceName() != ""
}

// GroupOf returns the group of a unit by its name.
func (s *Set) GroupOf(name string) (cgroup.Group, bool) {
	if u, ok := s.Lookup(name); ok {
		return u.Group, true
	}
	return cgroup.Group{}, false
}

// Add adds a unit, or records that it was seen. It reports false at the bound.
func (s *Set) Add(id identify.Identity, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(id, now) != nil
}

// add returns nil at the bound.
func (s *Set) add(id identify.Identity, now time.Time) *Unit {
	if u, ok := s.byName[id.Name]; ok {
		if id.Group.ContainerID == "" || u.Group.Same(id.Group) {
			u.seen = now
			return u
		}
		// Another cgroup had the container's name for as long as the container did not
		// run: what that one did, its cooldowns included, is not the container's.
		s.remove(u, now)
		s.cfg.Engine.Forget(id.Name)
	}
	if len(s.byName) >= Max {
		return nil
	}
	u := &Unit{Identity: id, decision: s.cfg.Engine.Decision(id.Name), seen: now}
	at := id.Group
	if u.IsProcess() {
		at = id.Within
		u.decision.SetStarted(id.Started)
	}
	u.Path, u.ContainerID = at.Cgroup, at.ContainerID
	s.resources.forget(u)
	if s.cfg.ByService {
		u.decision.AwaitService()
	}
	s.cfg.Selectors.begin(u)
	s.byName[id.Name] = u
	s.added = append(s.added, u)
	return u
}

// Admit answers for all profiles of one resource. why is that of identify.Match;
// where it is empty, the profiles belong to the unit id, which is added if it is
// new. Else id may be a unit that is gone: its profiles may have been captured
// while its gate was open. Admit returns why, or the reason why the unit was not
// added.
func (s *Set) Admit(id identify.Identity, c identify.Claim, why identify.Unmatched, now time.Time, verdicts []Verdict) identify.Unmatched {
	s.mu.Lock()
	defer s.mu.Unlock()
	var decision *trigger.Decision
	if why == "" {
		if u := s.add(id, now); u != nil {
			if !c.Replaced {
				u.setService(c)
				s.cfg.Selectors.see(u, c.Attributes)
				s.resources.see(u, c, now)
			}
			decision = u.decision
		} else {
			why = identify.TooManyUnits
		}
	} else {
		decision = s.departedDecision(id)
	}
	if decision != nil {
		s.admit(decision, why == "", now, verdicts)
	}
	return why
}

// See records what requests say of a unit, which is added if it is new. It reports false
// at the bound.
func (s *Set) See(id identify.Identity, c identify.Claim, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.add(id, now)
	if u == nil {
		return false
	}
	u.setService(c)
	s.cfg.Selectors.see(u, c.Attributes)
	return true
}

// departedDecision returns the decision of a unit that is gone, or nil.
func (s *Set) departedDecision(id identify.Identity) *trigger.Decision {
	name := id.Name
	if name == "" {
		d, ok := s.departed[id.Process.PID]
		if !ok || id.Started.IsZero() || !identify.SameProcess(id.Started, d.started) {
			return nil
		}
		name = d.name
	}
	decision, ok := s.cfg.Engine.Lookup(name)
	if !ok {
		return nil
	}
	return decision
}

// Reserve sets aside the bytes of profiles that leave, within max_bytes_per_hour.
// Those that are over budget are held back. It returns their number.
func (s *Set) Reserve(verdicts []Verdict, now time.Time) (heldBack int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range verdicts {
		v := &verdicts[i]
		switch {
		case v.Route != Stamped:
		case s.affords(v.Openings[0], s.promised+v.Bytes, now):
			s.promised += v.Bytes
		default:
			v.Route, v.Outcome = HeldBack, counters.SampleOverBudget
			heldBack++
		}
	}
	return heldBack
}

// Settle counts profiles for their openings: err is that of the next component.
// again: it refused them before, which was counted then.
func (s *Set) Settle(verdicts []Verdict, err error, again bool, now time.Time) {
	why := ""
	if err != nil {
		why = Shorten(err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range verdicts {
		s.settle(&verdicts[i], err, why, again, now)
	}
}

// OpenGate opens the gate of a unit by hand or by an alert; see [trigger.Decision.OpenGate].
// The unit is added if it is new.
func (s *Set) OpenGate(id identify.Identity, a trigger.Alert, d time.Duration, now time.Time) (o trigger.Opening, changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.add(id, now)
	if u == nil {
		return trigger.Opening{}, false, ErrTooMany
	}
	of, changed, err := u.decision.OpenGate(a, d, now)
	if err != nil {
		return trigger.Opening{}, false, err
	}
	if changed {
		s.evaluate(now) // which reports that it is open
	}
	return *of, changed, nil
}

// CloseGate closes what an alert, or without a key a person, opened of a unit. It returns
// that opening and the policies by which the gate stays open. ok is false if there is
// none.
func (s *Set) CloseGate(name, key string, now time.Time) (o trigger.Opening, still []string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.byName[name]
	if !ok {
		return trigger.Opening{}, nil, false
	}
	closed := u.decision.CloseGate(key, now)
	if closed == nil {
		return trigger.Opening{}, nil, false
	}
	still = others(u.decision, closed)
	s.evaluate(now) // which reports that it is closed
	return *closed, still, true
}

// TakeAdded returns the units that were added since the last call.
func (s *Set) TakeAdded() []*Unit {
	s.mu.Lock()
	defer s.mu.Unlock()
	added := s.added
	s.added = nil
	return added
}

// Reading is one monitor's reading of a unit.
type Reading struct {
	monitor.Result
	Value float64 // since the reading before; set by Observe
	Known bool    // there is a value
}

// Readings are the readings of a unit at one time.
type Readings struct {
	Unit      *Unit
	Time      time.Time
	Readings  []Reading // one per monitor
	UserShare float64   // of its CPU time; below 0: not known
	Started   time.Time // its first process; zero: not known now
	Gone      bool      // there is nothing to read
}

// Observe gives the readings of several units to the decision core. It sets Value
// and Known of each reading, and Gone of units that were removed.
func (s *Set) Observe(monitors []string, of []Readings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range of {
		r := &of[i]
		r.Gone = r.Gone || r.Unit.forgotten
		if !r.Gone {
			r.Unit.observe(monitors, r)
		}
	}
}

func (u *Unit) observe(monitors []string, r *Readings) {
	for m := range r.Readings {
		reading := &r.Readings[m]
		if reading.Err != nil {
			continue
		}
		if reading.Restarted {
			u.decision.Restart(monitors[m])
		}
		reading.Value, reading.Known = u.decision.Observe(monitors[m], trigger.Reading{Time: reading.Reading.Time, Num: reading.Reading.Num, Den: reading.Reading.Den})
		if u.IsProcess() {
			u.seen = r.Time // it runs, though profiles may be rare
		}
	}
	u.userShare = r.UserShare
	if !r.Started.IsZero() {
		u.decision.SetStarted(r.Started)
	}
}

// Remove forgets a unit that is gone, and closes its gates.
func (s *Set) Remove(u *Unit, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(u, now)
}

func (s *Set) remove(u *Unit, now time.Time) {
	if u.forgotten {
		return
	}
	u.forgotten = true
	s.report(s.cfg.Engine.Remove(u.Name, now))
	s.resources.forget(u)
	delete(s.byName, u.Name)
	if !u.IsProcess() {
		return
	}
	if now.Sub(s.sweptAt) >= time.Second { // not for each of very many that go at once
		s.sweptAt = now
		maps.DeleteFunc(s.departed, func(_ int, d departure) bool { return now.After(d.until) })
	}
	if len(s.departed) < maxDeparted {
		s.departed[u.Process.PID] = departure{name: u.Name, started: u.Started, until: now.Add(departedFor)}
	}
}

// Expire forgets the units that were last seen before a time.
func (s *Set) Expire(before, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.byName {
		if u.seen.Before(before) {
			s.remove(u, now)
		}
	}
}

// Evaluate evaluates all policies.
func (s *Set) Evaluate(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evaluate(now)
}

func (s *Set) evaluate(now time.Time) {
	s.report(s.cfg.Engine.Evaluate(now))
	s.cfg.Recorder.Sweep(now)
}

// SetPolicies replaces all policies, or with an error none. See trigger.SetPolicies and
// Selectors. It takes some milliseconds per 1,000 units.
func (s *Set) SetPolicies(monitors []trigger.Monitor, policies []trigger.Policy, selectors *Selectors, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	transitions, err := s.cfg.Engine.SetPolicies(monitors, policies, now)
	if err != nil {
		return err
	}
	for _, u := range s.byName {
		selectors.replace(s.cfg.Selectors, u)
	}
	s.cfg.Selectors = selectors
	s.report(transitions)
	s.cfg.Recorder.Sweep(now)
	return nil
}

// TakePending returns the transitions since the last call, and whether the first
// profile of an opening was accepted meanwhile.
func (s *Set) TakePending() (pending []Transition, began bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pending, began = s.pending, s.began
	s.pending, s.began = nil, false
	return pending, began
}

// Close closes every gate, for good.
func (s *Set) Close(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report(s.cfg.Engine.Close(now))
}

// Snapshot returns what a restart must not forget.
func (s *Set) Snapshot(now time.Time) trigger.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.Engine.Snapshot(now)
}

// Restore restores a snapshot. It must be called before the first evaluation.
func (s *Set) Restore(snapshot trigger.Snapshot, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Engine.Restore(snapshot, now)
}

// SetRefused sets how many cgroups of the last scan are not watched, by reason.
func (s *Set) SetRefused(tooMany, claimed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tooMany, s.claimed = tooMany, claimed
}

// Count returns the figures for the metrics.
func (s *Set) Count() counters.Figures {
	s.mu.Lock()
	defer s.mu.Unlock()
	return counters.Figures{
		Units: len(s.byName), Gates: s.cfg.Engine.ActiveOpenings(),
		TooMany: s.tooMany, Claimed: s.claimed, Forgotten: s.cfg.Engine.Forgotten(),
	}
}

// Hot is a hot unit, and how hot it is.
type Hot struct {
	*Unit
	Heat float64
}

// AppendHot appends the units that are hot, in no order.
func (s *Set) AppendHot(dst []Hot) []Hot {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.byName {
		if u.decision.Hot() {
			dst = append(dst, Hot{Unit: u, Heat: u.decision.Heat()})
		}
	}
	return dst
}

// AppendConnected appends the units whose connections are to be read: the hot ones, if
// hot is set, and then those to which a policy with one of some monitors applies.
func (s *Set) AppendConnected(dst []identify.Identity, hot bool, monitors []string) []identify.Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rest []identify.Identity
	for _, u := range s.byName {
		switch {
		case hot && u.decision.Hot():
			dst = append(dst, u.Identity)
		case len(monitors) > 0 && u.decision.Uses(monitors):
			rest = append(rest, u.Identity)
		}
	}
	return append(dst, rest...)
}

// Status describes a unit's state under the conditions of the policies.
type Status struct {
	Unit       string
	Conditions []trigger.ConditionStatus
	ratio      float64 // of the condition nearest to its threshold
}

// Statuses returns how the units stand that are nearest to a threshold, at most
// so many.
func (s *Set) Statuses(most int, now time.Time) (out []Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.byName {
		ratio := -1.0 // no policy applies to it, or there are too few readings
		if nearest, ok := u.decision.Nearest(now); ok {
			ratio = nearest.Ratio()
		}
		out = append(out, Status{Unit: u.Name, ratio: ratio})
	}
	slices.SortFunc(out, func(a, b Status) int {
		return cmp.Or(cmp.Compare(b.ratio, a.ratio), cmp.Compare(a.Unit, b.Unit))
	})
	out = out[:min(len(out), most)]
	for i := range out {
		out[i].Conditions = s.byName[out[i].Unit].decision.Conditions(nil, now)
	}
	return out
}

// SetHost sets the name of the host, which the resources of events have in any case.
func (s *Set) SetHost(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resources.host = name
}

// KeepResources keeps the attributes of units' resources, for events and alerts, without
// those that skip reports.
func (s *Set) KeepResources(skip func(key string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resources.skip = skip
}

// Described returns all units.
func (s *Set) Described() []Described {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Described, 0, len(s.byName))
	for _, u := range s.byName {
		out = append(out, Described{u, u.resource.attributes})
	}
	return out
}

// Record holds captures in the recorder. It adds the samples that are not held to
// counts.
func (s *Set) Record(captures []recorder.Capture, counts *counters.Samples) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Recorder.Put(captures, counts)
}
