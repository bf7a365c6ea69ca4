// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger/budget"
)

const (
	// maxAlerts is the maximum number of openings by alert for one unit. Every profile of
	// the unit is compared with each of these openings.
	maxAlerts = 8

	// maxAllAlerts is the maximum number of openings by alert for all units together.
	maxAllAlerts = 256
)

// ErrTooManyAlerts is returned if an alert would exceed maxAlerts or maxAllAlerts.
var ErrTooManyAlerts = errors.New("too many gates are open by alerts")

// Alert identifies an external request to open a gate, and names the resulting opening.
// The zero value means that a person opens the gate by hand.
type Alert struct {
	// Key identifies the alert. An alert cannot have two openings of a unit at the same
	// time. If Key is empty, a person opens the gate.
	Key string
	// Name is used as the policy and as the monitor of the opening. The default name is
	// manual.
	Name string
}

// OpenGate opens the unit's gate by hand or by an alert, within the budgets. It ignores
// the cooldown and the unit's age. If the same alert already holds the gate open, OpenGate
// returns the existing opening and sets changed to false. If the gate is already open by
// hand and is opened by hand again, OpenGate extends the existing opening. The next call
// of Evaluate, Remove, SetPolicies or Close reports the transitions. The error is a
// *budget.ExceededError if a budget does not allow the opening. It is ErrTooManyAlerts if
// there are too many openings by alert.
func (u *Decision) OpenGate(a Alert, duration time.Duration, now time.Time) (o *Opening, changed bool, err error) {
	switch {
	case duration <= 0:
		return nil, false, fmt.Errorf("opening the gate of %s: duration %v is not allowed: must be above 0", u.name, duration)
	case u.engine.closed:
		return nil, false, fmt.Errorf("opening the gate of %s: the trigger is shut down: no gate opens any more", u.name)
	case u.gone:
		return nil, false, fmt.Errorf("opening the gate of %s: the unit is gone: name one that is running", u.name)
	}
	if m := u.openByKey(a.Key); m != nil && now.Before(m.opening.Until()) {
		if until := now.Add(duration); a.Key == "" && until.After(m.opening.Until()) {
			m.opening.prolong(until)
		}
		return m.opening, a.Key == "", nil
	}
	e, name := u.engine, cmp.Or(a.Name, Manual)
	u.expireDue(now) // frees the places of overdue openings
	if over := u.overBudgetByHand(e.clock.at(now)); over != "" {
		return nil, false, &budget.ExceededError{Budget: over}
	}
	if a.Key != "" && (u.alerts() >= maxAlerts || e.places.alerts >= maxAllAlerts) {
		return nil, false, ErrTooManyAlerts
	}
	m := &machine{unit: u, policy: &policy{Policy: Policy{Name: name}, index: -1, services: &e.services}}
	u.byHand = append(u.byHand, m)
	m.openByHand(a.Key, duration, now)
	return m.opening, true, nil
}

// openByKey returns the machine of the opening by the alert with this key. If
// the key is empty, it returns the machine of the opening by hand. It returns
// nil if there is no such opening.
func (u *Decision) openByKey(key string) *machine {
	for _, m := range u.byHand {
		if m.opening.Alert == key {
			return m
		}
	}
	return nil
}

// alerts returns the number of current openings that were caused by alerts.
func (u *Decision) alerts() (n int) {
	for _, m := range u.byHand {
		if m.opening.Alert != "" {
			n++
		}
	}
	return n
}

// CloseGate closes the opening of the alert with this key, or the opening by hand if the
// key is empty. It returns the closed opening, or nil if there is no such opening. The
// next call of Evaluate, Remove, SetPolicies or Close reports the transition.
func (u *Decision) CloseGate(key string, now time.Time) *Opening {
	m := u.openByKey(key)
	if m == nil || !now.Before(m.opening.Until()) {
		return nil
	}
	m.closeByHand(now)
	return m.opening
}

// expireByHand closes the openings by hand and by alert whose planned end has passed.
func (u *Decision) expireByHand(now time.Time) {
	for _, m := range slices.Clone(u.byHand) {
		if !now.Before(m.opening.Until()) {
			m.expire()
		}
	}
}

func (u *Decision) expireDue(now time.Time) {
	for i := range u.machines {
		if m := &u.machines[i]; m.state == Profiling && !now.Before(m.opening.Until()) {
			m.expire()
		}
	}
	u.expireByHand(now)
}
