// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"io/fs"
	"slices"
	"time"
)

// A Throttling counts the periods in which a group was throttled by its own cgroup or by
// an ancestor. An ancestor that has used up its quota throttles all cgroups below it. The
// ancestor's periods are weighted by the fraction of its quota that the group uses, so
// that an idle sidecar in a throttled pod is not counted as throttled.
type Throttling struct {
	r *Reader
	// process is true for a single process. Other processes in its cgroup share the quota of
	// the cgroup.
	process bool
	// The slices have an element for each cgroup on the path, and begin with the group's own.
	// last contains the counts of the last Read.
	stats  []*level[cpuStat]
	quotas []*level[float64]
	last   []cpuStat
}

// OpenThrottling opens the cgroups on a path in the hierarchy of the cpu controller. p
// contains the paths of the group g or, if g is zero, of a process. The error is an
// [Unavailable] if the group has no separate cgroup in this hierarchy, or if no cgroup on
// the path counts periods.
func (r *Reader) OpenThrottling(g Group, p Paths) (*Throttling, error) {
	if _, _, err := r.tree.ownOf(g, CPU); err != nil && !g.ProcessOnly() {
		return nil, err
	}
	h, ok := r.tree.owner(CPU)
	if !ok || p[h] == "" {
		return nil, NotMounted
	}
	if p[h] == "/" {
		return nil, InRoot
	}
	t := &Throttling{r: r, process: g.ProcessOnly(), quotas: r.acquireQuotas(h, p[h])}
	t.stats = acquireAll(r, r.stats, h, p[h], "cpu.stat")
	t.last = make([]cpuStat, len(t.stats))
	counted := false
	for _, l := range t.stats {
		s, err := r.stat(l, time.Time{}, false)
		switch {
		case errors.Is(err, ErrGone):
			t.Close()
			return nil, ErrGone
		case isGone(err): // the file does not exist
		case err != nil: // the file may be readable later
			counted = true
		default:
			counted = counted || s.hasPeriods
		}
	}
	if !counted {
		t.Close()
		return nil, NoPeriods
	}
	return t, nil
}

// ThrottledPeriods counts all CFS periods of a time span, and the periods in which a group
// was throttled.
type ThrottledPeriods struct{ Total, Throttled float64 }

// Read returns the periods since the last Read, from the level with the largest share of
// throttled periods. It returns 0 at the first Read, or if no level had a period. cores is
// the group's CPU usage since the last Read. replaced reports whether the counter of the
// group's own cgroup restarted at 0.
func (t *Throttling) Read(now time.Time, cores float64) (grown ThrottledPeriods, replaced bool, err error) {
	counted := false
	for i, l := range t.stats {
		last := t.last[i]
		if last.hasPeriods && t.unlimited(t.quotas[i], now) {
			counted = true // the kernel does not count without a quota
			continue
		}
		s, err := t.r.stat(l, now, i > 0)
		if err != nil {
			if i > 0 && errors.Is(err, fs.ErrNotExist) {
				continue // no controller at this level
			}
			return ThrottledPeriods{}, false, err
		}
		t.last[i] = s
		if !s.hasPeriods {
			continue
		}
		counted = true
		step := ThrottledPeriods{float64(s.periods.Total - last.periods.Total), float64(s.periods.Throttled - last.periods.Throttled)}
		if i > 0 || t.process {
			step.Throttled *= t.part(t.quotas[i], cores, now)
		}
		switch {
		case !last.hasPeriods: // the starting point
		case s.generation != last.generation || s.periods.Total < last.periods.Total || s.periods.Throttled < last.periods.Throttled:
			replaced = replaced || i == 0
		case step.larger(grown):
			grown = step
		}
	}
	if !counted {
		return ThrottledPeriods{}, false, NoPeriods
	}
	if replaced {
		grown = ThrottledPeriods{}
	}
	return grown, replaced, nil
}

// LimitedAbove reports whether an ancestor has a quota. Other cgroups below that ancestor
// can use up the quota.
func (t *Throttling) LimitedAbove(now time.Time) bool {
	return slices.ContainsFunc(t.quotas[1:], func(quota *level[float64]) bool { return !t.unlimited(quota, now) })
}

// Renew discards the cached quotas. Call Renew when a different cgroup has taken over the
// path.
func (t *Throttling) Renew() {
	for _, quota := range t.quotas {
		quota.renew()
	}
}

// larger reports whether p has a larger share of throttled periods than other, or the same
// share of more periods.
func (p ThrottledPeriods) larger(other ThrottledPeriods) bool {
	a, b := p.Throttled*other.Total, other.Throttled*p.Total
	return p.Total > 0 && (other.Total == 0 || a > b || a == b && p.Total > other.Total)
}

// part returns the fraction of a cgroup's quota that the given number of cores uses, or 1
// if the quota is unknown.
func (t *Throttling) part(l *level[float64], cores float64, now time.Time) float64 {
	quota, err := l.get(t.r, now, (*Reader).readQuota)
	if err != nil || quota <= 0 {
		return 1
	}
	return min(cores/quota, 1)
}

// unlimited reports whether a cgroup is known to have no quota.
func (t *Throttling) unlimited(l *level[float64], now time.Time) bool {
	cores, err := l.get(t.r, now, (*Reader).readQuota)
	return err == nil && cores == 0 && !l.missing
}

// From returns the path of the group's own file.
func (t *Throttling) From() string { return t.stats[0].files[0].Path() }

// Close closes the files.
func (t *Throttling) Close() {
	release(t.r.stats, t.stats...)
	release(t.r.quotas, t.quotas...)
	t.stats, t.quotas = nil, nil
}
