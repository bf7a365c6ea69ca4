// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"strings"
	"time"
)

// account is what cooldowns and budgets per service are kept for: a service, or
// a unit without one.
type account struct {
	name string
	unit bool
}

func (a account) compare(b account) int {
	if a.unit != b.unit {
		if a.unit {
			return 1
		}
		return -1
	}
	return strings.Compare(a.name, b.name)
}

// service is what is remembered of an account.
type service struct {
	cooling  []serviceCooldown // of the policies that opened or cool down
	triggers hour
}

// serviceCooldown is how a service stands with a policy.
type serviceCooldown struct {
	policy int
	open   int // gates
	until  time.Time
}

func (s *service) with(policy int) *serviceCooldown {
	for i := range s.cooling {
		if s.cooling[i].policy == policy {
			return &s.cooling[i]
		}
	}
	s.cooling = append(s.cooling, serviceCooldown{policy: policy})
	return &s.cooling[len(s.cooling)-1]
}

// last is when the service may be forgotten; open says that it may not yet.
func (s *service) last(epoch time.Time) (last time.Time, open bool) {
	for _, c := range s.cooling {
		open = open || c.open > 0
		if c.until.After(last) {
			last = c.until
		}
	}
	if n := len(s.triggers.times); n > 0 {
		if t := epoch.Add(time.Duration(s.triggers.times[n-1]) + time.Hour); t.After(last) {
			last = t
		}
	}
	return last, open
}

// services holds what is remembered of each, up to a bound; at the bound the
// one that would be forgotten first goes, ties by name.
type services struct {
	max       int
	epoch     *time.Time
	byAccount map[account]*service
	nextSweep int64
	forgotten int
}

// get returns a service, added if it was not there.
func (ss *services) get(a account, clock int64) *service {
	if s, ok := ss.byAccount[a]; ok {
		return s
	}
	if len(ss.byAccount) >= ss.max {
		ss.forgetFirst()
	}
	s := &service{}
	ss.byAccount[a] = s
	if len(ss.byAccount) == 1 {
		ss.nextSweep = clock + int64(time.Minute)
	}
	return s
}

// cooling says that a policy of a service is open or cools down, and until when
// it does; zero while it is open.
func (ss *services) cooling(a account, policy int, now time.Time) (until time.Time, cooling bool) {
	s, ok := ss.byAccount[a]
	if !ok {
		return time.Time{}, false
	}
	for i := range s.cooling {
		if c := &s.cooling[i]; c.policy == policy {
			if c.open > 0 {
				return time.Time{}, true
			}
			return c.until, now.Before(c.until)
		}
	}
	return time.Time{}, false
}

func (ss *services) triggers(a account, at int64) int {
	if s, ok := ss.byAccount[a]; ok {
		return s.triggers.count(at)
	}
	return 0
}

// sweep forgets, once a minute, what does not matter any more.
func (ss *services) sweep(now time.Time, at int64) {
	if len(ss.byAccount) == 0 || at < ss.nextSweep {
		return
	}
	ss.nextSweep = at + int64(time.Minute)
	for a, s := range ss.byAccount {
		if last, open := s.last(*ss.epoch); !open && !now.Before(last) {
			delete(ss.byAccount, a)
		}
	}
}

func (ss *services) forgetFirst() {
	var first account
	var when time.Time
	found := false
	for a, s := range ss.byAccount {
		last, open := s.last(*ss.epoch)
		if !open && (!found || cmp.Or(last.Compare(when), a.compare(first)) < 0) {
			first, when, found = a, last, true
		}
	}
	if found { // else all are open, and as many as there are units
		delete(ss.byAccount, first)
		ss.forgotten++
	}
}

// account is what the unit's cooldowns by service and budgets count for.
func (u *Unit) account() account {
	if u.service == "" {
		return account{u.name, true}
	}
	return account{u.service, false}
}

// book is where the services of a policy are kept: a dry run must not have
// another policy's forgotten.
func (e *Engine) book(policy int) *services {
	if e.policies[policy].dryRun {
		return &e.dryServices
	}
	return &e.services
}

// coolService has a policy cool down for the unit's service.
func (e *Engine) coolService(u *Unit, policy int, until time.Time) {
	if !e.byService {
		return
	}
	if c := e.book(policy).get(u.account(), e.clock).with(policy); until.After(c.until) {
		c.until = until
	}
}

// holdService keeps the unit's service from other openings of the policy.
func (e *Engine) holdService(u *Unit, o *Opening) {
	if e.byService && o.cools() {
		o.service = e.book(o.policy).get(u.account(), e.clock)
		o.service.with(o.policy).open++
	}
}

func (e *Engine) letServiceGo(o *Opening) {
	if o.service != nil {
		o.service.with(o.policy).open--
		o.service = nil
	}
}

// AwaitService keeps policies from firing until SetService says of which service
// the unit is: a cooldown or a budget of the service may be in the way. It does
// not keep the unit from being hot, nor from an opening by hand.
func (u *Unit) AwaitService() { u.unnamed = true }

// SetService says which service the unit is of. Empty: of none, then it stands
// for itself. What the unit has open or cooling counts for the new one too.
func (u *Unit) SetService(name string) {
	u.unnamed = false
	if name == u.service {
		return
	}
	u.service = name
	e := u.engine
	if !e.byService {
		return
	}
	for p := range e.policies {
		switch g := &u.gates[p]; {
		case g.state == Profiling && g.opening.service != nil:
			e.letServiceGo(g.opening)
			e.holdService(u, g.opening)
		case g.cooling():
			e.coolService(u, p, g.notBefore)
		}
	}
}
