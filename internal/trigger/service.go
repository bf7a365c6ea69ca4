// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/trigger/order"
)

// account identifies the service that cooldowns and budgets apply to. A unit without a
// service has an account as well.
type account struct {
	name string
	unit bool
}

func (a account) compare(b account) int {
	return cmp.Or(order.Bools(a.unit, b.unit), strings.Compare(a.name, b.name))
}

// service contains the cooldowns and the openings of an account.
type service struct {
	account
	cooldowns []serviceCooldown // by policy
	triggers  budget.Hour

	until time.Time // key in services.order; index is the service's index in the heap, plus 1
	index int
}

// serviceCooldown is the state of one policy for a service.
type serviceCooldown struct {
	policy int
	open   int // number of open openings
	until  time.Time
}

func (s *service) with(policy int) *serviceCooldown {
	for i := range s.cooldowns {
		if s.cooldowns[i].policy == policy {
			return &s.cooldowns[i]
		}
	}
	s.cooldowns = append(s.cooldowns, serviceCooldown{policy: policy})
	return &s.cooldowns[len(s.cooldowns)-1]
}

// open reports whether an opening of the service is not closed yet.
func (s *service) open() bool {
	return slices.ContainsFunc(s.cooldowns, func(c serviceCooldown) bool { return c.open > 0 })
}

// last returns the time after which the service may be forgotten, unless one of its openings
// is not closed yet.
func (s *service) last(clock *clock) (last time.Time) {
	for _, c := range s.cooldowns {
		if c.until.After(last) {
			last = c.until
		}
	}
	if at, ok := s.triggers.Last(); ok {
		if t := clock.time(at).Add(time.Hour); t.After(last) {
			last = t
		}
	}
	return last
}

// services remembers a limited number of services. When the limit is reached, the
// service whose memory expires first is forgotten. Ties are ordered by name. Services
// with an open opening are never forgotten.
//
// Invariant: order contains exactly the services that are not open. The key of a service
// in order is the time that the service's method last returns, unless the key has passed.
type services struct {
	max       int
	clock     *clock
	byAccount map[account]*service
	order     order.Heap[*service] // by until
	forgotten int
}

func newServices(most int, c *clock) services {
	return services{
		max: most, clock: c, byAccount: make(map[account]*service),
		order: order.Heap[*service]{
			Compare: func(a, b *service) int { return cmp.Or(a.until.Compare(b.until), a.compare(b.account)) },
			Index:   func(s *service) *int { return &s.index },
		},
	}
}

// get returns a service. It adds the service if the service is new. The caller changes the
// service and then calls keep.
func (ss *services) get(a account) *service {
	if s, ok := ss.byAccount[a]; ok {
		return s
	}
	if len(ss.byAccount) >= ss.max && len(ss.order.Items) > 0 { // otherwise all services are open
		ss.forget(ss.order.Items[0])
		ss.forgotten++
	}
	s := &service{account: a}
	ss.byAccount[a] = s
	return s
}

// keep keeps a changed service for as long as it matters.
func (ss *services) keep(s *service) {
	if s.open() {
		ss.order.Remove(s)
		return
	}
	s.until = s.last(ss.clock)
	ss.order.Fix(s)
}

// cool moves the end of a cooldown to a later time. It never shortens the cooldown.
func (ss *services) cool(a account, policy int, until time.Time) {
	s := ss.get(a)
	if c := s.with(policy); until.After(c.until) {
		c.until = until
	}
	ss.keep(s)
}

// cooling reports whether a policy of a service is open or cooling down. until is the end
// of the cooldown, or zero while the policy is open.
func (ss *services) cooling(a account, policy int, now time.Time) (until time.Time, cooling bool) {
	s, ok := ss.byAccount[a]
	if !ok {
		return time.Time{}, false
	}
	for i := range s.cooldowns {
		if c := &s.cooldowns[i]; c.policy == policy {
			if c.open > 0 {
				return time.Time{}, true
			}
			return c.until, now.Before(c.until)
		}
	}
	return time.Time{}, false
}

func (ss *services) triggers(a account, at int64) int64 {
	if s, ok := ss.byAccount[a]; ok {
		return s.triggers.Sum(at)
	}
	return 0
}

// forgetDue forgets the services that no longer matter.
func (ss *services) forgetDue(now time.Time) {
	for len(ss.order.Items) > 0 && !now.Before(ss.order.Items[0].until) {
		ss.forget(ss.order.Items[0])
	}
}

func (ss *services) forget(s *service) {
	delete(ss.byAccount, s.account)
	ss.order.Remove(s)
}

// account returns the key of the unit's cooldowns and budgets by service.
func (u *Decision) account() account {
	if u.service == "" {
		return account{u.name, true}
	}
	return account{u.service, false}
}

// serviceTriggerLeft reports whether the budget of the unit's service allows one more
// opening.
func (u *Decision) serviceTriggerLeft(at int64) bool {
	limit := int64(u.engine.places.ledger.Limits().MaxTriggersPerServicePerHour)
	return limit == 0 || u.engine.services.triggers(u.account(), at) < limit
}

func (u *Decision) spendServiceTrigger(at int64) {
	if u.engine.places.ledger.Limits().MaxTriggersPerServicePerHour > 0 {
		s := u.engine.services.get(u.account())
		s.triggers.Add(at, 1)
		u.engine.services.keep(s)
	}
}

// coolService applies the policy's cooldown to the unit's service.
func (m *machine) coolService() {
	if m.unit.engine.plan.byService {
		m.policy.services.cool(m.unit.account(), m.policy.index, m.notBefore)
	}
}

// holdService prevents the policy from opening the gates of other units of the service.
func (o *Opening) holdService() {
	if m := o.machine; m.unit.engine.plan.byService && o.cools() {
		o.service = m.policy.services.get(m.unit.account())
		o.service.with(m.policy.index).open++
		m.policy.services.keep(o.service)
	}
}

// freeService undoes holdService.
func (o *Opening) freeService() {
	if p := o.machine.policy; o.service != nil {
		o.service.with(p.index).open--
		p.services.keep(o.service)
		o.service = nil
	}
}

// AwaitService prevents policies from firing until SetService is called, because the
// cooldown or the budget of the service may not allow it. In the meantime, the unit may
// be hot and may be opened by hand.
func (u *Decision) AwaitService() { u.unnamed = true }

// SetService sets the unit's service. If the name is empty, per-service cooldowns and
// budgets apply to the unit alone. Existing openings and cooldowns of the unit also count
// for the new service.
func (u *Decision) SetService(name string) {
	u.unnamed = false
	if name == u.service {
		return
	}
	u.service = name
	if !u.engine.plan.byService {
		return
	}
	for i := range u.machines {
		switch m := &u.machines[i]; {
		case m.state == Profiling && m.opening.service != nil:
			m.opening.freeService()
			m.opening.holdService()
		case m.cooling():
			m.coolService()
		}
	}
}
