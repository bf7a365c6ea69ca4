// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/manual"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// gates finds units and opens or closes their gates for a single request. The request was
// made by hand or contains alerts.
type gates struct {
	p     *cpuTrigger
	units []units.Described // all units when attributes were first needed
	// by maps the key and the value of an attribute to the units that have this attribute.
	// It contains only keys that alerts have used.
	by map[string]map[string][]*units.Described
}

func (p *cpuTrigger) gates() manual.Gates { return &gates{p: p} }

// Find returns the units that n identifies. If there are no such units, it
// returns the reason.
func (g *gates) Find(n manual.Named) ([]identify.Identity, string) {
	switch {
	case g.p.router.Host == nil:
		return nil, string(identify.NoControlGroups)
	case cmp.Or(n.Name, n.ContainerID, n.Cgroup) != "":
		return g.byName(cmp.Or(n.Name, n.ContainerID, n.Cgroup))
	case n.PID != "":
		return g.process(n)
	}
	return g.withAttributes(n.Attributes)
}

// byName finds a unit by its name, or by any other name that identify.ByName accepts.
func (g *gates) byName(name string) ([]identify.Identity, string) {
	if u, ok := g.p.units.Lookup(name); ok {
		return []identify.Identity{u.Identity}, ""
	}
	found, why := identify.ByName(g.p.router.Host, g.p.cfg.Scope, name)
	if why != "" {
		return nil, why
	}
	return []identify.Identity{found}, ""
}

// process returns the unit of a process on this host. The kernel reuses pids and an alert
// may be old, so process refuses a process that started after the alert.
func (g *gates) process(n manual.Named) ([]identify.Identity, string) {
	host := n.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if !g.p.router.Host.IsName(host) && !isAddress(host) {
		return nil, "a process is named by its pid and by an instance with the name or address of this host, which localhost is not"
	}
	pid, err := strconv.Atoi(n.PID)
	if err != nil {
		return nil, "its pid is no number"
	}
	if p, ok := g.p.router.Host.Process(pid); ok && !n.Since.IsZero() && p.Started.After(n.Since.Add(manual.StartTolerance)) {
		return nil, "the process that has that pid now started after the alert"
	}
	return g.byName(n.PID)
}

// isAddress reports whether a string is an address of this host, but not a loopback address.
func isAddress(text string) bool {
	ip := net.ParseIP(text)
	if ip == nil || ip.IsLoopback() {
		return false
	}
	addrs, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

// withAttributes returns the units that have all wanted attributes, sorted by name.
func (g *gates) withAttributes(want map[string]string) (found []identify.Identity, why string) {
	var fewest []*units.Described
	first := true
	for key, value := range want {
		if have := g.with(key)[value]; first || len(have) < len(fewest) {
			fewest, first = have, false
		}
	}
	for _, u := range fewest {
		if has(u.Attributes, want) {
			found = append(found, u.Identity)
		}
	}
	if len(found) == 0 {
		return nil, "no unit here has profiles with these attributes"
	}
	slices.SortFunc(found, func(a, b identify.Identity) int { return cmp.Compare(a.Name, b.Name) })
	return found, ""
}

// with returns the units that have an attribute with this key, grouped by the attribute's
// value. The result is cached for the other alerts of the request.
func (g *gates) with(key string) map[string][]*units.Described {
	if of, ok := g.by[key]; ok {
		return of
	}
	if g.by == nil {
		g.units, g.by = g.p.units.Described(), map[string]map[string][]*units.Described{}
	}
	of := map[string][]*units.Described{}
	for i := range g.units {
		u := &g.units[i]
		for _, kv := range u.Attributes {
			if string(kv.Key) == key && kv.Value.Type() == attribute.STRING {
				of[kv.Value.AsString()] = append(of[kv.Value.AsString()], u)
			}
		}
	}
	g.by[key] = of
	return of
}

func has(attributes []attribute.KeyValue, want map[string]string) bool {
	n := 0
	for _, kv := range attributes {
		if value, ok := want[string(kv.Key)]; ok && kv.Value.Type() == attribute.STRING && kv.Value.AsString() == value {
			n++
		}
	}
	return n == len(want)
}

// Open opens the gate of a unit for an alert or by hand.
func (g *gates) Open(unit identify.Identity, a trigger.Alert, d time.Duration) (manual.Opened, bool, error) {
	if g.p.closed.Load() {
		return manual.Opened{}, false, manual.ErrShutdown
	}
	o, changed, err := g.p.units.OpenGate(unit, a, d, g.p.now())
	if errors.Is(err, units.ErrTooMany) {
		return manual.Opened{}, false, &manual.NoSuchUnitError{Unit: unit.Name, Why: err.Error()}
	}
	if err != nil {
		return manual.Opened{}, false, err
	}
	if changed {
		g.p.hot.Publish()
	}
	return manual.Opened{TriggerID: o.ID, Unit: o.Unit, Until: o.Until(), LostUnit: o.LostUnit}, changed, nil
}

// Close closes an opening of a unit. key identifies the alert that opened the gate. An
// empty key selects the opening by hand.
func (g *gates) Close(unit, key string) (manual.Closed, error) {
	if g.p.closed.Load() {
		return manual.Closed{}, manual.ErrShutdown
	}
	o, still, ok := g.p.units.CloseGate(unit, key, g.p.now())
	if !ok {
		return manual.Closed{}, manual.ErrNotOpen
	}
	g.p.hot.Publish()
	return manual.Closed{TriggerID: o.ID, Unit: o.Unit, Closed: o.ClosedAt, StillOpen: still}, nil
}
