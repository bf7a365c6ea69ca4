// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBulkForgettingAtTheBoundDoesNotLookAtAll covers the bounds on gone units and on
// services. Forgetting an entry must take only as many comparisons as a heap needs. The
// nil entry causes a panic in code that iterates over all entries.
func TestBulkForgettingAtTheBoundDoesNotLookAtAll(t *testing.T) {
	const n = 10_000
	const atMost = 2 * n * 8 * 14 // for each entry, some comparisons at each of the 14 levels of a heap
	compared := 0
	t.Run("units", func(t *testing.T) {
		c := Config{Monitors: testMonitors(), CollectionInterval: time.Second, MaxGone: n}
		c.Policies = []Policy{{Name: "p", Conditions: fivePolicies()[:1], Duration: time.Second, Cooldown: time.Hour}}
		e, err := New(c)
		require.NoError(t, err)
		r := &e.roster
		compare := r.gone.Compare
		r.gone.Compare = func(a, b *Decision) int {
			compared++
			return compare(a, b)
		}
		r.live = append(r.live, nil)
		r.byName["nil"] = nil
		for i := range 2 * n {
			u := e.Decision(fmt.Sprint("unit", i))
			u.machines[0].state, u.machines[0].notBefore = CoolingDown, start.Add(time.Hour+time.Duration(i*7919%n)*time.Second)
			e.Remove(u.Name(), start)
		}
		require.LessOrEqual(t, compared, atMost)
		require.Len(t, r.gone.Items, n)
		require.Equal(t, n, r.forgotten)
	})
	t.Run("services", func(t *testing.T) {
		compared = 0
		e, err := New(Config{Monitors: testMonitors(), CollectionInterval: time.Second, MaxGone: n, CooldownByService: true})
		require.NoError(t, err)
		ss := &e.services
		compare := ss.order.Compare
		ss.order.Compare = func(a, b *service) int {
			compared++
			return compare(a, b)
		}
		ss.byAccount[account{"nil", false}] = nil
		for i := range 2 * n {
			ss.cool(account{fmt.Sprint("service", i), false}, 0, start.Add(time.Duration(i*7919%n)*time.Second))
		}
		require.LessOrEqual(t, compared, atMost)
		require.Len(t, ss.byAccount, n)
		require.Equal(t, n+1, ss.forgotten)
	})
}
