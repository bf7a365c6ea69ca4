// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
)

const (
	// maxUnits bounds the units watched. Profiles of what is beyond it are
	// unmatched; units are forgotten as they go.
	maxUnits = 10_000

	// maxDeparted bounds the ended processes whose late profiles are still told
	// apart, each for departedFor; at the bound the rest is not remembered.
	maxDeparted = 4096
	departedFor = 30 * time.Second

	// heldBackEpisode is how long no profile was over budget before it is said
	// again that one is.
	heldBackEpisode = time.Minute

	maxKept = 256 // bytes of each text from outside that is kept for log lines
)

// unit is a unit that is watched. Its name and identity do not change.
type unit struct {
	name    string
	cgroup  cgroup.Group   // zero for a process
	process procfs.Process // zero for a cgroup
	started time.Time      // of a process
	// path and containerID are of the cgroup that it is, or is in.
	path, containerID string

	// The rest is guarded by the lock of units.
	gate       *trigger.Unit
	seen       time.Time
	service    string // as its profiles said last
	executable string // likewise, for a unit without a service's name
	named      bool   // the decision core knows the service
	chosen     choice
	heldBack   string // the opening whose profiles max_bytes_per_hour kept in
	forgotten  bool
	userShare  float64 // of its CPU time while it was warm; below 0: not known
}

// departure is a process that was a unit and has ended.
type departure struct {
	name    string
	started time.Time
	until   time.Time
}

// transition is a transition that is still to be reported, with what may have
// changed by then.
type transition struct {
	trigger.Transition
	service                 string
	userShare               float64
	until                   time.Time // of the opening
	others                  []string  // policies whose gate is open beside the one that opened
	samples, bytes, refused int
	whyRefused              string
	// stopped: it is no transition; the gate is open and a budget keeps its
	// profiles in. overBudget: it was so for this opening.
	stopped, overBudget bool
}

// units holds the units that are watched, and the decision core, which is
// theirs. Its lock is held for moments only, never over I/O, a log line or a
// call of the next consumer.
type units struct {
	max int
	// selectors decide which policies apply.
	selectors *selectors
	// byService: cooldowns or budgets are a service's, so that a unit opens no
	// gate before a profile told which it is of.
	byService bool
	// changed gets a token when there is a transition to report.
	changed chan struct{}

	mu         sync.Mutex
	engine     *trigger.Engine
	recorder   *recorder.Recorder // nil without pre_trigger
	promised   int                // bytes of max_bytes_per_hour that are on their way
	byName     map[string]*unit
	added      []*unit // since the last call of takeAdded
	departed   map[int]departure
	sweptAt    time.Time // departed
	pending    []transition
	began      bool      // an opening let out its first profile since takePending
	refused    int       // units, for the bound
	heldBackAt time.Time // when max_bytes_per_hour kept a profile in last
}

func newUnits(engine *trigger.Engine, selectors *selectors) *units {
	return &units{
		max:       maxUnits,
		selectors: selectors,
		changed:   make(chan struct{}, 1),
		engine:    engine,
		byName:    map[string]*unit{},
		departed:  map[int]departure{},
	}
}

// Watched returns the cgroup of a unit that is watched.
func (us *units) Watched(name string) (cgroup.Group, bool) {
	us.mu.Lock()
	defer us.mu.Unlock()
	if u, ok := us.byName[name]; ok {
		return u.cgroup, true
	}
	return cgroup.Group{}, false
}

// Add begins to watch a unit, or says that it was seen.
func (us *units) Add(t identify.Identity, now time.Time) {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.add(t, now)
}

func (us *units) add(t identify.Identity, now time.Time) *unit {
	if u, ok := us.byName[t.Name]; ok {
		u.seen = now
		return u
	}
	if len(us.byName) >= us.max {
		us.refused++
		return nil
	}
	u := &unit{name: t.Name, cgroup: t.Group, process: t.Process, started: t.Started, gate: us.engine.Unit(t.Name), seen: now}
	place := t.Group
	if t.Process.PID != 0 {
		place = t.Within
		u.gate.SetStarted(t.Started)
	}
	u.path, u.containerID = place.Cgroup, place.ContainerID
	if us.byService {
		u.gate.AwaitService()
	}
	us.selectors.begin(u)
	us.byName[t.Name] = u
	us.added = append(us.added, u)
	return u
}

// Admit answers for all profiles of one resource, whose unit is t, or is not
// here, and why. A unit that is seen for the first time is watched from now on;
// profiles of one that is gone may still have been captured while its gate was
// open. What is returned is why nothing can be known of their unit but that.
func (us *units) Admit(t identify.Identity, c identify.Claim, why identify.Unmatched, now time.Time, profiles []admission) identify.Unmatched {
	us.mu.Lock()
	defer us.mu.Unlock()
	var gate *trigger.Unit
	if why == "" {
		if u := us.add(t, now); u != nil {
			u.serve(c)
			us.selectors.tell(u, c.Attributes)
			gate = u.gate
		} else {
			why = identify.TooManyUnits
		}
	} else {
		gate = us.gone(t)
	}
	if gate != nil {
		us.ask(gate, why == "", now, profiles)
	}
	return why
}

// gone finds the gate of a unit that was here.
func (us *units) gone(t identify.Identity) *trigger.Unit {
	name := t.Name
	if name == "" {
		d, ok := us.departed[t.Process.PID]
		if !ok || t.Started.IsZero() || !identify.SameProcess(t.Started, d.started) {
			return nil
		}
		name = d.name
	}
	gate, ok := us.engine.Lookup(name)
	if !ok {
		return nil
	}
	return gate
}

// serve remembers which service the profiles of a unit say they are of.
func (u *unit) serve(c identify.Claim) {
	if c.Service != "" {
		u.service = cut(c.Service)
	}
	if c.ExecutableName != "" {
		u.executable = cut(c.ExecutableName)
	}
	switch {
	case u.named:
	case c.Service != "" && !strings.HasPrefix(c.Service, unknownService):
		u.named = true
		u.gate.SetService(serviceID(c.ServiceNamespace, c.Service))
	default:
		u.gate.SetService("")
	}
}

// serviceID is what tells services apart. A unit keeps to the first that it is
// known by: of one with several, cooldowns would else come and go.
func serviceID(namespace, name string) string {
	if namespace == "" {
		return cut(name)
	}
	return cut(namespace) + "/" + cut(name)
}

// serviceName is what log lines call the service of a unit; empty if no profile
// of it has come yet.
func (u *unit) serviceName() string {
	if u.service == "" && u.executable != "" {
		return unknownService + ":" + u.executable
	}
	return u.service
}

// cut shortens what came from outside, and lets go of the rest.
func cut(s string) string {
	if len(s) <= maxKept {
		return s
	}
	return strings.Clone(s[:maxKept])
}

// takeAdded returns the units that were added since it was last called.
func (us *units) takeAdded() []*unit {
	us.mu.Lock()
	defer us.mu.Unlock()
	added := us.added
	us.added = nil
	return added
}

// takePending returns the transitions that are still to be reported, and whether
// an opening let out its first profile meanwhile.
func (us *units) takePending() (pending []transition, began bool) {
	us.mu.Lock()
	defer us.mu.Unlock()
	pending, began = us.pending, us.began
	us.pending, us.began = nil, false
	return pending, began
}

// report keeps transitions, which the engine's next call overwrites.
func (us *units) report(ts []trigger.Transition) {
	for _, t := range ts {
		out := transition{Transition: t, userShare: -1}
		if u, ok := us.byName[t.Unit.Name()]; ok {
			out.service, out.userShare = u.serviceName(), u.userShare
			out.overBudget = u.heldBack != "" && t.Opening != nil && u.heldBack == t.Opening.ID
		}
		if o := t.Opening; o != nil {
			out.until = o.Until
			out.samples, out.bytes, out.refused, out.whyRefused = o.Samples, o.Bytes, o.Refused, o.WhyRefused
			if t.To == trigger.Profiling {
				out.others = others(t.Unit, o)
			}
		}
		us.pending = append(us.pending, out)
	}
	if len(ts) > 0 {
		us.wake()
	}
}

// wake has what is pending reported soon.
func (us *units) wake() {
	select {
	case us.changed <- struct{}{}:
	default: // there is a token already
	}
}

// others are the policies by which the gate of a unit is open beside an opening;
// those that let nothing out only beside one of their kind.
func others(u *trigger.Unit, o *trigger.Opening) (out []string) {
	for _, other := range u.Openings(nil) {
		if other != o && (o.DryRun || !other.DryRun) {
			out = append(out, other.Policy)
		}
	}
	return out
}

// afford says whether a profile may leave by an opening within
// max_bytes_per_hour, and reports once an episode that it may not: one ends when
// none was held back for a minute. The lock is held.
func (us *units) afford(o *trigger.Opening, bytes int, now time.Time) bool {
	if us.engine.Affords(bytes, now) {
		return true
	}
	u := us.byName[o.Unit]
	if u == nil { // it is gone: a late profile
		return false
	}
	if now.Sub(us.heldBackAt) > heldBackEpisode {
		us.pending = append(us.pending, transition{
			Transition: trigger.Transition{Time: now, Unit: u.gate, Policy: o.Policy, Opening: o, Budget: budget.MaxBytesPerHour},
			service:    u.serviceName(), stopped: true,
		})
		us.wake()
	}
	u.heldBack, us.heldBackAt = o.ID, now
	return false
}

// Remove forgets a unit that is gone, and closes its gates.
func (us *units) Remove(u *unit, now time.Time) {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.remove(u, now)
}

func (us *units) remove(u *unit, now time.Time) {
	if u.forgotten {
		return
	}
	u.forgotten = true
	us.report(us.engine.Remove(u.name, now))
	delete(us.byName, u.name)
	if u.process.PID == 0 {
		return
	}
	if now.Sub(us.sweptAt) >= time.Second { // not for each of very many that go at once
		us.sweptAt = now
		maps.DeleteFunc(us.departed, func(_ int, d departure) bool { return now.After(d.until) })
	}
	if len(us.departed) < maxDeparted {
		us.departed[u.process.PID] = departure{name: u.name, started: u.started, until: now.Add(departedFor)}
	}
}

// Expire forgets the units that were last seen before a time.
func (us *units) Expire(before, now time.Time) {
	us.mu.Lock()
	defer us.mu.Unlock()
	for _, u := range us.byName {
		if u.seen.Before(before) {
			us.remove(u, now)
		}
	}
}

// Evaluate has the decision core decide.
func (us *units) Evaluate(now time.Time) {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.report(us.engine.Evaluate(now))
	us.recorder.Sweep(now)
}

// Close closes every gate, for good.
func (us *units) Close(now time.Time) {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.report(us.engine.Close(now))
}

// Snapshot is what is to be remembered over a restart.
func (us *units) Snapshot(now time.Time) trigger.Snapshot {
	us.mu.Lock()
	defer us.mu.Unlock()
	return us.engine.Snapshot(now)
}

// Restore takes up what was remembered. It comes before the first evaluation.
func (us *units) Restore(s trigger.Snapshot, now time.Time) {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.engine.Restore(s, now)
}

// Count is the number of units and of open gates.
func (us *units) Count() (watched, gates int) {
	us.mu.Lock()
	defer us.mu.Unlock()
	return len(us.byName), us.engine.ActiveOpenings()
}

// Record holds captures in the recorder. Counts has the samples that it does not
// hold.
func (us *units) Record(captures []recorder.Capture, counts *counters.Samples) {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.recorder.Put(captures, counts)
}

// recordQueue is the queue of the recorder under the lock of units.
type recordQueue struct{ *units }

func (q recordQueue) Ready() <-chan struct{} { return q.recorder.Ready() }

func (q recordQueue) Next() (recorder.Batch, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.recorder.Next()
}

func (q recordQueue) Done(b recorder.Batch, settled bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.recorder.Done(b, settled)
}

func (q recordQueue) Retry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.recorder.Retry()
}

func (q recordQueue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.recorder.Close()
}
