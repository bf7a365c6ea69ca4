// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// TestTheHottestOfVeryManyOpen checks that the budgets go to the hottest units if the
// conditions of very many units hold at the same time. Each of the other units must be
// reported once.
func TestTheHottestOfVeryManyOpen(t *testing.T) {
	const units, places = 500, 7
	for name, c := range map[string]Config{
		"concurrent units": {Budgets: budget.Limits{MaxConcurrentUnits: places}},
		"triggers":         {Budgets: budget.Limits{MaxTriggersPerHour: places}},
		"both":             {Budgets: budget.Limits{MaxConcurrentUnits: places, MaxTriggersPerHour: 2 * places}},
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(5, 6))
			c.Monitors, c.CollectionInterval = testMonitors(), time.Second
			c.Policies = []Policy{
				{Name: "mean", Conditions: []Condition{{Monitor: "util", Test: window.Test{Threshold: 50, AverageOver: 10 * time.Second}}}, Duration: time.Minute},
				{Name: "count", Conditions: []Condition{{Monitor: "util", Test: window.Test{Threshold: 40, Period: 10 * time.Second, Count: 5}}}, Duration: time.Minute},
			}
			e, err := New(c)
			require.NoError(t, err)
			for n := range units {
				u := e.Decision(fmt.Sprintf("u%03d", n))
				r := Reading{Time: start}
				u.Observe("util", r)
				for range 20 {
					r.Time, r.Den = r.Time.Add(time.Second), r.Den+1
					r.Num += float64(60+random.IntN(4)*10) / 100 // some units have equal values
					u.Observe("util", r)
				}
			}
			var fired, kept []Transition
			for _, tr := range e.Evaluate(start.Add(20 * time.Second)) {
				switch tr.Reason {
				case Fired:
					fired = append(fired, tr)
				case OverBudget:
					kept = append(kept, tr)
				}
			}
			require.Len(t, append(slices.Clone(fired), kept...), 2*units, "each policy of each unit once")
			order := func(a, b Transition) int {
				return hotter(candidateOf(a), candidateOf(b))
			}
			require.True(t, slices.IsSortedFunc(fired, order), "opened in order")
			require.True(t, slices.IsSortedFunc(kept, order), "reported in order")
			open := map[*Decision]bool{}
			var last Transition // the coldest unit whose gate opened
			for _, tr := range fired {
				if !open[tr.Unit] {
					last = tr
				}
				open[tr.Unit] = true
			}
			require.Len(t, fired, 2*places, "both policies of a unit need one place and one trigger")
			require.Len(t, open, places)
			for _, tr := range kept {
				if !open[tr.Unit] && c.Budgets.MaxTriggersPerHour == places {
					require.Positive(t, order(tr, last), "no unit that stays shut is hotter than one that opened")
				}
			}
		})
	}
}

func candidateOf(t Transition) candidate {
	return candidate{&machine{unit: t.Unit, policy: &policy{}}, t.Cause.Value / t.Cause.Threshold}
}
