// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"errors"
	"time"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/manual"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// openByHand opens the gate of a unit.
func (p *cpuTrigger) openByHand(_ context.Context, name string, d time.Duration) (manual.Opened, error) {
	if p.closed.Load() {
		return manual.Opened{}, manual.ErrShutdown
	}
	t, err := p.unitNamed(name)
	if err != nil {
		return manual.Opened{}, err
	}
	o, err := p.units.Open(t, d, p.now())
	if errors.Is(err, units.ErrTooMany) {
		return manual.Opened{}, &manual.NoSuchUnitError{Unit: t.Name, Why: err.Error()}
	}
	if err != nil {
		return manual.Opened{}, err
	}
	p.hot.Publish()
	return manual.Opened{TriggerID: o.ID, Unit: o.Unit, Until: o.Until}, nil
}

// unitNamed finds a unit by its own name, or by what identify.ByName accepts.
func (p *cpuTrigger) unitNamed(name string) (identify.Identity, error) {
	if u, ok := p.units.Lookup(name); ok {
		return u.Identity, nil
	}
	why := string(identify.NoControlGroups)
	if p.router.host != nil {
		var found identify.Identity
		if found, why = identify.ByName(p.router.host, p.cfg.Scope, name); why == "" {
			return found, nil
		}
	}
	return identify.Identity{}, &manual.NoSuchUnitError{Unit: name, Why: why}
}
