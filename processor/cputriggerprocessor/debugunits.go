// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/hotprofile/hotprofile/internal/trigger"
)

// nearest is how many units the debug log shows where none are named.
const nearest = 10

// debugUnits says whose readings the debug log shows. It may be asked from any
// goroutine.
type debugUnits struct {
	on      bool     // the debug log is
	globs   []string // empty: the nearest to a threshold
	current atomic.Pointer[map[string]bool]
}

func newDebugUnits(globs []string, log *zap.Logger) *debugUnits {
	return &debugUnits{on: log.Core().Enabled(zapcore.DebugLevel), globs: globs}
}

func (d *debugUnits) has(unit string) bool {
	if !d.on {
		return false
	}
	if len(d.globs) == 0 {
		current := d.current.Load()
		return current != nil && (*current)[unit]
	}
	for _, glob := range d.globs {
		if glob == unit || doublestar.MatchUnvalidated(glob, unit) {
			return true
		}
	}
	return false
}

// standing is how a unit stands with the items of the policies.
type standing struct {
	unit  string
	items []trigger.ConditionStatus
	ratio float64 // of the nearest item
}

// standings returns those of the units that the debug log shows, the nearest to
// a threshold first, and notes which they are.
func (us *units) standings(d *debugUnits, now time.Time) []standing {
	us.mu.Lock()
	var out []standing
	for _, u := range us.byName {
		if len(d.globs) > 0 && !d.has(u.name) {
			continue
		}
		s, ok := u.gate.Nearest(now)
		if !ok && len(d.globs) == 0 {
			continue
		}
		out = append(out, standing{unit: u.name, ratio: s.Ratio()})
	}
	slices.SortFunc(out, func(a, b standing) int {
		return cmp.Or(cmp.Compare(b.ratio, a.ratio), cmp.Compare(a.unit, b.unit))
	})
	if len(d.globs) == 0 {
		out = out[:min(len(out), nearest)]
	}
	current := make(map[string]bool, len(out))
	for i := range out {
		out[i].items = us.byName[out[i].unit].gate.Conditions(nil, now)
		current[out[i].unit] = true
	}
	us.mu.Unlock()
	d.current.Store(&current)
	return out
}

// showWindows writes the windows to the debug log, and why gates did not open.
func (r *reporter) showWindows(standings []standing, now time.Time) {
	for _, s := range standings {
		for _, i := range s.items {
			if i.Off {
				continue
			}
			r.log.Debug("window updated",
				zap.String("unit", s.unit), zap.String("policy", i.Policy), zap.String("monitor", i.Monitor),
				zap.Float64("value", round(i.Value)), zap.Float64("threshold", i.Threshold), zap.String("window", i.Window),
				zap.Bool("filled", i.Enough), zap.Stringer("state", i.State))
		}
		if why, fields := whyShut(s.items, now); why != "" {
			r.log.Debug("gate not opened", append(fields, zap.String("unit", s.unit), zap.String("why", why))...)
		}
	}
}

// nearer says whether an item is nearer to open a gate than another: of a policy
// that applies, with readings enough, hotter.
func nearer(a, b *trigger.ConditionStatus) bool {
	switch {
	case b == nil:
		return true
	case a.Off != b.Off:
		return b.Off
	case a.Enough != b.Enough:
		return a.Enough
	}
	return a.Ratio() > b.Ratio()
}

// whyShut says why the gate of a unit is shut, by the item nearest to its
// threshold; empty if it is open.
func whyShut(items []trigger.ConditionStatus, now time.Time) (why string, fields []zap.Field) {
	var near *trigger.ConditionStatus
	for i := range items {
		s := &items[i]
		if s.State == trigger.Profiling && !s.DryRun {
			return "", nil
		}
		if nearer(s, near) {
			near = s
		}
	}
	if near == nil {
		return "", nil
	}
	if near.Off {
		return "no policy applies to it", nil
	}
	fields = []zap.Field{
		zap.String("policy", near.Policy), zap.String("monitor", near.Monitor),
		zap.Float64("value", round(near.Value)), zap.Float64("threshold", near.Threshold), zap.String("window", near.Window),
	}
	left := func() []zap.Field {
		if near.NotBefore.After(now) {
			return append(fields, zap.Duration("for", near.NotBefore.Sub(now)))
		}
		return fields
	}
	switch {
	case !near.Enough:
		return "too few readings yet", fields
	case !near.Holds && near.Guard != "":
		return "it has too small a part in what is the same for all units", append(fields, zap.String("guard", near.Guard))
	case !near.Holds:
		return "below the threshold", append(fields, zap.Float64("short_by", round(near.Threshold-near.Value)))
	case near.State == trigger.CoolingDown:
		return "cooling down", left()
	case near.State == trigger.Profiling:
		return "its policy is a dry run", fields
	case near.Blocked == trigger.OverBudget:
		return "over budget", append(left(), zap.String("budget", near.Budget))
	case near.Blocked == trigger.ServiceCooling:
		return whyServiceCooling, left()
	case near.Blocked == trigger.ServiceUnknown:
		return whyServiceUnknown, fields
	case near.Blocked == trigger.TooYoung:
		return whyTooYoung, left()
	case near.NotBefore.After(now):
		return "nothing was exported last time", left()
	}
	return "the policy is to be evaluated again", fields
}

const (
	whyServiceCooling = "another unit of its service is open or cools down"
	whyServiceUnknown = "no profile of it has come yet to tell its service"
	whyTooYoung       = "younger than min_age"
)
