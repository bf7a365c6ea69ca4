// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package units holds the watched units, the decision core and the recorder, which share
// one lock. All methods of Set take the lock, and so do the recorder methods that the
// recorder's Sender calls.
package units

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
)

const (
	// Max is the maximum number of units. When the maximum is reached, profiles of new
	// units are unmatched until a unit is removed.
	Max = 10_000

	// maxDeparted limits the ended processes that are remembered, so that late profiles of
	// these processes still match. The process that ended first is forgotten first.
	maxDeparted = 4096
)

// ErrTooMany is returned if a new unit would exceed Max.
var ErrTooMany = errors.New(string(identify.TooManyUnits))

// Config configures a Set.
type Config struct {
	Engine    *trigger.Engine
	Recorder  *recorder.Recorder
	Lock      *sync.Mutex // also the recorder's lock
	Selectors *Selectors
	// ByService is true if cooldowns or budgets apply to a service. The gate of a unit
	// then stays shut until the first profile names the unit's service.
	ByService bool
}

// Set is the set of watched units. Its lock is held only briefly. The lock is never held
// while Set does I/O, writes a log line, or calls the next component. Set is safe for
// concurrent use.
type Set struct {
	cfg     Config
	changed chan struct{}

	mu         *sync.Mutex // Config.Lock; guards the fields below and the objects that cfg points to
	promised   int         // reserved bytes of max_bytes_per_hour that are being sent
	byName     map[string]*Unit
	added      []*Unit                                // units that were added since the last TakeAdded
	departed   *simplelru.LRU[int, identify.Identity] // ended processes, by pid
	pending    []Transition
	began      bool      // the first profile of an opening was accepted since the last TakePending
	heldBackAt time.Time // when max_bytes_per_hour last held back a profile
	tooMany    int       // cgroups of the last scan that are not watched because of Max
	claimed    int       // cgroups of the last scan with the id of a container that runs elsewhere
	resources  resources
}

// New returns a set without units.
func New(cfg Config) *Set {
	departed, _ := simplelru.NewLRU[int, identify.Identity](maxDeparted, nil) // fails only for a size below 1
	return &Set{cfg: cfg, mu: cfg.Lock, changed: make(chan struct{}, 1), byName: map[string]*Unit{}, departed: departed}
}

// Changed returns a channel that receives a token when there are transitions to report.
func (s *Set) Changed() <-chan struct{} { return s.changed }

// Lookup returns a unit by its name.
func (s *Set) Lookup(name string) (*Unit, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.byName[name]
	return u, ok
}

// Named reports whether a profile or a request has set the service name of a unit.
func (s *Set) Named(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.byName[name]
	return ok && u.serviceName() != ""
}

// GroupOf returns the group of the unit with the given name.
func (s *Set) GroupOf(name string) (cgroup.Group, bool) {
	if u, ok := s.Lookup(name); ok {
		return u.Group, true
	}
	return cgroup.Group{}, false
}

// Add adds a unit, or records that a known unit was seen. It
// returns false if Max units are watched.
func (s *Set) Add(id identify.Identity, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(id, now) != nil
}

// add adds a unit, or records that a known unit was seen. It
// returns nil if Max units are watched.
func (s *Set) add(id identify.Identity, now time.Time) *Unit {
	if u, ok := s.byName[id.Name]; ok {
		if id.Group.ContainerID == "" || u.Group.Same(id.Group) {
			u.seen = now
			return u
		}
		// The known unit is another cgroup, which had the container's name while the
		// container did not run. The container does not inherit the state of this cgroup,
		// such as its cooldowns.
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
	s.cfg.Selectors.begin(u, new(Selectors))
	s.byName[id.Name] = u
	s.added = append(s.added, u)
	return u
}

// Admit prepares the verdicts on all profiles of one resource. why is the result of
// identify.Match. If why is empty, the profiles belong to the unit id, which Admit adds
// if it is new. Otherwise id may name a removed unit whose gate was open when the
// profiles were captured. Admit returns why, or the reason why the unit was not added.
func (s *Set) Admit(id identify.Identity, c identify.Claim, why identify.Unmatched, now time.Time, verdicts []*Verdict) identify.Unmatched {
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

// See records the service and the attributes of a unit that sends requests. The unit is
// added if it is new. See returns false if Max units are watched.
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

// departedDecision returns the decision of a unit that is gone. It returns nil if the
// decision is not known any more.
func (s *Set) departedDecision(id identify.Identity) *trigger.Decision {
	name := id.Name
	if name == "" {
		ended, ok := s.departed.Peek(id.Process.PID)
		if !ok || id.Started.IsZero() || !identify.SameProcess(id.Started, ended.Started) {
			return nil
		}
		name = ended.Name
	}
	decision, _ := s.cfg.Engine.Lookup(name) // nil if the unit is forgotten
	return decision
}

// Reserve reserves bytes of max_bytes_per_hour for the stamped profiles. It holds back the
// profiles that exceed the budget, and returns their number.
func (s *Set) Reserve(verdicts []*Verdict, now time.Time) (heldBack int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range verdicts {
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

// Settle counts profiles for their openings. err is the error of the next component. If
// again is true, an earlier refusal of these profiles is already counted.
func (s *Set) Settle(verdicts []*Verdict, err error, again bool, now time.Time) {
	why := ""
	if err != nil {
		why = Shorten(err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range verdicts {
		s.settle(v, err, why, again, now)
	}
}

// OpenGate opens the gate of a unit at the request of a user or an alert. If the unit is
// new, OpenGate adds it. See [trigger.Decision.OpenGate].
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
		s.evaluate(now) // reports that the gate is open
	}
	return *of, changed, nil
}

// CloseGate closes an opening that an alert opened. key identifies the alert. An empty
// key selects the opening that was opened by hand. CloseGate returns the opening, and
// the policies that still keep the gate open. ok is false if no such opening exists.
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
	s.evaluate(now) // reports that the gate is closed
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

// Readings are the readings of a unit at one time.
type Readings struct {
	Unit      *Unit
	Time      time.Time
	Results   []monitor.Result
	Values    []float64 // values since the previous reading, which Observe sets; NaN: not known
	UserShare float64   // user share of its CPU time; below 0: not known
	Started   time.Time // start of its first process; zero: not known
	Gone      bool      // the unit is gone
	Shown     bool      // the debug log shows the unit
}

// Observe passes the readings of several units to the decision core. It sets Values, and
// sets Gone for units that were removed.
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
	for m, result := range r.Results {
		r.Values[m] = math.NaN()
		if result.Err != nil {
			continue
		}
		if result.Restarted {
			u.decision.Restart(monitors[m])
		}
		if value, ok := u.decision.Observe(monitors[m], trigger.Reading(result.Reading)); ok {
			r.Values[m] = value
		}
		if u.IsProcess() {
			u.seen = r.Time // the process is running, even if its profiles are rare
		}
	}
	u.userShare, r.Shown = r.UserShare, u.shown
	if !r.Started.IsZero() {
		u.decision.SetStarted(r.Started)
	}
}

// Remove removes a unit that is gone, and closes its gates.
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
	if u.IsProcess() {
		s.departed.Add(u.Process.PID, u.Identity)
	}
}

// Expire removes the units that were last seen before a time.
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

// SetPolicies replaces all policies. If SetPolicies fails, the policies stay unchanged. A
// call takes a few milliseconds per 1,000 units. See trigger.SetPolicies and Selectors.
func (s *Set) SetPolicies(monitors []trigger.Monitor, policies []trigger.Policy, selectors *Selectors, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	transitions, err := s.cfg.Engine.SetPolicies(monitors, policies, now)
	if err != nil {
		return err
	}
	for _, u := range s.byName {
		selectors.begin(u, s.cfg.Selectors)
	}
	s.cfg.Selectors = selectors
	s.report(transitions)
	s.cfg.Recorder.Sweep(now)
	return nil
}

// TakePending returns the transitions since the last call. began reports whether the
// first profile of an opening was accepted since then.
func (s *Set) TakePending() (pending []Transition, began bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pending, began = s.pending, s.began
	s.pending, s.began = nil, false
	return pending, began
}

// Close closes every gate permanently.
func (s *Set) Close(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report(s.cfg.Engine.Close(now))
}

// Snapshot returns the state that must survive a restart.
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

// SetRefused sets the numbers of cgroups from the last scan that are not watched. tooMany
// counts cgroups beyond Max. claimed counts cgroups with the id of a container that runs
// elsewhere.
func (s *Set) SetRefused(tooMany, claimed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tooMany, s.claimed = tooMany, claimed
}

// Count returns the numbers that the metrics report.
func (s *Set) Count() counters.Figures {
	s.mu.Lock()
	defer s.mu.Unlock()
	return counters.Figures{
		Units: len(s.byName), Gates: s.cfg.Engine.ActiveOpenings(),
		TooMany: s.tooMany, Claimed: s.claimed, Forgotten: s.cfg.Engine.Forgotten(),
	}
}

// Hot is a hot unit and its heat.
type Hot struct {
	*Unit
	Heat float64
}

// Hotter orders units by descending heat, and then by name.
func Hotter(a, b Hot) int { return cmp.Or(cmp.Compare(b.Heat, a.Heat), cmp.Compare(a.Name, b.Name)) }

// AppendHot appends the hot units in no particular order.
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

// AppendConnected appends the units whose connections are to be read. If hot is set, the
// hot units come first. The next units are the units to which a policy with one of the
// monitors applies.
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

// Statuses returns the states of at most most units, starting with the units nearest to a
// threshold. The debug log shows these units until the next call.
func (s *Set) Statuses(most int, now time.Time) (out []Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var conditions []trigger.ConditionStatus
	for _, u := range s.byName {
		u.shown = false
		ratio := -1.0 // no policy applies to the unit, or there are too few readings
		conditions = u.decision.Conditions(conditions[:0], now)
		for _, c := range conditions {
			if c.Enough {
				ratio = max(ratio, c.Ratio())
			}
		}
		out = append(out, Status{Unit: u.Name, ratio: ratio})
	}
	slices.SortFunc(out, func(a, b Status) int {
		return cmp.Or(cmp.Compare(b.ratio, a.ratio), cmp.Compare(a.Unit, b.Unit))
	})
	out = out[:min(len(out), most)]
	for i := range out {
		u := s.byName[out[i].Unit]
		u.shown, out[i].Conditions = true, u.decision.Conditions(nil, now)
	}
	return out
}

// SetHost sets the host.name of event resources without a host name.
func (s *Set) SetHost(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resources.host = name
}

// KeepResources makes the set keep the resource attributes of units for events and alerts.
// It omits attributes for which skip returns true.
func (s *Set) KeepResources(skip func(key string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resources.skip = skip
}

// Described returns all units with their resource attributes.
func (s *Set) Described() []Described {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Described, 0, len(s.byName))
	for _, u := range s.byName {
		out = append(out, Described{u, u.resource.Attributes})
	}
	return out
}

// Record adds captures to the recorder. counts includes the samples that the recorder
// drops.
func (s *Set) Record(captures []recorder.Capture, counts *counters.Samples) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Recorder.Put(captures, counts)
}
