// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"io/fs"
	"time"
)

// A Throttling reads how often a group was throttled, by its own cgroup or by an ancestor.
// An ancestor that has used up its quota throttles all cgroups below it. Its periods count
// for a group only by the part of the quota that the group uses, because a sidecar that
// idles in a throttled pod is not throttled.
type Throttling struct {
	// Process is set for a process. The quota of its own cgroup is for other processes too.
	Process bool

	r      *Reader
	levels []throttlingLevel
}

// throttlingLevel is one cgroup of the path.
type throttlingLevel struct {
	stat  *level[cpuStat]
	quota *level[float64]
	last  cpuStat
	began bool
}

// OpenGroupThrottling is OpenThrottling for a group that has a cgroup of its own in that
// hierarchy. Otherwise the error is an [Unavailable].
func (r *Reader) OpenGroupThrottling(g Group) (*Throttling, error) {
	if _, _, err := r.tree.ownOf(g, CPU); err != nil {
		return nil, err
	}
	return r.OpenThrottling(g.Paths)
}

// OpenThrottling opens the cgroups of a path in the hierarchy that has the cpu controller.
// The error is an [Unavailable] if no cgroup on the path counts periods.
func (r *Reader) OpenThrottling(p Paths) (*Throttling, error) {
	h, ok := r.tree.owner(CPU)
	if !ok || p[h] == "" {
		return nil, NotMounted
	}
	if p[h] == "/" {
		return nil, InRoot
	}
	t := &Throttling{r: r}
	counted := false
	quotas := r.acquireQuotas(h, p[h])
	for i, stat := range acquireAll(r, r.stats, h, p[h], "cpu.stat") {
		t.levels = append(t.levels, throttlingLevel{stat: stat, quota: quotas[i]})
	}
	for _, l := range t.levels {
		s, err := r.stat(l.stat, time.Time{}, false)
		switch {
		case errors.Is(err, ErrGone):
			t.Close()
			return nil, ErrGone
		case isGone(err): // the file is not there
		case err != nil: // a file that cannot be read now may be readable later
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

// ThrottledPeriods counts all CFS periods of a time, and the periods in which a group was
// throttled.
type ThrottledPeriods struct{ Total, Throttled float64 }

// Read returns the periods since the last reading, of the level with the largest share of
// throttled periods. It returns 0 at the first reading and if no level had a period since.
// cores is the group's use of CPU time since then. replaced reports whether the group's own
// count began at 0.
func (t *Throttling) Read(now time.Time, cores float64) (grown ThrottledPeriods, replaced bool, err error) {
	counted := false
	for i := range t.levels {
		l := &t.levels[i]
		if l.began && t.unlimited(l, now) {
			counted = true // nothing is counted without a quota
			continue
		}
		s, err := t.r.stat(l.stat, now, i > 0)
		if err != nil {
			if i > 0 && errors.Is(err, fs.ErrNotExist) {
				continue // no controller at this level
			}
			return ThrottledPeriods{}, false, err
		}
		if !s.hasPeriods {
			l.began = false
			continue
		}
		counted = true
		step := ThrottledPeriods{float64(s.periods.Total - l.last.periods.Total), float64(s.periods.Throttled - l.last.periods.Throttled)}
		if i > 0 || t.Process {
			step.Throttled *= t.part(l, cores, now)
		}
		backwards := s.generation != l.last.generation || s.periods.Total < l.last.periods.Total || s.periods.Throttled < l.last.periods.Throttled
		if l.began && !backwards && step.larger(grown) {
			grown = step
		}
		if l.began && backwards && i == 0 {
			replaced = true
		}
		l.last, l.began = s, true
	}
	if !counted {
		return ThrottledPeriods{}, false, NoPeriods
	}
	if replaced {
		grown = ThrottledPeriods{}
	}
	return grown, replaced, nil
}

// LimitedAbove reports whether an ancestor has a quota. Other cgroups below the ancestor
// can use up its quota.
func (t *Throttling) LimitedAbove(now time.Time) bool {
	for i := 1; i < len(t.levels); i++ {
		if !t.unlimited(&t.levels[i], now) {
			return true
		}
	}
	return false
}

// Renew forgets the quotas. The caller calls it when another cgroup has the path.
func (t *Throttling) Renew() {
	for i := range t.levels {
		t.levels[i].quota.renew()
	}
}

// larger reports whether a share of periods is larger than another one, or is equal and has
// more periods.
func (p ThrottledPeriods) larger(other ThrottledPeriods) bool {
	a, b := p.Throttled*other.Total, other.Throttled*p.Total
	return p.Total > 0 && (other.Total == 0 || a > b || a == b && p.Total > other.Total)
}

// part returns the part of a cgroup's quota that a use of cores takes. It is 1 while the
// quota is not known.
func (t *Throttling) part(l *throttlingLevel, cores float64, now time.Time) float64 {
	quota, err := l.quota.get(t.r, now, (*Reader).readQuota)
	if err != nil || quota <= 0 {
		return 1
	}
	return min(cores/quota, 1)
}

// unlimited reports whether a cgroup is known to have no quota.
func (t *Throttling) unlimited(l *throttlingLevel, now time.Time) bool {
	cores, err := l.quota.get(t.r, now, (*Reader).readQuota)
	return err == nil && cores == 0 && !l.quota.missing
}

// From returns the path of the group's own file.
func (t *Throttling) From() string { return t.levels[0].stat.files[0].Path() }

// Close closes the files.
func (t *Throttling) Close() {
	for _, l := range t.levels {
		release(t.r.stats, []*level[cpuStat]{l.stat})
		release(t.r.quotas, []*level[float64]{l.quota})
	}
	t.levels = nil
}
