// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package units

import (
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
)

// readingsChunk is the number of units that are read each time the lock is taken.
const readingsChunk = 64

// Readings appends the readings of the hottest units, up to most units. It omits units
// that have neither policies nor peers. left is the number of units that were left out
// because of most.
func (s *Set) Readings(dst []hotunitsextension.UnitReadings, most int, now time.Time, peers func(unit string) []hotunitsextension.PeerReading) (out []hotunitsextension.UnitReadings, left int) {
	s.mu.Lock()
	all := make([]Hot, 0, len(s.byName))
	for _, u := range s.byName {
		all = append(all, Hot{Unit: u, Heat: u.decision.Heat()})
	}
	s.mu.Unlock()
	slices.SortFunc(all, Hotter)
	left = max(0, len(all)-most)
	var conditions []trigger.ConditionStatus
	for chunk := range slices.Chunk(all[:len(all)-left], readingsChunk) {
		s.mu.Lock()
		for _, u := range chunk {
			conditions = u.decision.Conditions(conditions[:0], now)
			r := u.readings(conditions, now)
			r.Peers = peers(u.Name)
			if len(r.Policies)+len(r.Peers) > 0 {
				r.Resource = s.resources.of(u.Unit)
				dst = append(dst, r)
			}
		}
		s.mu.Unlock()
	}
	return dst, left
}

// readings returns the readings of the unit, without its resource and its peers.
// conditions contains the status of each of the unit's conditions, sorted by policy.
func (u *Unit) readings(conditions []trigger.ConditionStatus, now time.Time) hotunitsextension.UnitReadings {
	r := hotunitsextension.UnitReadings{Unit: u.Name, Time: now}
	if !u.IsProcess() {
		r.ContainerID = u.ContainerID
	}
	for _, c := range conditions {
		if c.Off {
			continue
		}
		if n := len(r.Policies); n == 0 || r.Policies[n-1].Policy != c.Policy {
			r.Policies = append(r.Policies, hotunitsextension.PolicyState{Policy: c.Policy, State: c.State.String()})
		}
		r.Conditions = append(r.Conditions, hotunitsextension.ConditionReading{
			Policy: c.Policy, Monitor: c.Key, Window: c.Window, Value: c.Value, Known: c.Enough, Threshold: c.Threshold,
		})
	}
	if len(r.Policies) == 0 {
		return r
	}
	for _, name := range []string{monitor.CPUUsage, monitor.CPUUtilization, monitor.CPURequestUtilization} {
		if last, ok := u.decision.Last(name); ok { // each of these monitors has CPU seconds in Num
			r.CPUSeconds, r.CPUTime = last.Num, last.Time
			break
		}
	}
	if last, ok := u.decision.Last(monitor.MemoryUtilization); ok { // the monitor has bytes in Den
		r.WorkingSet, r.MemoryTime = last.Den, last.Time
	}
	return r
}
