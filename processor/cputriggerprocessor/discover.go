// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
)

const (
	// scanEvery is the time from the end of one scan for units to the next.
	scanEvery = 5 * time.Second

	// scanShare bounds what scans may cost on a host with very many units: the
	// time between two is at least this many times what the last one took.
	scanShare = 50
)

// discoverer finds the cgroups of the host before a profile names them, so that
// their windows are filled when they turn hot, and forgets units not seen.
// Processes as units are not looked for: they are many and short-lived, most of
// them are nobody's to sample, and one that turns hot is in the next profiles.
type discoverer struct {
	tree  *cgroup.Tree
	scope Scope
	units *units
	ttl   time.Duration
	every time.Duration
	now   func() time.Time
	log   *zap.Logger

	scanner *cgroup.Scanner // nil before the first scan
	said    string          // the fault that was logged last
}

// scan looks for units once.
func (d *discoverer) scan() {
	var err error
	if d.scope == ScopeCgroup {
		err = d.scanCgroups()
	}
	switch {
	case err == nil:
		d.said = ""
	case err.Error() != d.said:
		d.said = err.Error()
		d.log.Warn("cannot find all units", zap.Error(err))
	}
	now := d.now()
	d.units.Expire(now.Add(-d.ttl), now)
}

func (d *discoverer) scanCgroups() error {
	if d.scanner == nil {
		d.scanner = d.tree.NewScanner()
	}
	found, err := d.scanner.Groups()
	now := d.now()
	for _, u := range found {
		d.units.Add(identify.Identity{Name: u.ID, Group: u}, now)
	}
	return err
}

// wait is the time until the next scan, if the last one took so long.
func (d *discoverer) wait(took time.Duration) time.Duration {
	return max(d.every, scanShare*took)
}

// describe is the log line about what is read here.
func describe(tree *cgroup.Tree, units, unlimited int) []zap.Field {
	where := tree.Mount(cgroup.V2Tree)
	if where == "" {
		where = tree.Mount(cgroup.CPU)
	}
	fields := []zap.Field{
		zap.Stringer("mode", tree.Mode()), zap.String("tree", where), zap.Int("units", units),
	}
	if unlimited >= 0 {
		fields = append(fields, zap.Int("units_without_limit", unlimited))
	}
	if limited := tree.Limited(); limited != "" {
		fields = append(fields, zap.String("limited", limited))
	}
	return fields
}
