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
//   - gone is the number of gone units, at most maxGone
//   - due and order contain exactly the gone units; their keys are not later than the times
//     that memory returns
type roster struct {
	byName    map[string]*Decision
	live      []*Decision
	gone      int
	maxGone   int
	due       order.Heap[*Decision] // by the time at which a unit must be checked again
	order     order.Heap[*Decision] // in the order in which units are forgotten if there are too many
	forgotten int                   // gone units that were forgotten because there were too many
}

func newRoster(maxGone int) roster {
	if maxGone == 0 {
		maxGone = defaultMaxGone
	}
	return roster{
		byName: make(map[string]*Decision), maxGone: maxGone,
		due: order.Heap[*Decision]{
			Compare: func(a, b *Decision) int { return a.next.Compare(b.next) },
			Index:   func(u *Decision) *int { return &u.dueIndex },
		},
		order: order.Heap[*Decision]{
			Compare: func(a, b *Decision) int { return cmp.Or(a.until.Compare(b.until), strings.Compare(a.name, b.name)) },
			Index:   func(u *Decision) *int { return &u.orderIndex },
		},
	}
}

// enlist adds a unit to the live units.
func (r *roster) enlist(u *Decision) {
	if u.gone {
		r.leave(u)
		u.gone = false
	}
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
	if _, until, _ := u.memory(); !now.Before(until) {
		delete(r.byName, u.name)
		return
	}
	r.remember(u)
	r.forgetDue(now)
	if r.gone > r.maxGone {
		r.forgetFirst()
	}
}

// remember adds a unit to the gone units.
func (r *roster) remember(u *Decision) {
	u.gone = true
	r.byName[u.name] = u
	r.gone++
	r.expect(u)
}

// expect updates the times at which the state of a gone unit expires.
func (r *roster) expect(u *Decision) {
	u.next, _, u.until = u.memory()
	r.due.Fix(u)
	r.order.Fix(u)
}

// forget removes a gone unit for good.
func (r *roster) forget(u *Decision) {
	delete(r.byName, u.name)
	r.leave(u)
}

// leave removes a unit from the gone units.
func (r *roster) leave(u *Decision) {
	r.due.Remove(u)
	r.order.Remove(u)
	r.gone--
}

// forgetDue forgets the cooldowns and openings of gone units that no longer matter.
func (r *roster) forgetDue(now time.Time) {
	for r.gone > 0 {
		u := r.due.Items[0]
		if now.Before(u.next) {
			return
		}
		u.forgetClosed(now)
		if _, last, _ := u.memory(); !now.Before(last) {
			r.forget(u)
		} else {
			r.expect(u)
		}
	}
}

// forgetFirst forgets the gone unit whose memory expires first. Ties are ordered by name.
func (r *roster) forgetFirst() {
	for {
		u := r.order.Items[0]
		if _, _, until := u.memory(); until.After(u.until) { // a late export began a cooldown
			r.expect(u)
			continue
		}
		r.forget(u)
		r.forgotten++
		return
	}
}
