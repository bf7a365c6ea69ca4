// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

const (
	// maxScanInterval is the time from the end of one scan to the next.
	maxScanInterval = 5 * time.Second

	// scanShare bounds the cost of scans on a host with very many units: the time
	// between two scans is at least this many times the duration of the last one.
	scanShare = 50
)

// Discoverer finds the cgroups of the host before a profile names them, so that
// their windows are filled when they turn hot, and forgets units that were not
// seen for TTL. It does not look for processes as units: they are many and
// short-lived, most are not sampled, and the profiles of a hot one name it.
type Discoverer struct {
	Tree     *cgroup.Tree
	Scope    identify.Scope
	Units    *units.Set
	TTL      time.Duration
	Interval time.Duration // between evaluations: scans need not be more frequent
	Now      func() time.Time
	Log      *zap.Logger

	scanner *cgroup.Scanner // nil before the first scan
	logged  string          // the last fault
}

// Run scans until the context ends. It closes scanned after the first scan.
func (d *Discoverer) Run(ctx context.Context, scanned chan<- struct{}) {
	for first := true; ; first = false {
		start := time.Now()
		d.scan()
		if first {
			close(scanned)
		}
		timer := time.NewTimer(d.wait(time.Since(start)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// scan looks for units once.
func (d *Discoverer) scan() {
	var err error
	if d.Scope == identify.ScopeCgroup {
		err = d.scanCgroups()
	}
	switch {
	case err == nil:
		d.logged = ""
	case err.Error() != d.logged:
		d.logged = err.Error()
		d.Log.Warn("cannot find all units", zap.Error(err))
	}
	now := d.Now()
	d.Units.Expire(now.Add(-d.TTL), now)
}

func (d *Discoverer) scanCgroups() error {
	if d.scanner == nil {
		d.scanner = d.Tree.NewScanner()
	}
	found, err := d.scanner.Groups()
	now := d.Now()
	for _, g := range found {
		d.Units.Add(identify.Identity{Name: g.ID, Group: g}, now)
	}
	return err
}

// wait returns the time until the next scan after one that took so long.
func (d *Discoverer) wait(took time.Duration) time.Duration {
	return max(min(maxScanInterval, max(time.Second, d.Interval)), scanShare*took)
}
