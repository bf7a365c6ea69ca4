// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/order"
)

// defaultMaxGone is the default of Config.MaxGone.
const defaultMaxGone = 10_000

// roster contains the live units. It also contains gone units whose cooldown or closed
// opening still matters.
//
// Invariants:
//   - byName contains every unit; live[u.index] is u for each live unit
//   - gone contains exactly the gone units, and at most maxGone units
//   - gone is ordered by the field until of its units; until is not later than the time
//     that memory returns, unless until has passed
type roster struct {
	byName    map[string]*Decision
	live      []*Decision
	gone      order.Heap[*Decision] // in the order in which units are forgotten if there are too many
	maxGone   int
	forgotten int // gone units that were forgotten because there were too many
}

func newRoster(maxGone int) roster {
	return roster{
		byName: make(map[string]*Decision), maxGone: cmp.Or(maxGone, defaultMaxGone),
		gone: order.Heap[*Decision]{
			Compare: func(a, b *Decision) int { return cmp.Or(a.until.Compare(b.until), strings.Compare(a.name, b.name)) },
			Index:   func(u *Decision) *int { return &u.goneIndex },
		},
	}
}

// enlist adds a unit to the live units.
func (r *roster) enlist(u *Decision) {
	r.gone.Remove(u)
	u.gone = false
	r.byName[u.name] = u
	u.index = len(r.live)
	r.live = append(r.live, u)
}

// retire removes a unit from the live units. If the unit's state still matters, which is
// rare, the unit is kept as a gone unit.
func (r *roster) retire(u *Decision, now time.Time) {
	last := len(r.live) - 1
	r.live[u.index] = r.live[last]
	r.live[u.index].index = u.index
	r.live[last] = nil
	r.live = r.live[:last]
	u.gone = true
	if until, _ := u.memory(); !now.Before(until) {
		delete(r.byName, u.name)
		return
	}
	r.remember(u)
	if len(r.gone.Items) > r.maxGone {
		r.forgetFirst(now)
	}
}

// remember adds a unit to the gone units, or updates the time at which the state of a gone
// unit expires.
func (r *roster) remember(u *Decision) {
	u.gone = true
	r.byName[u.name] = u
	_, u.until = u.memory()
	r.gone.Fix(u)
}

// forget removes a gone unit for good.
func (r *roster) forget(u *Decision) {
	delete(r.byName, u.name)
	r.gone.Remove(u)
}

// forgetDue forgets the gone units whose cooldowns and openings no longer matter. For all
// other gone units, it forgets only the closed openings that are too old.
func (r *roster) forgetDue(now time.Time) {
	for i := len(r.gone.Items) - 1; i >= 0; {
		u := r.gone.Items[i]
		u.forgetClosed(now)
		if last, _ := u.memory(); now.Before(last) {
			i--
			continue
		}
		r.forget(u) // moves another unit to the index i, if a unit is left
		i = min(i, len(r.gone.Items)-1)
	}
}

// forgetFirst forgets the gone unit whose memory expires first. Ties are ordered by name.
func (r *roster) forgetFirst(now time.Time) {
	for {
		u := r.gone.Items[0]
		last, until := u.memory()
		if until.After(u.until) { // a late export began a cooldown
			r.remember(u)
			continue
		}
		r.forget(u)
		if now.Before(last) {
			r.forgotten++
		}
		return
	}
}
