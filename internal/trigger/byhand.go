// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
)

const (
	// maxAlerts bounds the openings by alert of a unit, each of which every profile is
	// compared with.
	maxAlerts = 8

	// maxAllAlerts bounds the openings by alert of all units.
	maxAllAlerts = 256
)

// ErrTooManyAlerts is returned for an alert beyond the bounds on openings by alert.
var ErrTooManyAlerts = errors.New("too many gates are open by alerts")

// Alert opens a gate from outside, as a person does, under its own name.
type Alert struct {
	// Key identifies the alert: while a gate is open by it, the same alert does not
	// open it again. Not empty.
	Key string
	// Name is the policy and the monitor of the opening.
	Name string
}

// OpenByHand opens the unit's gate within the budgets, whatever the cooldown and the
// unit's age. While such an opening is open it prolongs that one, which keeps its ID.
// The next call of Evaluate, Remove, SetPolicies or Close reports the transitions. The
// error is a *budget.ExceededError if a budget does not allow it.
func (u *Unit) OpenByHand(duration time.Duration, now time.Time) (*Opening, error) {
	if err := u.mayOpenByHand(duration); err != nil {
		return nil, err
	}
	if m := u.openByKey(""); m != nil && now.Before(m.opening.Until()) {
		if until := now.Add(duration); until.After(m.opening.Until()) {
			m.opening.prolong(until)
		}
		return m.opening, nil
	}
	return u.openAsked(Alert{Name: Manual}, duration, now)
}

// OpenByAlert is OpenByHand for an alert, except that it does not prolong an opening of
// the same alert: it returns that one, with opened false. Beyond the bounds on such
// openings it fails with ErrTooManyAlerts.
func (u *Unit) OpenByAlert(a Alert, duration time.Duration, now time.Time) (o *Opening, opened bool, err error) {
	if err := u.mayOpenByHand(duration); err != nil {
		return nil, false, err
	}
	if m := u.openByKey(a.Key); m != nil && now.Before(m.opening.Until()) {
		return m.opening, false, nil
	}
	o, err = u.openAsked(a, duration, now)
	return o, err == nil, err
}

// CloseByHand closes the opening that OpenByHand made and returns it; nil if there is
// none. Openings of policies and alerts stay. The next call of Evaluate, Remove,
// SetPolicies or Close reports the transition.
func (u *Unit) CloseByHand(now time.Time) *Opening { return u.closeAsked("", now) }

// CloseByAlert is CloseByHand for the opening of the alert that a key identifies.
func (u *Unit) CloseByAlert(key string, now time.Time) *Opening { return u.closeAsked(key, now) }

func (u *Unit) mayOpenByHand(duration time.Duration) error {
	switch {
	case duration <= 0:
		return fmt.Errorf("opening the gate of %s: duration %v is not allowed: must be above 0", u.name, duration)
	case u.engine.closed:
		return fmt.Errorf("opening the gate of %s: the trigger is shut down: no gate opens any more", u.name)
	case u.gone:
		return fmt.Errorf("opening the gate of %s: the unit is gone: name one that is running", u.name)
	}
	return nil
}

// openByKey returns the machine of the opening by hand, or by the alert of a key; nil if
// there is none.
func (u *Unit) openByKey(key string) *machine {
	for _, m := range u.byHand {
		if m.opening.Alert == key {
			return m
		}
	}
	return nil
}

func (u *Unit) openAsked(a Alert, duration time.Duration, now time.Time) (o *Opening, err error) {
	e := u.engine
	e.journal.deferring(func() {
		u.expireDue(now) // what is overdue holds no place
		if over := u.overBudgetByHand(e.clock.at(now)); over != "" {
			err = &budget.ExceededError{Budget: over}
			return
		}
		if a.Key != "" && (u.alerts() >= maxAlerts || e.places.alerts >= maxAllAlerts) {
			err = ErrTooManyAlerts
			return
		}
		m := &machine{unit: u, policy: &policy{index: -1, name: a.Name, services: &e.services}}
		u.byHand = append(u.byHand, m)
		m.openByHand(a.Key, duration, now)
		o = m.opening
	})
	return o, err
}

// alerts returns the number of openings by alert that are open.
func (u *Unit) alerts() (n int) {
	for _, m := range u.byHand {
		if m.opening.Alert != "" {
			n++
		}
	}
	return n
}

func (u *Unit) closeAsked(key string, now time.Time) *Opening {
	m := u.openByKey(key)
	if m == nil || !now.Before(m.opening.Until()) {
		return nil
	}
	u.engine.journal.deferring(func() {
		u.leave(m, func(m *machine) { m.closeByHand(now) })
	})
	return m.opening
}

// leave closes an opening by hand or by alert by one of the machine's transitions.
func (u *Unit) leave(m *machine, closing func(*machine)) {
	closing(m)
	n := slices.Index(u.byHand, m)
	u.byHand = slices.Delete(u.byHand, n, n+1)
}

// expireByHand closes the openings by hand and by alert whose time is over.
func (u *Unit) expireByHand(now time.Time) {
	for i := 0; i < len(u.byHand); {
		if m := u.byHand[i]; now.Before(m.opening.Until()) {
			i++
		} else {
			u.leave(m, (*machine).expire)
		}
	}
}

func (u *Unit) expireDue(now time.Time) {
	for i := range u.machines {
		if m := &u.machines[i]; m.state == Profiling && !now.Before(m.opening.Until()) {
			m.expire()
		}
	}
	u.expireByHand(now)
}
