// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/peers"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/watch"
)

const (
	// drainInterval is the time between two reads of closed connections.
	drainInterval = 100 * time.Millisecond

	// peersShare limits the cost of reading connections. The time between two calls of
	// Look is at least this many times the duration of the last call.
	peersShare = 10
)

// peersOf reads the connections of units. A nil peersOf returns no readings.
type peersOf struct {
	follower *peers.Follower
	p        *cpuTrigger
	asked    atomic.Bool // the method of was called, so the peers of hot units are needed
}

// newPeers creates the reader of connections. It returns nil if connections are not read,
// or cannot be read.
func (p *cpuTrigger) newPeers(tree *cgroup.Tree) *peersOf {
	if !p.cfg.Peers.Enabled || tree == nil {
		return nil
	}
	of := &peersOf{p: p}
	var err error
	of.follower, err = peers.New(peers.Config{
		Tree: tree, Now: p.now, Log: p.log, Residents: of.residents,
		AddLost: func(what peers.Lost, n int) { p.counters.AddPeersLost(string(what), n) },
	})
	if err != nil {
		level := zap.WarnLevel
		if errors.Is(err, monitor.ForeignPIDs) {
			level = zap.DebugLevel // the receiver and each unavailable monitor already log this
		}
		p.log.Log(level, "cannot read connections", zap.Error(err))
		return nil
	}
	return of
}

// residents returns the units of this host.
func (o *peersOf) residents() (out []peers.Resident) {
	for _, u := range o.p.units.Described() {
		r := peers.Resident{Identity: u.Identity}
		for _, kv := range u.Attributes {
			if kv.Key == attr.ServiceName {
				r.Service = kv.Value.AsString()
			}
		}
		out = append(out, r)
	}
	return out
}

// run reads the connections at each collection interval until the context ends.
func (o *peersOf) run(ctx context.Context) {
	defer o.follower.Close()
	var follow []identify.Identity
	var next time.Time
	watch.Repeat(ctx, func() time.Duration {
		if now := time.Now(); now.Before(next) {
			o.follower.Drain()
		} else {
			follow = o.p.units.AppendConnected(follow[:0], o.asked.Load(), o.monitors())
			o.follower.Look(follow)
			took := time.Since(now)
			if o.follower.Reads() {
				o.p.counters.CPUTriggerPeersDuration.Record(ctx, took.Seconds())
			}
			next = now.Add(max(o.p.cfg.CollectionInterval, peersShare*took))
		}
		wait := time.Until(next)
		if o.follower.Reads() {
			wait = min(wait, drainInterval)
		}
		return wait
	})
}

// monitors returns the TCP monitors that the policies in force use.
func (o *peersOf) monitors() (out []string) {
	for _, i := range o.p.inForce.Load().cfg.items() {
		if slices.Contains(monitor.TCPMonitors(), i.Monitor) {
			out = append(out, i.Monitor)
		}
	}
	return out
}

// of returns the readings of a unit's peers. After the first call of this method, the
// connections of hot units are also read.
func (o *peersOf) of(unit string) []hotunitsextension.PeerReading {
	if o == nil {
		return nil
	}
	o.asked.Store(true)
	return o.follower.Peers(unit)
}
