// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// Stats counts the units, openings and services that were forgotten because of a limit.
type Stats struct {
	// ForgottenUnits counts gone units whose cooldown or closed opening was forgotten
	// early. ForgottenOpenings counts the closed openings of all other units.
	ForgottenUnits, ForgottenOpenings int
	// ForgottenServices counts services whose cooldown or hourly budget was
	// forgotten early.
	ForgottenServices int
}

// Stats returns the counts since the creation of the engine.
func (e *Engine) Stats() Stats {
	return Stats{
		ForgottenUnits: e.roster.forgotten, ForgottenOpenings: e.forgottenOpenings,
		ForgottenServices: e.services.forgotten + e.dryServices.forgotten,
	}
}

// Units returns the number of units. It does not count gone units.
func (e *Engine) Units() int { return len(e.roster.live) }

func checkInvariants(t *testing.T, e *Engine) {
	must := func(ok bool, what string) {
		if !ok {
			t.Helper()
			t.Fatal("invariant broken: " + what)
		}
	}
	open, openUnits, listed, gone, byHand, alerts := 0, 0, 0, 0, 0, 0
	for name, u := range e.roster.byName {
		must(name == u.name, "a unit is found by its name")
		must(len(u.closed) <= 2*maxClosed, "closed openings are bounded")
		if u.gone {
			gone++
			must(u.histories == nil, "a gone unit has no readings")
		} else {
			must(e.roster.live[u.index] == u, "a unit knows its index")
		}
		if len(u.byHand) > 0 {
			byHand++
		}
		hot, baselines := 0, 0
		keys := map[string]bool{}
		for _, m := range u.byHand {
			must(m.unit == u && m.state == Profiling && m.opening.machine == m && m.opening.Manual, "what is open by hand is in Profiling")
			must(m.opening.ClosedAt.IsZero() && !keys[m.opening.Alert] && !u.gone, "an alert has one opening")
			keys[m.opening.Alert] = true
			if m.opening.Alert != "" {
				alerts++
			}
			hot++
		}
		must(u.alerts() <= maxAlerts, "openings by alert are bounded")
		for i := range u.machines {
			m := &u.machines[i]
			must(m.unit == u && m.policy == &e.plan.policies[i] && m.policy.index == i, "a machine knows its unit and policy")
			must(m.opening == nil || m.opening.machine == m, "an opening knows its machine")
			if m.state == Profiling {
				switch {
				case m.opening.DryRun:
				case m.opening.Baseline:
					baselines++
				default:
					hot++
				}
				must(m.opening != nil && m.opening.ClosedAt.IsZero() && !u.gone, "Profiling has an open opening")
			} else if m.opening != nil {
				must(!m.opening.ClosedAt.IsZero(), "an opening not in Profiling is closed")
			}
		}
		must(hot == u.hot && baselines == u.baselines, "a unit counts its openings")
		open += hot + baselines
		listed += baselines
		if hot+baselines > 0 {
			openUnits++
		}
	}
	must(open == e.ActiveOpenings(), "openings are counted")
	must(openUnits == e.places.units, "open units are counted")
	must(byHand == e.places.byHand && alerts == e.places.alerts && alerts <= maxAllAlerts, "openings by hand and by alert are counted")
	must(e.places.ledger.Limits().MaxConcurrentUnits == 0 || listed == len(e.places.baselines), "baselines are listed")
	must(len(e.roster.gone.Items) == gone, "gone units are ordered")
	for i, u := range e.roster.gone.Items {
		_, until := u.memory()
		must(u.gone && u.goneIndex == i+1 && (u.until.Equal(until) || !u.until.After(e.clock.time(e.clock.latest))), "a gone unit is forgotten in its turn")
	}
	for _, ss := range []*services{&e.services, &e.dryServices} {
		shut := 0
		for a, s := range ss.byAccount {
			for _, c := range s.cooldowns {
				must(c.open >= 0 && c.policy < len(e.plan.policies), "a service knows its policies")
			}
			must(s.account == a && s.open() == (s.index == 0), "a service is ordered unless it is open")
			if !s.open() {
				shut++
				must(ss.order.Items[s.index-1] == s && (!s.until.After(s.last(ss.clock)) || !s.until.After(e.clock.time(e.clock.latest))), "a service is forgotten in its turn")
			}
		}
		must(shut == len(ss.order.Items), "services are ordered")
	}
	must(gone <= e.roster.maxGone, "gone units are bounded")
	must(len(e.roster.byName)-gone == e.Units(), "units are counted")
}

// FuzzEngine makes calls in any order and with any arguments. It checks that each
// transition fits the previous transition, and that the invariants hold.
func FuzzEngine(f *testing.F) {
	f.Add([]byte("0123456789012345678901234567890123456789"))
	steady := make([]byte, 0, 600)
	for range 60 {
		steady = append(steady, 0, 64, 0, 10, 0, 2, 0, 0, 0, 3)
	}
	f.Add(steady)
	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:min(len(data), 1000)]
		below := 40.0
		flags := byte(0)
		if len(data) > 0 {
			flags = data[0]
		}
		config := Config{
			Monitors: testMonitors(), CollectionInterval: time.Second, MaxGone: 2, PreTrigger: time.Second,
			MinAge: time.Duration(flags&1) * 3 * time.Second, CooldownByService: flags&2 > 0,
			Budgets: budget.Limits{
				MaxConcurrentUnits: int(flags >> 2 & 1), MaxTriggersPerHour: int(flags>>3&1) * 3,
				MaxTriggersPerServicePerHour: int(flags >> 4 & 1), MaxBytesPerHour: bytesize.Size(flags>>5&1) * 3,
			},
			Policies: []Policy{
				{Name: "mean", Duration: 5 * time.Second, Cooldown: 20 * time.Second, DryRun: flags>>6&1 > 0, Conditions: []Condition{
					{Monitor: "util", Test: window.Test{Threshold: 50, AverageOver: 3 * time.Second, ReleaseBelow: &below}},
					{Monitor: "load", Test: window.Test{Threshold: 50, AverageOver: 3 * time.Second, ReleaseBelow: &below}},
					{Monitor: "memory", Test: window.Test{Threshold: 50, AverageOver: 4 * time.Second}},
				}},
				{Name: "count", Duration: time.Second, Baseline: Baseline{Every: 7 * time.Second, Duration: 2 * time.Second}, Conditions: []Condition{{Monitor: "util", Test: window.Test{Threshold: 0, Period: 3 * time.Second, Count: 2}}}},
			},
		}
		e, err := New(config)
		require.NoError(t, err)
		type key struct {
			unit   *Decision
			policy string
		}
		states := map[key]State{}
		removed := map[*Decision]bool{}
		now := start
		follow := func(transitions []Transition) {
			for _, x := range transitions {
				k := key{x.Unit, x.Policy}
				if removed[x.Unit] && states[k] == CoolingDown && x.From == Watching {
					states[k] = Watching // the unit was remembered only for a dry run
				}
				require.Equal(t, states[k], x.From)
				states[k] = x.To
				switch x.Reason {
				case Fired:
					require.Greater(t, x.Cause.Value, x.Cause.Threshold)
				case DurationPassed, UnitGone, Shutdown, Released, GaveWay:
					require.False(t, x.Time.Before(x.Opening.FiredAt))
					require.False(t, x.Time.After(x.Opening.Until()))
				}
				require.False(t, x.Time.After(now), "%v at %v", x, now)
			}
		}
		var num, den float64
		var openings []*Opening
		next := func() byte {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return b
		}
		for len(data) > 0 {
			op := next()
			name := string('a' + rune(op>>4&3))
			switch op & 15 {
			case 0, 1, 2:
				now = now.Add(time.Duration(next()) * time.Second / 64)
				num += float64(next())
				den += float64(next())
				e.Decision(name).Observe("util", Reading{Time: now, Num: num, Den: den})
			case 3, 4:
				follow(e.Evaluate(now))
			case 5:
				var b [8]byte
				for i := range b {
					b[i] = next()
				}
				num = math.Float64frombits(binary.LittleEndian.Uint64(b[:]))
				e.Decision(name).Observe("memory", Reading{Time: now, Num: num})
				if math.IsNaN(num) || math.IsInf(num, 0) || math.Abs(num) > 1e12 {
					e.Decision(name).Observe("util", Reading{Time: now, Num: num, Den: den + 1})
					num = 0
				}
			case 6:
				if u, ok := e.Lookup(name); ok {
					removed[u] = true
				}
				follow(e.Remove(name, now))
			case 7:
				e.Decision(name).Restart("util")
			case 8:
				if u, ok := e.Lookup(name); ok {
					openings = u.Admit(openings[:0], now.Add(-time.Duration(next())*time.Second/8), now)
				}
			case 9:
				for _, o := range openings {
					o.Accepted(1, 1)
					require.False(t, o.cools() && o.Profiles == 1 && o.machine.opening == o && o.machine.state == Watching, "exported, and not cooling down")
				}
				openings = nil
			case 10:
				now = now.Add(time.Duration(next()) * time.Second)
			case 11:
				if next() == 0 {
					follow(e.Close(now))
				}
			case 12:
				if u, ok := e.Lookup(name); ok {
					u.Hot()
				}
				policies := slices.Clone(config.Policies)
				switch choice := next(); choice & 7 {
				case 0:
					policies = policies[:1]
				case 1:
					policies = policies[1:]
				case 2:
					slices.Reverse(policies)
				case 3:
					policies[0].DryRun = !policies[0].DryRun
				case 4:
					policies[0].Conditions = policies[0].Conditions[:1+choice>>7]
				case 5:
					policies[1].Conditions = policies[0].Conditions
				}
				transitions, err := e.SetPolicies(config.Monitors, policies, now)
				require.NoError(t, err)
				follow(transitions)
				for k := range states {
					switch n := slices.IndexFunc(policies, func(p Policy) bool { return p.Name == k.policy }); {
					case n >= 0 && n >= len(k.unit.machines): // the unit was forgotten before
						delete(states, k)
					case n >= 0:
						states[k] = k.unit.machines[n].state // a policy that is no longer a dry run starts from the beginning
					case k.policy != Manual && !strings.HasPrefix(k.policy, "Alert "):
						delete(states, k)
					}
				}
			case 13:
				e.Decision(name).SetPolicy(int(next())%len(e.config.Policies), op>>6&1 > 0)
				e.Decision(name).SetService(string('x' + rune(op>>7)))
				e.Decision(name).SetStarted(now.Add(-time.Duration(int8(next())) * time.Second))
			case 14:
				if o, _, err := e.Decision(name).OpenGate(Alert{}, time.Duration(int8(next()))*time.Second, now); err == nil {
					require.True(t, o.Until().After(now) && o.Manual)
				}
				alert := Alert{Key: string('k' + rune(next()&3))}
				alert.Name = "Alert " + alert.Key
				if o, _, err := e.Decision(name).OpenGate(alert, time.Duration(int8(next()))*time.Second, now); err == nil {
					require.True(t, o.Until().After(now) && o.Alert == alert.Key)
				}
				e.Decision(name).CloseGate(string('k'+rune(next()&7)), now)
			case 15:
				if n := int(int8(next())); e.Affords(n, now) {
					e.SpendBytes(n, now)
				}
				e.Restore(e.Snapshot(now), now)
			}
			checkInvariants(t, e)
		}
	})
}

func TestValidationNamesEveryFaultAndWhatIsAllowed(t *testing.T) {
	good := Condition{Monitor: "util", Test: window.Test{Threshold: 80, AverageOver: 30 * time.Second}}
	with := func(change func(i *Condition)) Config {
		i := good
		change(&i)
		return Config{
			Monitors: testMonitors(), CollectionInterval: time.Second,
			Policies: []Policy{{Name: "p", Conditions: []Condition{good, i}, Duration: time.Second}},
		}
	}
	config := func(change func(c *Config)) Config {
		c := with(func(*Condition) {})
		change(&c)
		return c
	}
	tests := map[string]struct {
		config Config
		want   []string // nil means valid
	}{
		"good":                      {with(func(*Condition) {}), nil},
		"no policy":                 {config(func(c *Config) { c.Policies = nil }), nil},
		"threshold of zero":         {with(func(i *Condition) { i.Threshold = 0 }), nil},
		"count of all the readings": {with(func(i *Condition) { i.AverageOver, i.Period, i.Count = 0, 10*time.Second, 10 }), nil},
		"unknown monitor":           {with(func(i *Condition) { i.Monitor = "x" }), []string{"policies[0].any_of[1].monitor", "util, cores, memory"}},
		"threshold below zero":      {with(func(i *Condition) { i.Threshold = -1 }), []string{"policies[0].any_of[1].threshold", "0 or more"}},
		"threshold not a number":    {with(func(i *Condition) { i.Threshold = math.NaN() }), []string{"any_of[1].threshold"}},
		"both window kinds":         {with(func(i *Condition) { i.Period, i.Count = time.Minute, 3 }), []string{"any_of[1]: average_over and period with count exclude"}},
		"no window":                 {with(func(i *Condition) { i.AverageOver = 0 }), []string{"any_of[1]: must have either average_over or period with count"}},
		"count without period":      {with(func(i *Condition) { i.AverageOver, i.Count = 0, 3 }), []string{"any_of[1].period"}},
		"period without count":      {with(func(i *Condition) { i.AverageOver, i.Period = 0, time.Minute }), []string{"any_of[1].count: 0", "from 1 to 60"}},
		"count above the readings":  {with(func(i *Condition) { i.AverageOver, i.Period, i.Count = 0, 10*time.Second, 11 }), []string{"any_of[1].count: 11", "from 1 to 10"}},
		"window below a second":     {with(func(i *Condition) { i.AverageOver = 999 * time.Millisecond }), []string{"any_of[1].average_over", "at least 1s", "scheduler tick"}},
		"release at the threshold":  {with(func(i *Condition) { i.ReleaseBelow = &i.Threshold }), nil},
		"window below zero":         {with(func(i *Condition) { i.AverageOver = -1 }), []string{"any_of[1].average_over", "at least 1s"}},
		"window of days":            {with(func(i *Condition) { i.AverageOver = 48 * time.Hour }), []string{"any_of[1].average_over", "at most 3600"}},
		"window below an interval": {config(func(c *Config) {
			c.CollectionInterval = time.Minute
			c.Policies[0].Conditions[0].AverageOver = time.Minute
		}), []string{"any_of[1].average_over: 30s", "one collection_interval (1m0s)"}},
		"interval of zero":    {config(func(c *Config) { c.CollectionInterval = 0 }), []string{"collection_interval"}},
		"duration of zero":    {config(func(c *Config) { c.Policies[0].Duration = 0 }), []string{"policies[0].duration"}},
		"cooldown below zero": {config(func(c *Config) { c.Policies[0].Cooldown = -1 }), []string{"policies[0].cooldown"}},
		"no items":            {config(func(c *Config) { c.Policies[0].Conditions = nil }), []string{"policies[0].any_of: must have at least one"}},
		"no name":             {config(func(c *Config) { c.Policies[0].Name = "" }), []string{"policies[0].name"}},
		"name with a comma":   {config(func(c *Config) { c.Policies[0].Name = "a,b" }), []string{"policies[0].name", "comma"}},
		"name twice":          {config(func(c *Config) { c.Policies = append(c.Policies, c.Policies[0]) }), []string{"policies[1].name", "policies[0] too"}},
		"all faults at once": {config(func(c *Config) {
			c.Policies[0].Name, c.Policies[0].Duration, c.Policies[0].Conditions[0].Threshold = "", 0, -1
		}), []string{"policies[0].name", "policies[0].duration", "policies[0].any_of[0].threshold"}},
		"release above the threshold": {with(func(i *Condition) { i.ReleaseBelow = ptr(80.1) }), []string{"policies[0].any_of[1].release_below: 80.1", "at most the threshold (80)"}},
		"release of zero":             {with(func(i *Condition) { i.ReleaseBelow = ptr(0) }), []string{"any_of[1].release_below", "above 0"}},
		"release not a number":        {with(func(i *Condition) { i.ReleaseBelow = ptr(math.NaN()) }), []string{"any_of[1].release_below"}},
		"the manual policy's name":    {config(func(c *Config) { c.Policies[0].Name = Manual }), []string{"policies[0].name", "by hand"}},
		"baseline":                    {config(func(c *Config) { c.Policies[0].Baseline = Baseline{time.Hour, time.Second} }), nil},
		"baseline without every":      {config(func(c *Config) { c.Policies[0].Baseline.Duration = 1 }), []string{"policies[0].baseline.every"}},
		"baseline without duration":   {config(func(c *Config) { c.Policies[0].Baseline.Every = 1 }), []string{"policies[0].baseline.duration"}},
		"baseline longer than every":  {config(func(c *Config) { c.Policies[0].Baseline = Baseline{1, 1} }), []string{"policies[0].baseline.duration", "less than every"}},
		"budgets below zero": {config(func(c *Config) {
			c.Budgets = budget.Limits{MaxConcurrentUnits: -1, MaxTriggersPerHour: -2, MaxTriggersPerServicePerHour: -3, MaxBytesPerHour: -4}
		}), []string{
			"budgets.max_concurrent_units: -1", "budgets.max_triggers_per_hour: -2",
			"budgets.max_triggers_per_service_per_hour: -3", "budgets.max_bytes_per_hour: -4",
		}},
		"budget beyond what is kept": {config(func(c *Config) { c.Budgets.MaxTriggersPerHour = 1e6 }), []string{"budgets.max_triggers_per_hour", "at most 100000"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := New(test.config)
			if test.want == nil {
				require.NoError(t, err)
				return
			}
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func ptr(f float64) *float64 { return &f }

func TestClosedOpeningsAreBounded(t *testing.T) {
	e, err := New(Config{
		Monitors: testMonitors(), CollectionInterval: 10 * time.Millisecond,
		Policies: []Policy{{Name: "p", Duration: time.Second, Conditions: []Condition{{Monitor: "memory", Test: window.Test{Threshold: 50, Period: time.Second, Count: 1}}}}},
	})
	require.NoError(t, err)
	u := e.Decision("u")
	for n := range 30 {
		now := start.Add(time.Duration(n) * time.Second)
		u.Observe("memory", Reading{Time: now, Num: 100})
		e.Evaluate(now)
		for _, o := range u.Openings(nil) {
			o.Accepted(1, 1)
		}
	}
	require.Len(t, u.closed, maxClosed)
	require.Equal(t, 29-maxClosed, e.Stats().ForgottenOpenings)
}

// TestDryRunsPushOutNoClosedOpening checks that closed openings of dry runs do not
// evict other closed openings. The other openings are still needed to admit late
// profiles.
func TestDryRunsPushOutNoClosedOpening(t *testing.T) {
	gauge := func(name string, threshold float64) Policy {
		return Policy{Name: name, DryRun: name == "dry", Duration: time.Second, Conditions: []Condition{{Monitor: "memory", Test: window.Test{Threshold: threshold, Period: time.Second, Count: 1}}}}
	}
	e, err := New(Config{
		Monitors: testMonitors(), CollectionInterval: 10 * time.Millisecond,
		Policies: []Policy{gauge("real", 90), gauge("dry", 50)},
	})
	require.NoError(t, err)
	u := e.Decision("u")
	var first *Opening
	for n := range 25 {
		now := start.Add(time.Duration(n) * time.Second)
		level := 60.0
		if n == 0 {
			level = 100
		}
		u.Observe("memory", Reading{Time: now, Num: level})
		e.Evaluate(now)
		if n == 0 {
			first = u.Admit(nil, now, now.Add(1))[1]
			require.Equal(t, "real", first.Policy)
		}
	}
	require.Contains(t, u.Admit(nil, start, start.Add(1)), first)
	require.Equal(t, 1+maxClosed, len(u.closed))
}

func TestAHundredPolicies(t *testing.T) {
	c := Config{Monitors: testMonitors(), CollectionInterval: time.Second}
	for n := range 100 {
		c.Policies = append(c.Policies, Policy{
			Name: fmt.Sprint("p", n), Duration: time.Duration(1+n) * time.Second, Cooldown: time.Hour,
			Conditions: []Condition{{Monitor: "util", Test: window.Test{Threshold: float64(n), AverageOver: time.Duration(5+n%2) * time.Second}}},
		})
	}
	// Policies with the same test share a window. Many services may have such policies.
	for n := range 100 {
		c.Policies = append(c.Policies, Policy{
			Name: fmt.Sprint("q", n), Duration: time.Second,
			Conditions: []Condition{{Monitor: "util", Test: window.Test{Threshold: 150, AverageOver: time.Minute}}},
		})
	}
	e, err := New(c)
	require.NoError(t, err)
	require.Equal(t, 101, e.plan.monitors[0].Tests())
	a, b := e.Decision("a"), e.Decision("b")
	for n := range 200 {
		b.SetPolicy(n, n == 3)
	}
	for n := range 7 {
		now := start.Add(time.Duration(n) * time.Second)
		a.Observe("util", Reading{now, float64(n) * 0.505, float64(n)})
		b.Observe("util", Reading{now, float64(n) * 0.505, float64(n)})
	}
	now := start.Add(6 * time.Second)
	e.Evaluate(now)
	require.Len(t, a.Openings(nil), 51, "0 to 50")
	require.Len(t, b.Openings(nil), 1)
	require.Len(t, a.Admit(nil, now, now.Add(time.Second)), 51)
	for n := range 51 {
		now = start.Add(time.Duration(7+n) * time.Second)
		for _, x := range e.Evaluate(now) {
			require.Equal(t, fmt.Sprint("p", n), x.Policy)
			require.Equal(t, now, x.Time)
		}
	}
	require.Zero(t, e.ActiveOpenings())
	checkInvariants(t, e)
}

// TestBulkUnitsComeAndGo adds, fires and removes thousands of units.
// The engine remembers at most MaxGone units. It remembers no unit
// after the unit's cooldown and budgets have ended.
func TestBulkUnitsComeAndGo(t *testing.T) {
	c := snapshotConfig()
	c.MaxGone = 100
	c.Budgets = budget.Limits{MaxTriggersPerServicePerHour: 5}
	c.Policies[0].Cooldown = time.Minute
	e, err := New(c)
	require.NoError(t, err)
	now := start
	const each = 20
	for n := range 250 {
		var units []*Decision
		for k := range each {
			u := e.Decision(fmt.Sprint("unit", n*each+k))
			if k%2 == 0 {
				u.SetService(fmt.Sprint("service", n*each+k))
			}
			units = append(units, u)
		}
		for s := range 7 {
			now = now.Add(time.Second)
			for _, u := range units {
				u.Observe("util", Reading{now, float64(s), float64(s)})
			}
			e.Evaluate(now)
		}
		require.Equal(t, each, e.ActiveOpenings())
		for _, u := range units {
			for _, o := range u.Admit(nil, now, now) {
				o.Accepted(1, 1)
			}
			e.Remove(u.Name(), now)
		}
		require.LessOrEqual(t, len(e.roster.byName), c.MaxGone)
		require.LessOrEqual(t, len(e.services.byAccount), c.MaxGone)
		require.LessOrEqual(t, len(e.dryServices.byAccount), c.MaxGone)
		require.Zero(t, e.Units())
		checkInvariants(t, e)
	}
	require.Positive(t, e.Stats().ForgottenUnits)
	require.Positive(t, e.Stats().ForgottenServices)
	e.Evaluate(now.Add(2 * time.Hour))
	require.Empty(t, e.roster.byName)
	require.Empty(t, e.services.byAccount)
	require.Empty(t, e.dryServices.byAccount)
}

// TestADryRunIsForgottenFirst covers the bound on gone units. Units that are remembered
// only for a dry run are forgotten first.
func TestADryRunIsForgottenFirst(t *testing.T) {
	c := snapshotConfig()
	c.MaxGone, c.CooldownByService, c.Budgets = 2, false, budget.Limits{}
	e, err := New(c)
	require.NoError(t, err)
	now := start
	for n, name := range []string{"real", "dry1", "dry2", "dry3"} {
		u := e.Decision(name)
		u.SetPolicy(min(1, n), true)
		u.SetPolicy(1-min(1, n), false)
		for s := range 7 {
			now = now.Add(time.Second)
			u.Observe("util", Reading{now, float64(s), float64(s)})
		}
		e.Evaluate(now)
		for _, o := range u.Openings(nil) {
			if !o.DryRun {
				o.Accepted(1, 1)
			}
		}
		e.Remove(name, now)
	}
	_, ok := e.Lookup("real")
	require.True(t, ok)
	require.Len(t, e.roster.byName, 2)
}

// TestPoliciesKeepAReserveOfPlaces checks that gates opened manually use at most half of
// the places. Policies can therefore always fire.
func TestPoliciesKeepAReserveOfPlaces(t *testing.T) {
	for places, want := range map[int]int{0: 12, 1: 1, 2: 1, 3: 1, 10: 5} {
		e, err := New(Config{CollectionInterval: time.Second, Budgets: budget.Limits{MaxConcurrentUnits: places}})
		require.NoError(t, err)
		opened := 0
		for n := range 12 {
			if _, _, err := e.Decision(strconv.Itoa(n)).OpenGate(Alert{}, time.Hour, start); err == nil {
				opened++
			}
		}
		require.Equal(t, want, opened, "of %d", places)
		checkInvariants(t, e)
		require.NotNil(t, e.Decision("0").CloseGate("", start))
		_, _, err = e.Decision("11").OpenGate(Alert{}, time.Hour, start)
		require.NoError(t, err, "a place is free again")
		checkInvariants(t, e)
	}
}

func TestExceededErrorNamesTheBudget(t *testing.T) {
	e, err := New(Config{CollectionInterval: time.Second, Budgets: budget.Limits{MaxConcurrentUnits: 1}})
	require.NoError(t, err)
	_, _, err = e.Decision("a").OpenGate(Alert{}, time.Second, start)
	require.NoError(t, err)
	_, _, err = e.Decision("b").OpenGate(Alert{}, time.Second, start)
	var over *budget.ExceededError
	require.ErrorAs(t, err, &over)
	require.Equal(t, budget.MaxConcurrentUnits, over.Budget)
	e.Close(start)
	_, _, err = e.Decision("a").OpenGate(Alert{}, time.Second, start)
	require.ErrorContains(t, err, "shut down")
}

// TestAUnitThatNeverFiredIsForgottenAtOnce checks that a removed unit is not remembered if it
// never fired.
func TestAUnitThatNeverFiredIsForgottenAtOnce(t *testing.T) {
	e, now := watched(t, 3, fivePolicies()...)
	require.Empty(t, e.Remove("unit1", now))
	_, known := e.Lookup("unit1")
	require.False(t, known)
	require.Empty(t, e.roster.gone.Items)
	require.Equal(t, 2, e.Units())
	checkInvariants(t, e)
}

// TestOpeningIsProlongedWhileItIsRead stamps profiles while an opening is prolonged. Run
// it with the race detector.
func TestOpeningIsProlongedWhileItIsRead(t *testing.T) {
	e, now := watchedAt(t, everything(), 1, 0.1)
	u := e.Decision("unit0")
	o, _, err := u.OpenGate(Alert{}, time.Second, now)
	require.NoError(t, err)
	var reading sync.WaitGroup
	reading.Go(func() {
		for until := o.Until(); until.Before(now.Add(100 * time.Second)); until = o.Until() {
			require.False(t, until.Before(now.Add(time.Second)))
		}
	})
	for n := range 100 {
		again, _, err := u.OpenGate(Alert{}, time.Duration(n+1)*time.Second, now)
		require.NoError(t, err)
		require.Same(t, o, again)
	}
	reading.Wait()
}
