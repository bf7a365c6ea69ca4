// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"time"

	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/manual"
)

// fire opens the gate of a unit by hand.
func (p *cpuTrigger) fire(_ context.Context, name string, d time.Duration) (manual.Opened, error) {
	if p.closed.Load() {
		return manual.Opened{}, manual.ErrShutdown
	}
	t, err := p.unitNamed(name)
	if err != nil {
		return manual.Opened{}, err
	}
	o, err := p.units.Fire(t, d, p.now())
	if err != nil {
		return manual.Opened{}, err
	}
	p.hot.publish()
	return manual.Opened{TriggerID: o.ID, Unit: o.Unit, Until: o.Until}, nil
}

// unitNamed finds a unit by its own name, or by what identify.ByName accepts.
func (p *cpuTrigger) unitNamed(name string) (identify.Identity, error) {
	if found, ok := p.units.Named(name); ok {
		return found, nil
	}
	why := string(identify.NoControlGroups)
	if p.gate.host != nil {
		var found identify.Identity
		if found, why = identify.ByName(p.gate.host, p.cfg.Scope, name); why == "" {
			return found, nil
		}
	}
	return identify.Identity{}, &manual.NoSuchUnitError{Unit: name, Why: why}
}

// Named returns a unit that is watched by its own name.
func (us *units) Named(name string) (identify.Identity, bool) {
	us.mu.Lock()
	defer us.mu.Unlock()
	u, ok := us.byName[name]
	if !ok {
		return identify.Identity{}, false
	}
	return identify.Identity{Name: u.name, Group: u.cgroup, Process: u.process, Started: u.started}, true
}

// Fire opens the gate of a unit by hand, which is watched from now on.
func (us *units) Fire(t identify.Identity, d time.Duration, now time.Time) (trigger.Opening, error) {
	us.mu.Lock()
	defer us.mu.Unlock()
	u := us.add(t, now)
	if u == nil {
		return trigger.Opening{}, &manual.NoSuchUnitError{Unit: t.Name, Why: string(identify.TooManyUnits)}
	}
	o, err := u.gate.OpenByHand(d, now)
	if err != nil {
		return trigger.Opening{}, err
	}
	us.report(us.engine.Evaluate(now)) // which says that it is open
	us.recorder.Sweep(now)
	return *o, nil
}
