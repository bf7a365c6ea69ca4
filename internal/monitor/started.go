// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// maxAsked bounds the processes of a unit whose start is read.
const maxAsked = 256

// StartedAt returns when the oldest running process of a unit started, among those with
// the lowest pids, up to a bound. It is called once per unit. The error is [ErrGone] if
// the unit has no process.
func (s *Source) StartedAt(u cgroup.Group) (time.Time, error) {
	pids, err := s.tree.Processes(u)
	if err != nil {
		if errors.Is(err, cgroup.ErrGone) {
			err = ErrGone
		}
		return time.Time{}, fmt.Errorf("find when the unit's first process started: %w", err)
	}
	sorted := make([]int, 0, len(pids))
	for pid := range pids {
		sorted = append(sorted, pid)
	}
	slices.Sort(sorted)
	var first uint64
	failed := ErrGone
	for _, pid := range sorted[:min(len(sorted), maxAsked)] {
		start, err := s.startOf(pid)
		if err != nil {
			if !errors.Is(err, ErrGone) {
				failed = err
			}
			continue
		}
		if start > 0 && (first == 0 || start < first) {
			first = start
		}
	}
	if first == 0 {
		return time.Time{}, fmt.Errorf("find when the unit's first process started: %w", failed)
	}
	return s.timeOf(first), nil
}

// timeOf returns the time of a process's start.
func (s *Source) timeOf(start uint64) time.Time {
	now := systemClocks{}.ticks()
	if s.clocks != nil {
		now = s.clocks.ticks()
	}
	return s.options.Now().Add(-time.Duration(now-min(start, now)) * procfs.Tick)
}
