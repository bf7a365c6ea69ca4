// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// laws checks an engine by its transitions alone. A gate must not open without a reason,
// stay open for too long, or open before its cooldown has ended. No budget may be
// exceeded. No profile that should pass may be dropped.
type laws struct {
	t      *testing.T
	config Config
	now    time.Time

	states  map[place]State
	removed map[*Decision]bool   // units that were removed at least once
	open    map[string]*Opening  // by ID
	until   map[string]time.Time // last announced end, by ID
	cooling map[pair]time.Time   // by unit and by service
	served  map[string]account   // account at opening, by ID
	closed  []*Opening

	triggers []trigger
	bytes    []spent
	fired    int
	reasons  map[Reason]int
}

type pair struct{ name, policy string }

type place struct {
	unit   *Decision
	policy string
}

type trigger struct {
	at      time.Time
	account account
}

type spent struct {
	at    time.Time
	bytes int
}

func newLaws(t *testing.T, c Config) *laws {
	return &laws{
		t: t, config: c, states: map[place]State{}, removed: map[*Decision]bool{}, open: map[string]*Opening{}, until: map[string]time.Time{},
		cooling: map[pair]time.Time{}, served: map[string]account{}, reasons: map[Reason]int{},
	}
}

func (l *laws) policy(name string) Policy {
	for _, p := range l.config.Policies {
		if p.Name == name {
			return p
		}
	}
	require.Contains(l.t, []string{Manual, "A", "B", "C"}, name)
	return Policy{Name: name}
}

// cooledBy returns the unit and the service to which an opening's cooldown applies.
func (l *laws) cooledBy(u *Decision, policy string) []pair {
	names := []pair{{"unit " + u.Name(), policy}}
	if l.config.CooldownByService && u.service != "" {
		names = append(names, pair{"service " + u.service, policy})
	}
	return names
}

func (l *laws) cool(u *Decision, policy string, from time.Time) {
	for _, k := range l.cooledBy(u, policy) {
		if until := from.Add(l.policy(policy).Cooldown); until.After(l.cooling[k]) {
			l.cooling[k] = until
		}
	}
}

func (l *laws) follow(transitions []Transition) {
	for _, x := range transitions {
		l.reasons[x.Reason]++
		k := place{x.Unit, x.Policy}
		if l.beganAnew(x) {
			l.states[k] = Watching
		}
		require.Equal(l.t, l.states[k], x.From, "%v", x)
		l.states[k] = x.To
		require.False(l.t, x.Time.After(l.now))
		switch {
		case x.To == Profiling:
			l.opened(x)
		case x.From == Profiling:
			l.shut(x)
		case x.Reason == LateExport:
			l.cool(x.Unit, x.Policy, x.Opening.ClosedAt)
		case x.Reason == RisingEdge, x.Reason == OverBudget, x.Reason == ServiceCooling, x.Reason == TooYoung, x.Reason == ServiceUnknown:
			require.Greater(l.t, x.Cause.Value, x.Cause.Threshold)
			require.Equal(l.t, x.Reason == OverBudget, x.Budget != "")
		}
	}
	l.budgets()
}

// beganAnew reports whether a transition shows that a policy began anew while the unit was
// gone. After its cooldown, a policy begins anew if the unit is remembered only for a dry
// run. The end of the cooldown is then not reported.
func (l *laws) beganAnew(x Transition) bool {
	return l.removed[x.Unit] && !l.policy(x.Policy).DryRun && l.states[place{x.Unit, x.Policy}] == CoolingDown && x.From == Watching &&
		!x.Time.Before(l.cooling[pair{"unit " + x.Unit.Name(), x.Policy}])
}

// evaluated calls follow, and also checks that no opening is overdue.
func (l *laws) evaluated(transitions []Transition) {
	l.follow(transitions)
	for _, o := range l.open {
		require.True(l.t, l.now.Before(l.until[o.ID]), "open for too long")
	}
}

func (l *laws) opened(x Transition) {
	o, p := x.Opening, l.policy(x.Policy)
	require.NotNil(l.t, o)
	require.NotContains(l.t, l.open, o.ID)
	require.Equal(l.t, p.DryRun, o.DryRun)
	require.True(l.t, o.Manual || !x.Unit.unnamed)
	already := slices.ContainsFunc(slices.Collect(maps.Values(l.open)), func(other *Opening) bool { return other.Unit == o.Unit && other.hot() })
	l.open[o.ID] = o
	length := p.Duration
	switch x.Reason {
	case Fired:
		l.fired++
		require.Greater(l.t, x.Cause.Value, x.Cause.Threshold)
		require.True(l.t, slices.ContainsFunc(p.Conditions, func(i Condition) bool {
			return i.Monitor == x.Cause.Monitor && i.Threshold == x.Cause.Threshold && i.String() == x.Cause.Window
		}), "the cause is none of the policy's items")
		for _, k := range l.cooledBy(x.Unit, x.Policy) {
			require.False(l.t, x.Time.Before(l.cooling[k]), "%v cools down until %v", k, l.cooling[k])
		}
		if l.config.MinAge > 0 {
			require.False(l.t, x.Unit.young(x.Time))
		}
	case BaselineDue:
		require.True(l.t, o.Baseline)
		length = p.Baseline.Duration
		if !o.DryRun {
			for _, other := range l.open {
				require.False(l.t, other.Unit == o.Unit && other.hot(), "a baseline of a unit that is hot")
			}
		}
	case ByHand, ByAlert:
		require.True(l.t, o.Manual)
		require.Equal(l.t, x.Reason == ByAlert, o.Alert != "" && o.Kind() == AlertKind && o.Policy == o.Alert && o.Monitor == o.Alert)
		length = o.Until().Sub(o.FiredAt)
	default:
		require.Fail(l.t, "opened without a reason", "%v", x)
	}
	require.Equal(l.t, x.Time.Add(length), o.FiredAt.Add(length))
	require.Equal(l.t, o.FiredAt.Add(length), o.Until())
	l.until[o.ID] = o.Until()
	if o.DryRun {
		return
	}
	a := x.Unit.account()
	l.served[o.ID] = a
	if !already { // the budget counts gates that open
		l.triggers = append(l.triggers, trigger{x.Time, a})
	}
	if limit := l.config.Budgets.MaxBytesPerHour; limit > 0 {
		require.Less(l.t, int64(l.bytesSince(x.Time.Add(-time.Hour))), limit, "opened with all bytes spent")
	}
}

func (l *laws) shut(x Transition) {
	o := x.Opening
	require.Same(l.t, l.open[o.ID], o)
	delete(l.open, o.ID)
	require.Equal(l.t, x.Time, o.ClosedAt)
	require.False(l.t, o.ClosedAt.Before(o.FiredAt))
	require.False(l.t, o.ClosedAt.After(o.Until()), "open for too long")
	require.Equal(l.t, x.Reason == DurationPassed, o.ClosedAt.Equal(o.Until()))
	l.closed = append(l.closed, o)
	if x.To == CoolingDown && !o.Baseline {
		require.True(l.t, o.Profiles > 0 || o.DryRun, "a cooldown without an export")
		l.cool(x.Unit, x.Policy, o.ClosedAt)
	}
	if x.Reason == Released {
		require.True(l.t, slices.ContainsFunc(l.policy(x.Policy).Conditions, func(i Condition) bool { return i.ReleaseBelow != nil }))
	}
}

// due checks that profiles of a closed opening still pass during closedMemory.
func (l *laws) due(e *Engine, r *rand.Rand) {
	l.closed = slices.DeleteFunc(l.closed, func(o *Opening) bool { return !l.now.Before(o.ClosedAt.Add(closedMemory)) })
	perUnit := map[string]int{}
	for _, o := range l.closed {
		perUnit[o.Unit]++
	}
	for _, o := range l.closed {
		from := o.FiredAt
		if !o.Baseline {
			from = from.Add(-e.plan.preTrigger)
		}
		length := o.ClosedAt.Sub(from)
		if length <= 0 || perUnit[o.Unit] > maxClosed {
			continue
		}
		begin := from.Add(time.Duration(r.Int64N(int64(length))))
		u, ok := e.Lookup(o.Unit)
		require.True(l.t, ok, "a unit was forgotten whose profiles still pass")
		require.Contains(l.t, u.Admit(nil, begin, begin.Add(time.Nanosecond)), o, "a profile does not pass that should")
	}
}

func (l *laws) budgets() {
	b := l.config.Budgets
	units, byHand := map[string]bool{}, map[string]bool{}
	for _, o := range l.open {
		if !o.DryRun {
			units[o.Unit] = true
		}
		if o.Manual {
			byHand[o.Unit] = true
		}
	}
	if b.MaxConcurrentUnits > 0 {
		require.LessOrEqual(l.t, len(units), b.MaxConcurrentUnits)
		require.LessOrEqual(l.t, len(byHand), max(1, b.MaxConcurrentUnits/2), "policies keep a reserve")
	}
	hourAgo := l.now.Add(-time.Hour)
	l.triggers = slices.DeleteFunc(l.triggers, func(x trigger) bool { return !x.at.After(hourAgo) })
	if b.MaxTriggersPerHour > 0 {
		require.LessOrEqual(l.t, len(l.triggers), b.MaxTriggersPerHour)
	}
	if b.MaxTriggersPerServicePerHour > 0 {
		per := map[account]int{}
		for _, x := range l.triggers {
			per[x.account]++
			require.LessOrEqual(l.t, per[x.account], b.MaxTriggersPerServicePerHour)
		}
	}
	if b.MaxBytesPerHour > 0 {
		require.LessOrEqual(l.t, int64(l.bytesSince(hourAgo)), b.MaxBytesPerHour)
	}
}

func (l *laws) bytesSince(from time.Time) (sum int) {
	for _, s := range l.bytes {
		if s.at.After(from) {
			sum += s.bytes
		}
	}
	return sum
}

// rebooted updates the laws for a restart. All gates are shut. Cooldowns continue,
// except for the cooldowns of dry runs. The cooldown of an open opening starts now if
// the opening has exported a profile.
func (l *laws) rebooted(e *Engine) {
	for _, o := range l.open {
		if o.cools() && o.Profiles > 0 && !o.DryRun {
			l.cool(o.machine.unit, o.Policy, l.now)
		}
	}
	dry := map[string]bool{}
	for _, p := range l.config.Policies {
		dry[p.Name] = p.DryRun
	}
	for k := range l.cooling {
		if dry[k.policy] {
			delete(l.cooling, k)
		}
	}
	l.open, l.closed, l.states = map[string]*Opening{}, nil, map[place]State{}
	for _, u := range e.roster.byName {
		for p := range u.machines {
			l.states[place{u, e.plan.policies[p].Name}] = u.machines[p].state
		}
	}
}

// life runs some units with random events and a random configuration.
type life struct {
	config Config
	e      *Engine
	ids    int
	num    map[string]*Reading
	late   []*Opening // exported but not accepted yet
}

func randomConfig(r *rand.Rand) Config {
	c := Config{Monitors: testMonitors(), CollectionInterval: time.Second, PreTrigger: time.Duration(r.IntN(3)) * 5 * time.Second}
	if r.IntN(3) == 0 {
		c.MinAge = time.Duration(1+r.IntN(90)) * time.Second
	}
	c.CooldownByService = r.IntN(2) == 0
	if r.IntN(2) == 0 {
		c.Budgets.MaxConcurrentUnits = 1 + r.IntN(3)
	}
	if r.IntN(3) == 0 {
		c.Budgets.MaxTriggersPerHour = 1 + r.IntN(8)
	}
	if r.IntN(3) == 0 {
		c.Budgets.MaxTriggersPerServicePerHour = 1 + r.IntN(3)
	}
	if r.IntN(3) == 0 {
		c.Budgets.MaxBytesPerHour = bytesize.Size(1 + r.IntN(1000))
	}
	for p := range 1 + r.IntN(4) {
		policy := Policy{
			Name:     fmt.Sprint("p", p),
			Duration: time.Duration(1+r.IntN(60)) * time.Second,
			Cooldown: time.Duration(r.IntN(300)) * time.Second,
			DryRun:   r.IntN(4) == 0,
		}
		if r.IntN(3) == 0 {
			policy.Baseline.Every = time.Duration(20+r.IntN(100)) * time.Second
			policy.Baseline.Duration = time.Duration(1+r.IntN(19)) * time.Second
		}
		for range 1 + r.IntN(3) {
			i := Condition{Monitor: []string{"util", "memory", "throttling", "load"}[r.IntN(4)], Test: window.Test{Threshold: float64(20 + r.IntN(70))}}
			if r.IntN(2) == 0 {
				i.AverageOver = time.Duration(1+r.IntN(8)) * time.Second
			} else {
				i.Period = time.Duration(1+r.IntN(8)) * time.Second
				i.Count = 1 + r.IntN(int(i.Period/time.Second))
			}
			if r.IntN(2) == 0 {
				below := i.Threshold * (0.1 + 0.9*r.Float64())
				i.ReleaseBelow = &below
			}
			policy.Conditions = append(policy.Conditions, i)
		}
		c.Policies = append(c.Policies, policy)
	}
	return c
}

func newLife(t *testing.T, c Config) *life {
	l := &life{config: c, num: map[string]*Reading{}}
	l.config.NewID = func() string { l.ids++; return fmt.Sprint(l.ids) }
	l.reboot(t, start)
	return l
}

func (w *life) reboot(t *testing.T, now time.Time) {
	var s Snapshot
	if w.e != nil {
		stored, err := json.Marshal(w.e.Snapshot(now))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(stored, &s))
	}
	var err error
	w.e, err = New(w.config)
	require.NoError(t, err)
	w.e.Restore(s, now)
	w.late = nil
}

func unitName(n int) string { return string(rune('a' + n)) }

// read gives every unit one reading of each monitor. Some readings are late.
func (w *life) read(r *rand.Rand, now time.Time, levels []float64) {
	for n, level := range levels {
		u := w.e.Decision(unitName(n))
		at := now
		if r.IntN(20) == 0 {
			at = at.Add(-time.Duration(r.IntN(5000)) * time.Millisecond)
		}
		for _, m := range testMonitors() {
			if m.Gauge {
				u.Observe(m.Name, Reading{Time: at, Num: level * 100})
				continue
			}
			key := u.Name() + m.Name
			c := w.num[key]
			if c == nil {
				c = &Reading{Time: now.Add(-time.Second)}
				w.num[key] = c
			}
			den := now.Sub(c.Time).Seconds()
			if m.Sparse && r.IntN(3) == 0 {
				den = 0
			}
			c.Time = now
			c.Den += den
			c.Num += level * den
			if r.IntN(300) == 0 {
				c.Num, c.Den = 0, 0
			}
			u.Observe(m.Name, Reading{Time: at, Num: c.Num, Den: c.Den})
		}
	}
}

// lawSeeds returns the seeds of random lives: the numbers below n on a stream, and seeds
// that broke a law before.
func lawSeeds(n, stream uint64, broke ...[2]uint64) [][2]uint64 {
	for seed := range n {
		broke = append(broke, [2]uint64{seed, stream})
	}
	return broke
}

// TestBulkLaws runs random lives. No order of readings, ticks, exports, restarts and other
// calls may make the engine break a law.
func TestBulkLaws(t *testing.T) {
	reasons := map[Reason]int{}
	for _, seed := range lawSeeds(150, 7, [2]uint64{101, 1007}, [2]uint64{883, 1007}) {
		t.Run(fmt.Sprintf("seed %d of %d", seed[0], seed[1]), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed[0], seed[1]))
			w := newLife(t, randomConfig(r))
			l := newLaws(t, w.config)
			l.now = start
			levels := make([]float64, 5)
			manual := map[string]bool{}
			for range 600 {
				step := time.Duration(950+r.IntN(100)) * time.Millisecond
				if r.IntN(100) == 0 {
					step = time.Duration(r.IntN(600)) * time.Second
				}
				l.now = l.now.Add(step)
				n := r.IntN(len(levels))
				if r.IntN(10) == 0 {
					levels[n] = r.Float64()
				}
				if r.IntN(30) > 0 {
					w.read(r, l.now, levels)
				}
				u := w.e.Decision(unitName(n))
				switch r.IntN(60) {
				case 7:
					w.change(l, r)
				case 0:
					l.removed[u] = true
					l.follow(w.e.Remove(u.Name(), l.now))
				case 1:
					u.SetPolicy(r.IntN(len(w.config.Policies)), r.IntN(2) == 0)
				case 2:
					w.serve(l, u, []string{"", "x", "y"}[r.IntN(3)])
				case 3:
					w.fire(l, u, time.Duration(1+r.IntN(100))*time.Second, manual)
					if r.IntN(2) == 0 {
						w.closeByHand(l, u)
					}
				case 8, 9:
					w.alert(l, u, []string{"A", "B", "C"}[r.IntN(3)], time.Duration(1+r.IntN(100))*time.Second)
				case 10:
					w.resolve(l, u, []string{"A", "B", "C"}[r.IntN(3)])
				case 4:
					u.Restart("util")
				case 5:
					if r.IntN(3) == 0 {
						l.evaluated(w.e.Evaluate(l.now))
						w.reboot(t, l.now)
						l.rebooted(w.e)
					}
				case 6:
					u.SetStarted(l.now.Add(time.Duration(r.IntN(200)-150) * time.Second))
				}
				if r.IntN(5) > 0 {
					l.evaluated(w.e.Evaluate(l.now))
					checkInvariants(t, w.e)
				}
				w.export(l, r, u)
				l.due(w.e, r)
			}
			l.follow(w.e.Close(l.now))
			require.Empty(t, l.open)
			require.Zero(t, w.e.ActiveOpenings())
			for why, n := range l.reasons {
				reasons[why] += n
			}
		})
	}
	for _, why := range []Reason{
		Fired, DurationPassed, UnitGone, Shutdown, LateExport, CooldownPassed, RisingEdge,
		PolicyRemoved, PolicyChanged, Released, BaselineDue, GaveWay, ByHand, ClosedByHand, ByAlert, AlertResolved, OverBudget, ServiceCooling, TooYoung,
	} {
		require.Greater(t, reasons[why], 5, "%q hardly ever happened, so it is not tested", why)
	}
}

// change removes, changes, moves and adds policies at random.
func (w *life) change(l *laws, r *rand.Rand) {
	w.config.Policies = slices.Clone(w.config.Policies)
	for i, other := range randomConfig(r).Policies {
		n := slices.IndexFunc(w.config.Policies, func(p Policy) bool { return p.Name == other.Name })
		switch r.IntN(4) {
		case 0:
			if n >= 0 && len(w.config.Policies) > 1 {
				w.config.Policies = slices.Delete(w.config.Policies, n, n+1)
			}
		case 1:
			if n < 0 {
				w.config.Policies = slices.Insert(w.config.Policies, r.IntN(len(w.config.Policies)+1), other)
			} else {
				w.config.Policies[n] = other
			}
		case 2:
			if n >= 0 {
				w.config.Policies[n].Duration, w.config.Policies[n].Cooldown = other.Duration, other.Cooldown
			}
		}
		if i == 0 && r.IntN(3) == 0 {
			slices.Reverse(w.config.Policies)
		}
	}
	open := len(l.open)
	w.config.Monitors = slices.Clone(w.config.Monitors)
	slices.Reverse(w.config.Monitors)
	transitions, err := w.e.SetPolicies(w.config.Monitors, w.config.Policies, l.now)
	require.NoError(l.t, err)
	l.follow(transitions)
	before := l.config.Policies
	l.config.Policies = w.config.Policies
	for _, old := range before {
		n := slices.IndexFunc(l.config.Policies, func(p Policy) bool { return p.Name == old.Name && p.DryRun == old.DryRun })
		for _, o := range l.open {
			require.False(l.t, n < 0 && o.Policy == old.Name, "the gate of a policy that was removed is open")
		}
		for k, until := range l.cooling {
			if k.policy != old.Name {
				continue
			}
			if n < 0 {
				delete(l.cooling, k)
			} else if latest := l.now.Add(l.config.Policies[n].Cooldown); until.After(latest) {
				l.cooling[k] = latest
			}
		}
		for k := range l.states {
			if n < 0 && k.policy == old.Name {
				delete(l.states, k)
			}
		}
	}
	if slices.EqualFunc(before, l.config.Policies, func(a, b Policy) bool { return a.Name == b.Name && a.DryRun == b.DryRun }) {
		require.Len(l.t, l.open, open, "a gate was closed or opened")
	}
	checkInvariants(l.t, w.e)
}

// serve changes a unit's service. The unit's cooldowns then also apply to the new service.
func (w *life) serve(l *laws, u *Decision, service string) {
	u.SetService(service)
	for p := range w.config.Policies {
		if m := &u.machines[p]; m.cooling() && l.config.CooldownByService && service != "" {
			k := pair{"service " + service, w.config.Policies[p].Name}
			if m.notBefore.After(l.cooling[k]) {
				l.cooling[k] = m.notBefore
			}
		}
	}
}

func (w *life) fire(l *laws, u *Decision, d time.Duration, known map[string]bool) {
	o, _, err := u.OpenGate(Alert{}, d, l.now)
	var over *budget.ExceededError
	if err != nil {
		require.ErrorAs(l.t, err, &over)
		return
	}
	require.False(l.t, o.Until().Before(l.now.Add(d)))
	if old, ok := l.until[o.ID]; ok {
		require.False(l.t, o.Until().Before(old), "shortened")
		l.until[o.ID] = o.Until()
	}
	known[o.ID] = true
	l.until[o.ID] = o.Until()
	l.evaluated(w.e.Evaluate(l.now))
}

// alert opens a unit's gate with an alert whose key equals its name.
func (w *life) alert(l *laws, u *Decision, name string, d time.Duration) {
	o, opened, err := u.OpenGate(Alert{Key: name, Name: name}, d, l.now)
	var over *budget.ExceededError
	if err != nil {
		require.ErrorAs(l.t, err, &over)
		return
	}
	until, known := l.until[o.ID]
	require.Equal(l.t, opened, !known)
	require.True(l.t, opened || o.Until().Equal(until), "an alert prolongs nothing")
	l.until[o.ID] = o.Until()
	l.evaluated(w.e.Evaluate(l.now))
}

func (w *life) resolve(l *laws, u *Decision, name string) {
	o := u.CloseGate(name, l.now)
	l.evaluated(w.e.Evaluate(l.now))
	if o != nil {
		require.Equal(l.t, name, o.Alert)
		require.Equal(l.t, l.now, o.ClosedAt)
	}
}

func (w *life) closeByHand(l *laws, u *Decision) {
	o := u.CloseGate("", l.now)
	l.evaluated(w.e.Evaluate(l.now))
	if o != nil {
		require.True(l.t, o.Manual)
		require.Equal(l.t, l.now, o.ClosedAt)
	}
	require.Nil(l.t, u.CloseGate("", l.now), "twice")
}

// export exports profiles. The profiles are accepted now, later or never.
func (w *life) export(l *laws, r *rand.Rand, u *Decision) {
	end := l.now.Add(-time.Duration(r.IntN(10)) * time.Second)
	for _, o := range u.Admit(nil, end.Add(-5*time.Second), end) {
		if o.DryRun {
			continue
		}
		switch r.IntN(4) {
		case 0:
			o.Refuse("full")
		case 1:
			w.late = append(w.late, o)
		default:
			w.accept(l, o, 1+r.IntN(200))
		}
	}
	if len(w.late) > 0 && r.IntN(4) == 0 {
		w.accept(l, w.late[0], 1)
		w.late = w.late[1:]
	}
}

func (w *life) accept(l *laws, o *Opening, bytes int) {
	if !w.e.Affords(bytes, l.now) {
		return
	}
	if l.config.Budgets.MaxBytesPerHour > 0 {
		l.bytes = append(l.bytes, spent{l.now, bytes})
	}
	w.e.SpendBytes(bytes, l.now)
	o.Accepted(1, bytes)
}

// TestBulkADryRunChangesNothing runs the same life with and without dry runs.
func TestBulkADryRunChangesNothing(t *testing.T) {
	differs := 0
	for _, seed := range lawSeeds(100, 8, [2]uint64{255, 1008}) {
		r := rand.New(rand.NewPCG(seed[0], seed[1]))
		with := randomConfig(r)
		with.Policies[0].DryRun = true
		without := with
		without.Policies = slices.DeleteFunc(slices.Clone(with.Policies), func(p Policy) bool { return p.DryRun })
		a, b := newLife(t, with), newLife(t, without)
		levels := make([]float64, 5)
		now := start
		for range 400 {
			now = now.Add(time.Duration(950+r.IntN(100)) * time.Millisecond)
			if r.IntN(10) == 0 {
				levels[r.IntN(len(levels))] = r.Float64()
			}
			readings, op, unit, service, started := r.Uint64(), r.IntN(40), r.IntN(len(levels)), r.IntN(3), r.IntN(100)
			var lines [2][]string
			for i, w := range []*life{a, b} {
				log := func(format string, args ...any) { lines[i] = append(lines[i], fmt.Sprintf(format, args...)) }
				logAll := func(transitions []Transition) {
					for _, x := range transitions {
						if slices.ContainsFunc(w.e.plan.policies, func(p policy) bool { return p.Name == x.Policy && p.DryRun }) {
							differs++
							continue
						}
						log("%v %s %s %v %v %s %v %s", x.Time, x.Unit.Name(), x.Policy, x.From, x.To, x.Reason, x.Cause, x.Budget)
					}
				}
				w.read(rand.New(rand.NewPCG(readings, 9)), now, levels)
				u := w.e.Decision(unitName(unit))
				switch op {
				case 0:
					logAll(w.e.Remove(u.Name(), now))
				case 1:
					u.SetService([]string{"", "x", "y"}[service])
				case 2:
					_, _, err := u.OpenGate(Alert{}, 10*time.Second, now)
					log("fire %v", err)
				case 3:
					w.reboot(t, now)
				case 4:
					u.SetStarted(now.Add(-time.Duration(started) * time.Second))
				}
				logAll(w.e.Evaluate(now))
				log("%v %v %v", u.Hot(), u.Heat(), u.OverBudget())
				log("%v %v %v", w.e.ActiveOpenings(), w.e.Affords(10, now), w.e.Stats())
				for _, o := range u.Admit(nil, now.Add(-5*time.Second), now) {
					if !o.DryRun {
						log("%s %v %v", o.Policy, o.FiredAt, o.Until())
						o.Accepted(1, 10)
						w.e.SpendBytes(10, now)
					}
				}
				stored, err := json.Marshal(w.e.Snapshot(now))
				require.NoError(t, err)
				log("%s", stored)
			}
			require.Equal(t, lines[1], lines[0], "seed %d", seed)
		}
	}
	require.Greater(t, differs, 100, "the dry runs hardly did anything")
}
