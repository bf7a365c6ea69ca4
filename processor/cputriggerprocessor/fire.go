// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/trigger"
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

// unitNamed finds the unit that people mean by a name: a unit's own, a
// container's id or 12 digits or more of it, a cgroup's path, or a pid.
func (p *cpuTrigger) unitNamed(name string) (target, error) {
	if t, ok := p.units.Named(name); ok {
		return t, nil
	}
	h := p.gate.host
	if h == nil {
		return target{}, &manual.NoSuchUnitError{Unit: name, Why: string(noControlGroups)}
	}
	pid, err := strconv.Atoi(name)
	switch {
	case err == nil && pid > 0 && pid <= maxPID:
		return p.unitOfProcess(name, pid)
	case p.cfg.Scope == ScopeProcess:
		return target{}, &manual.NoSuchUnitError{Unit: name, Why: "units are processes here (scope: process): name one by its pid"}
	case strings.HasPrefix(name, "/"):
		if u, ok := h.Cgroup(name); ok && !u.ProcessOnly() {
			return target{name: u.ID, unit: u}, nil
		}
		return target{}, &manual.NoSuchUnitError{Unit: name, Why: "there is no such cgroup"}
	case len(name) < cgroup.MinPrefix:
		return target{}, &manual.NoSuchUnitError{Unit: name, Why: fmt.Sprintf("it is no pid, no cgroup's path, which begins with /, and too short for a container's id: %d digits are the least", cgroup.MinPrefix)}
	}
	if u, ok := h.Container(name); ok {
		return target{name: u.ID, unit: u}, nil
	}
	return target{}, &manual.NoSuchUnitError{Unit: name, Why: "no container here has that id"}
}

func (p *cpuTrigger) unitOfProcess(name string, pid int) (target, error) {
	process, ok := p.gate.host.Process(pid)
	switch {
	case !ok:
		return target{}, &manual.NoSuchUnitError{Unit: name, Why: "no process here has that pid"}
	case p.cfg.Scope == ScopeCgroup && !process.Unit.ProcessOnly():
		return target{name: process.Unit.ID, unit: process.Unit}, nil
	}
	return target{name: process.Name, process: process.Process, in: process.Unit, since: process.Started}, nil
}

// Named returns a unit that is watched by its own name.
func (us *units) Named(name string) (target, bool) {
	us.mu.Lock()
	defer us.mu.Unlock()
	u, ok := us.byName[name]
	if !ok {
		return target{}, false
	}
	return target{name: u.name, unit: u.cgroup, process: u.process, since: u.started}, true
}

// Fire opens the gate of a unit by hand, which is watched from now on.
func (us *units) Fire(t target, d time.Duration, now time.Time) (trigger.Opening, error) {
	us.mu.Lock()
	defer us.mu.Unlock()
	u := us.add(t, now)
	if u == nil {
		return trigger.Opening{}, &manual.NoSuchUnitError{Unit: t.name, Why: string(tooManyUnits)}
	}
	o, err := u.gate.OpenByHand(d, now)
	if err != nil {
		return trigger.Opening{}, err
	}
	us.report(us.engine.Evaluate(now)) // which says that it is open
	us.recorder.sweep(now)
	return *o, nil
}
