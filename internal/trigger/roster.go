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

// roster holds the units: the live ones, and the gone ones whose cooldown or closed
// opening still matters.
//
// Invariants:
//   - byName has every unit; live[u.index] is u for each that is not gone
//   - gone is the number of gone units, at most maxGone
//   - no gone unit has anything to forget before nextForget, if gone > 0
type roster struct {
	byName     map[string]*Unit
	live       []*Unit
	gone       int
	maxGone    int
	nextForget time.Time
	forgotten  int // gone units forgotten at the bound
}

func newRoster(maxGone int) roster {
	if maxGone == 0 {
		maxGone = defaultMaxGone
	}
	return roster{byName: make(map[string]*Unit), maxGone: maxGone}
}

// enlist adds a unit to the live ones.
func (r *roster) enlist(u *Unit) {
	if u.gone {
		u.gone = false
		r.gone--
	}
	r.byName[u.name] = u
	u.index = len(r.live)
	r.live = append(r.live, u)
}

// retire removes a unit from the live ones. It is remembered as gone if anything of
// it still matters, which is not so for most.
func (r *roster) retire(u *Unit, now time.Time) {
	last := len(r.live) - 1
	r.live[u.index] = r.live[last]
	r.live[u.index].index = u.index
	r.live[last] = nil
	r.live = r.live[:last]
	u.gone = true
	next, until, _ := u.memory()
	if !now.Before(until) {
		delete(r.byName, u.name)
		return
	}
	if r.gone == 0 || next.Before(r.nextForget) {
		r.nextForget = next
	}
	r.gone++
	r.forgetDue(now)
	if r.gone > r.maxGone {
		r.forgetFirst()
	}
}

// remember adds a unit as gone, as after a restart.
func (r *roster) remember(u *Unit) {
	u.gone = true
	r.byName[u.name] = u
	r.gone++
}

// expect notes when a gone unit has something to forget.
func (r *roster) expect(u *Unit) {
	if next, _, _ := u.memory(); r.nextForget.IsZero() || next.Before(r.nextForget) {
		r.nextForget = next
	}
}

// forgetDue forgets what does not matter any more of gone units.
func (r *roster) forgetDue(now time.Time) {
	if r.gone == 0 || now.Before(r.nextForget) {
		return
	}
	r.nextForget = time.Time{}
	for name, u := range r.byName {
		if !u.gone {
			continue
		}
		u.forgetClosed(now)
		if _, last, _ := u.memory(); !now.Before(last) {
			delete(r.byName, name)
			r.gone--
		} else {
			r.expect(u)
		}
	}
}

// forgetFirst forgets the gone unit that would be forgotten first, ties by name.
func (r *roster) forgetFirst() {
	var first *Unit
	var when time.Time
	for _, u := range r.byName {
		if !u.gone {
			continue
		}
		_, _, last := u.memory()
		if first == nil || cmp.Or(last.Compare(when), strings.Compare(u.name, first.name)) < 0 {
			first, when = u, last
		}
	}
	delete(r.byName, first.name)
	r.gone--
	r.forgotten++
}
