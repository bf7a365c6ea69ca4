// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/collect"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/peers"
)

const (
	// drainInterval is the time between two reads of closed connections.
	drainInterval = 100 * time.Millisecond

	// peersShare limits the cost of reading connections. The time between two calls of
	// Look is at least this many times the duration of the last call.
	peersShare = 10
)

// newFollower creates the reader of connections. It returns nil if connections are not read,
// or cannot be read.
func (p *cpuTrigger) newFollower(tree *cgroup.Tree) *peers.Follower {
	if !p.cfg.Peers.Enabled || tree == nil {
		return nil
	}
	f, err := peers.New(peers.Config{
		Tree: tree, Now: p.now, Log: p.log, Residents: p.residents,
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
	return f
}

// residents returns the units of this host.
func (p *cpuTrigger) residents() (out []peers.Resident) {
	for _, u := range p.units.Described() {
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

// readConnections reads the connections at each collection interval until the context ends.
func (p *cpuTrigger) readConnections(ctx context.Context, f *peers.Follower) {
	defer f.Close()
	var follow []identify.Identity
	var next time.Time
	collect.Repeat(ctx, func() time.Duration {
		if now := time.Now(); now.Before(next) {
			f.Drain()
		} else {
			follow = p.units.AppendConnected(follow[:0], f.Asked(), p.tcpMonitors())
			f.Look(follow)
			took := time.Since(now)
			if f.Reads() {
				p.counters.CPUTriggerPeersDuration.Record(ctx, took.Seconds())
			}
			next = now.Add(max(p.cfg.CollectionInterval, peersShare*took))
		}
		wait := time.Until(next)
		if f.Reads() {
			wait = min(wait, drainInterval)
		}
		return wait
	})
}

// tcpMonitors returns the TCP monitors that the policies in force use.
func (p *cpuTrigger) tcpMonitors() (out []string) {
	for _, i := range p.inForce.Load().cfg.items() {
		if slices.Contains(monitor.TCPMonitors(), i.Monitor) {
			out = append(out, i.Monitor)
		}
	}
	return out
}
