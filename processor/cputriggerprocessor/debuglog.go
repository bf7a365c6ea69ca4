// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// logWindows logs windows at debug level, and why gates did not open.
func (r *reporter) logWindows(statuses []units.Status, now time.Time) {
	for _, s := range statuses {
		for _, i := range s.Conditions {
			if i.Off {
				continue
			}
			r.log.Debug("window updated",
				zap.String("unit", s.Unit), zap.String("policy", i.Policy), zap.String("monitor", i.Monitor),
				zap.Float64("value", round(i.Value)), zap.Float64("threshold", i.Threshold), zap.String("window", i.Window),
				zap.Bool("filled", i.Enough), zap.Stringer("state", i.State))
		}
		if why, fields := whyShut(s.Conditions, now); why != "" {
			r.log.Debug("gate not opened", append(fields, zap.String("unit", s.Unit), zap.String("why", why))...)
		}
	}
}

// nearer reports whether condition a is nearer to opening a gate than b: its policy
// applies, it has enough readings, it is hotter.
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

// whyShut returns why the gate of a unit is shut, by the condition nearest to its
// threshold; empty if it is open.
func whyShut(conditions []trigger.ConditionStatus, now time.Time) (why string, fields []zap.Field) {
	var near *trigger.ConditionStatus
	for i := range conditions {
		s := &conditions[i]
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
		return "its share of the host's CPU is too small", append(fields, zap.String("guard", near.Guard))
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
	whyServiceUnknown = "its service is unknown before its first profile"
	whyTooYoung       = "younger than min_age"
)
