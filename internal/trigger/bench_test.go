// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// watched returns an engine and the time of its last reading. The windows of the units
// are full, and all values are below the thresholds.
func watched(tb testing.TB, units int, items ...Condition) (*Engine, time.Time) {
	c := Config{Monitors: testMonitors(), CollectionInterval: time.Second}
	for n, i := range items {
		c.Policies = append(c.Policies, Policy{Name: fmt.Sprint("p", n), Conditions: []Condition{i}, Duration: 30 * time.Second, Cooldown: time.Hour})
	}
	return watchedAt(tb, c, units, 0.5)
}

// watchedAt is like watched, but each unit uses the given share of one core.
func watchedAt(tb testing.TB, c Config, units int, level float64) (*Engine, time.Time) {
	e, err := New(c)
	require.NoError(tb, err)
	const readings = 61
	for n := range units {
		u := e.Decision(fmt.Sprint("unit", n))
		u.SetService(fmt.Sprint("service", n%100))
		for s := range readings {
			at := Reading{Time: start.Add(time.Duration(s) * time.Second), Num: float64(s) * level, Den: float64(s)}
			u.Observe("util", at)
			u.Observe("cores", at)
			u.Observe("share", at)
			at.Num = 7
			u.Observe("load", at)
		}
	}
	return e, start.Add((readings - 1) * time.Second)
}

func everything() Config {
	c := Config{
		Monitors: testMonitors(), CollectionInterval: time.Second, MinAge: time.Minute, CooldownByService: true,
		Budgets: budget.Limits{MaxConcurrentUnits: 10, MaxTriggersPerHour: 60, MaxTriggersPerServicePerHour: 4, MaxBytesPerHour: 1 << 28},
	}
	for n, i := range fivePolicies() {
		below := i.Threshold / 2
		i.ReleaseBelow = &below
		c.Policies = append(c.Policies, Policy{
			Name: fmt.Sprint("p", n), Duration: 30 * time.Second, Cooldown: time.Hour, DryRun: n == 4,
			Conditions: []Condition{i, {Monitor: "load", Test: window.Test{Threshold: 8, AverageOver: i.AverageOver, Period: i.Period, Count: i.Count}}},
			Baseline:   Baseline{Every: 1000 * time.Hour, Duration: time.Second},
		})
	}
	return c
}

func fivePolicies() []Condition {
	return []Condition{
		{Monitor: "util", Test: window.Test{Threshold: 80, AverageOver: 30 * time.Second}},
		{Monitor: "util", Test: window.Test{Threshold: 80, Period: 10 * time.Second, Count: 8}},
		{Monitor: "cores", Test: window.Test{Threshold: 4, AverageOver: time.Minute}},
		{Monitor: "cores", Test: window.Test{Threshold: 8, AverageOver: 10 * time.Second}},
		{Monitor: "util", Test: window.Test{Threshold: 95, Period: time.Minute, Count: 30}},
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	plain, now := watched(t, 100, fivePolicies()...)
	all, _ := watchedAt(t, everything(), 100, 0.5)
	for name, e := range map[string]*Engine{"plain": plain, "everything": all} {
		t.Run(name, func(t *testing.T) {
			now := now
			u, _ := e.Lookup("unit7")
			reading := Reading{Time: now, Num: 30, Den: 60}
			var openings []*Opening
			e.Evaluate(now) // schedules the baselines
			require.Zero(t, testing.AllocsPerRun(100, func() {
				now = now.Add(time.Second)
				reading.Time = now
				reading.Num += 0.5
				reading.Den++
				u.Observe("util", reading)
				require.Empty(t, e.Evaluate(now))
				openings = u.Admit(openings[:0], now, now)
				if u.Hot() || u.Heat() == 0 || u.OverBudget() || !e.Affords(1, now) {
					t.Fatal("hot")
				}
				e.SpendBytes(1, now)
			}))
		})
	}
}

// TestBulkAnIncidentDoesNotAllocate checks that hot units do not allocate while they are over
// budget or cool down.
func TestBulkAnIncidentDoesNotAllocate(t *testing.T) {
	for name, c := range map[string]Config{
		"over budget":     {Budgets: budget.Limits{MaxConcurrentUnits: 1}},
		"service cooling": {CooldownByService: true},
		"cooling down":    {},
	} {
		t.Run(name, func(t *testing.T) {
			c.Monitors, c.CollectionInterval = testMonitors(), time.Second
			c.Policies = []Policy{{Name: "p", Conditions: fivePolicies()[:2], Duration: time.Second, Cooldown: time.Hour}}
			e, now := watchedAt(t, c, 2000, 1)
			e.Evaluate(now)
			for _, u := range e.roster.live {
				for _, o := range u.Openings(nil) {
					o.Accepted(1, 1)
					o.prolong(o.Until().Add(time.Hour * 24 * time.Duration(e.places.ledger.Limits().MaxConcurrentUnits)))
				}
			}
			e.Evaluate(now.Add(time.Second)) // closes the openings
			require.Zero(t, testing.AllocsPerRun(100, func() {
				if len(e.Evaluate(now.Add(time.Second))) != 0 {
					t.Fatal("a transition")
				}
			}))
		})
	}
}

// BenchmarkEvaluate evaluates 10,000 units with 5 policies. The baseline compares the
// same number of floats in one slice.
func BenchmarkEvaluate(b *testing.B) {
	const units = 10_000
	items := fivePolicies()
	b.Run("engine", func(b *testing.B) {
		e, now := watched(b, units, items...)
		b.ReportAllocs()
		for b.Loop() {
			if len(e.Evaluate(now)) != 0 {
				b.Fatal("fired")
			}
		}
	})
	b.Run("everything", func(b *testing.B) {
		e, now := watchedAt(b, everything(), units, 0.5)
		b.ReportAllocs()
		for b.Loop() {
			if len(e.Evaluate(now)) != 0 {
				b.Fatal("fired")
			}
		}
	})
	// All units are hot at the same time, and all but ten units wait for a place.
	b.Run("incident", func(b *testing.B) {
		c := everything()
		c.MinAge, c.CooldownByService = 0, false
		e, now := watchedAt(b, c, units, 1)
		e.Evaluate(now)
		b.ReportAllocs()
		for b.Loop() {
			if len(e.Evaluate(now)) != 0 {
				b.Fatal("fired")
			}
		}
	})
	// All units are hot at the same time, and ten places become free at each tick.
	b.Run("incident, places free", func(b *testing.B) {
		c := everything()
		c.MinAge, c.CooldownByService, c.Budgets = 0, false, budget.Limits{MaxConcurrentUnits: 10}
		for p := range c.Policies {
			c.Policies[p].Duration = time.Microsecond
		}
		e, now := watchedAt(b, c, units, 1)
		e.Evaluate(now)
		b.ReportAllocs()
		for b.Loop() {
			now = now.Add(time.Microsecond)
			e.Evaluate(now)
		}
	})
	b.Run("hundred policies", func(b *testing.B) {
		var items []Condition
		for n := range 100 {
			items = append(items, fivePolicies()[n%5])
		}
		e, now := watched(b, units/20, items...)
		b.ReportAllocs()
		for b.Loop() {
			if len(e.Evaluate(now)) != 0 {
				b.Fatal("fired")
			}
		}
	})
	b.Run("baseline", func(b *testing.B) {
		values := make([]float64, units*len(items))
		b.ReportAllocs()
		for b.Loop() {
			above := 0
			for _, v := range values {
				if v > 80 {
					above++
				}
			}
			if above != 0 {
				b.Fatal("fired")
			}
		}
	})
}

// BenchmarkRemove adds and removes a unit that never fired, with 10,000 other units and
// without other units.
func BenchmarkRemove(b *testing.B) {
	for _, others := range []int{0, 10_000} {
		b.Run(fmt.Sprint("beside ", others), func(b *testing.B) {
			e, now := watched(b, others, fivePolicies()...)
			b.ReportAllocs()
			for b.Loop() {
				e.Decision("passing")
				e.Remove("passing", now)
			}
		})
	}
}

// BenchmarkHot calls Hot on 10,000 units. The processor does this every second.
func BenchmarkHot(b *testing.B) {
	e, now := watchedAt(b, everything(), 10_000, 0.5)
	e.Evaluate(now)
	b.ReportAllocs()
	for b.Loop() {
		for _, u := range e.roster.live {
			if u.Hot() {
				b.Fatal("hot")
			}
		}
	}
}

// BenchmarkObserve stores a reading in one window. The baseline stores the reading in a
// ring and does not test the reading.
func BenchmarkObserve(b *testing.B) {
	for _, span := range []time.Duration{30 * time.Second, 10 * time.Minute} {
		b.Run("engine/"+Condition{Test: window.Test{AverageOver: span}}.String(), func(b *testing.B) {
			e, _ := watched(b, 0, Condition{Monitor: "util", Test: window.Test{Threshold: 80, AverageOver: span}})
			u, r := e.Decision("u"), Reading{Time: start}
			b.ReportAllocs()
			for b.Loop() {
				r.Time = r.Time.Add(time.Second)
				r.Num += 0.5
				r.Den++
				u.Observe("util", r)
			}
		})
	}
	b.Run("baseline", func(b *testing.B) {
		ring, n, r := make([]Reading, 32), 0, Reading{Time: start}
		b.ReportAllocs()
		for b.Loop() {
			r.Time = r.Time.Add(time.Second)
			r.Num += 0.5
			r.Den++
			ring[n%len(ring)] = r
			n++
		}
	})
}

// BenchmarkAdmit admits a profile at a shut gate and at an open gate. The baseline
// looks up a key.
func BenchmarkAdmit(b *testing.B) {
	e, now := watched(b, 1, fivePolicies()...)
	u, _ := e.Lookup("unit0")
	ask := func(b *testing.B) {
		var openings []*Opening
		b.ReportAllocs()
		for b.Loop() {
			openings = u.Admit(openings[:0], now, now.Add(5*time.Second))
		}
	}
	b.Run("shut", ask)
	for n := range 60 {
		now = now.Add(time.Second)
		u.Observe("util", Reading{now, 30 + float64(n), 61 + float64(n)})
	}
	e.Evaluate(now)
	require.NotEmpty(b, u.Openings(nil))
	b.Run("open", ask)
	b.Run("baseline", func(b *testing.B) {
		keys, found := map[string]bool{"unit0": true}, false
		b.ReportAllocs()
		for b.Loop() {
			found = keys[u.name]
		}
		require.True(b, found)
	})
}

// BenchmarkRemoveAtTheBound removes units with a cooldown while MaxGone removed units are
// remembered. Each removal makes the engine forget another removed unit.
func BenchmarkRemoveAtTheBound(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint("units=", n), func(b *testing.B) {
			c := Config{Monitors: testMonitors(), CollectionInterval: time.Second, MaxGone: n}
			c.Policies = []Policy{{Name: "p", Conditions: fivePolicies()[:1], Duration: time.Second, Cooldown: time.Hour}}
			e, err := New(c)
			require.NoError(b, err)
			for i := range n {
				e.Decision(fmt.Sprint("live", i))
			}
			now, i := start, 0
			remove := func() {
				u := e.Decision(fmt.Sprint("unit", i))
				u.machines[0].state, u.machines[0].notBefore = CoolingDown, now.Add(time.Hour+time.Duration(i*7919%n)*time.Second)
				e.Remove(u.Name(), now)
				i++
			}
			for range n {
				remove()
			}
			b.ReportAllocs()
			for b.Loop() {
				remove()
			}
			require.Len(b, e.roster.gone.Items, n)
		})
	}
}

// BenchmarkServicesAtTheBound adds services when the bound is already reached. Each new
// service therefore replaces another service.
func BenchmarkServicesAtTheBound(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint("services=", n), func(b *testing.B) {
			e, err := New(Config{Monitors: testMonitors(), CollectionInterval: time.Second, MaxGone: n, CooldownByService: true})
			require.NoError(b, err)
			i := 0
			add := func() {
				e.services.cool(account{fmt.Sprint("service", i), false}, 0, start.Add(time.Duration(i*7919%n)*time.Second))
				i++
			}
			for range n {
				add()
			}
			b.ReportAllocs()
			for b.Loop() {
				add()
			}
			require.Len(b, e.services.byAccount, n)
		})
	}
}

// BenchmarkSetPolicies changes the policies of 10,000 units. It changes the threshold of
// one of two policies, and adds or removes a policy with a longer window.
func BenchmarkSetPolicies(b *testing.B) {
	for _, over := range []time.Duration{30 * time.Second, 10 * time.Minute} {
		b.Run(over.String(), func(b *testing.B) {
			policy := func(name, monitor string, threshold float64, over time.Duration) Policy {
				return Policy{Name: name, Duration: time.Minute, Conditions: []Condition{{Monitor: monitor, Test: window.Test{Threshold: threshold, AverageOver: over}}}}
			}
			c := everything()
			c.Policies = []Policy{policy("cpu", "util", 80, over), policy("throttled", "throttling", 25, over)}
			e, now := watchedAt(b, c, 10_000, 0.1)
			changed := []Policy{policy("cpu", "util", 70, over), policy("throttled", "throttling", 25, over), policy("long", "util", 60, 2*over)}
			for n := 0; b.Loop(); n++ {
				policies := c.Policies
				if n%2 == 0 {
					policies = changed
				}
				if _, err := e.SetPolicies(c.Monitors, policies, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
