// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"strings"
	"time"
)

// defaultMaxGone bounds the units that are gone but remembered.
const defaultMaxGone = 10_000

// roster holds the live units, and the gone units with a cooldown or closed opening that
// still matters.
//
// Invariants:
//   - byName has every unit; live[u.index] is u for each that is not gone
//   - gone is the number of gone units, at most maxGone
//   - due and order have exactly the gone units, by keys that are not later than what
//     memory returns for them
type roster struct {
	byName    map[string]*Decision
	live      []*Decision
	gone      int
	maxGone   int
	due       order[*Decision] // the one that has something to forget first in front
	order     order[*Decision] // the one that is forgotten first at the bound in front
	forgotten int              // gone units forgotten at the bound
}

func newRoster(maxGone int) roster {
	if maxGone == 0 {
		maxGone = defaultMaxGone
	}
	return roster{
		byName: make(map[string]*Decision), maxGone: maxGone,
		due: order[*Decision]{
			compare: func(a, b *Decision) int { return a.next.Compare(b.next) },
			index:   func(u *Decision) *int { return &u.dueIndex },
		},
		order: order[*Decision]{
			compare: func(a, b *Decision) int { return cmp.Or(a.until.Compare(b.until), strings.Compare(a.name, b.name)) },
			index:   func(u *Decision) *int { return &u.orderIndex },
		},
	}
}

// enlist adds a unit to the live ones.
func (r *roster) enlist(u *Decision) {
	if u.gone {
		r.leave(u)
		u.gone = false
	}
	r.byName[u.name] = u
	u.index = len(r.live)
	r.live = append(r.live, u)
}

// retire removes a unit from the live units. It is remembered as gone if a part of it still
// matters, which is rare.
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

// remember adds a unit as gone, as after a restart.
func (r *roster) remember(u *Decision) {
	u.gone = true
	r.byName[u.name] = u
	r.gone++
	r.expect(u)
}

// expect records when a gone unit has something to forget.
func (r *roster) expect(u *Decision) {
	u.next, _, u.until = u.memory()
	r.due.fix(u)
	r.order.fix(u)
}

// forget removes a gone unit for good.
func (r *roster) forget(u *Decision) {
	delete(r.byName, u.name)
	r.leave(u)
}

// leave removes a unit from the gone units.
func (r *roster) leave(u *Decision) {
	r.due.remove(u)
	r.order.remove(u)
	r.gone--
}

// forgetDue forgets the cooldowns and openings of gone units that no longer matter.
func (r *roster) forgetDue(now time.Time) {
	for r.gone > 0 {
		u := r.due.items[0]
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

// forgetFirst forgets the gone unit that would be forgotten first, ties by name.
func (r *roster) forgetFirst() {
	for {
		u := r.order.items[0]
		if _, _, until := u.memory(); until.After(u.until) { // a late export began a cooldown
			r.expect(u)
			continue
		}
		r.forget(u)
		r.forgotten++
		return
	}
}
