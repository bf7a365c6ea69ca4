// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"context"
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// Finder says what the targets mean now.
type Finder interface {
	// Find looks for them. hostWide says that CPU-wide events are permitted;
	// where the whole host is wanted and they are not, it finds the processes
	// that are sampled in its stead.
	Find(ctx context.Context, hostWide bool) (Finding, error)
}

// Finding is what targets mean at one moment.
type Finding struct {
	Wanted perfevent.Wanted
	// Starts are the start times of the processes in Wanted, by pid.
	Starts map[int]uint64
	// Missing names the targets that nothing was found for.
	Missing []string
}

// found is a Finding and what is to be done about it.
type found struct {
	Finding
	rights perfevent.Rights
	plan   perfevent.Plan
	// err says why nothing can be sampled; nil where something can.
	err error
	// failed says that err is a failure to look: nothing is known.
	failed bool
}

// discover looks for targets, and for rights that were missing, until ctx is
// done.
func (s *Sampler) discover(ctx context.Context, rights perfevent.Rights) {
	tick := time.NewTicker(s.cfg.DiscoveryInterval)
	defer tick.Stop()
	for {
		f := s.find(ctx, rights)
		if ctx.Err() != nil {
			return
		}
		select {
		case <-s.found: // what the reader has not looked at yet is out of date
		default:
		}
		s.found <- f
		s.Wake()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if rights.Own != nil || rights.HostWide != nil || rights.Kernel != nil {
			rights = s.cfg.Probe()
		}
	}
}

// find plans what to sample.
func (s *Sampler) find(ctx context.Context, rights perfevent.Rights) found {
	f := found{rights: rights}
	if rights.Own != nil && rights.HostWide != nil {
		f.err = rights.Own
		return f
	}
	cpus, err := perfevent.OnlineCPUs()
	if err == nil {
		f.Finding, err = s.cfg.Finder.Find(ctx, rights.HostWide == nil)
	}
	if err != nil {
		f.err, f.failed = err, true
		return f
	}
	f.plan = perfevent.NewPlan(f.Wanted, perfevent.Limits{
		CPUs:      cpus,
		MaxEvents: s.cfg.MaxEvents,
		OpenFiles: perfevent.OpenFileLimit(),
		HostWide:  rights.HostWide,
	})
	// The user's own processes may be sampled though there is none now.
	instead := f.Wanted.Host && rights.Own == nil
	if f.plan.Mode == perfevent.ModeNone && len(f.plan.LeftOut) > 0 && !instead {
		f.err = rights.HostWide
	}
	return f
}
