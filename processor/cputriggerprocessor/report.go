// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/trigger"
)

// reporter writes what happened to the log and counts it. Messages are constant,
// details are fields.
type reporter struct {
	log      *zap.Logger
	counters *counters
}

func (r *reporter) report(ts []transition) {
	for _, t := range ts {
		switch {
		case t.Reason == trigger.Fired:
			r.opened(t)
		case t.From == trigger.Profiling:
			r.closed(t)
		case t.Reason == trigger.RisingEdge:
			r.counters.trigger(t.Policy, triggerCoolingDown)
			r.log.Debug("gate not opened", append(reasonFields(t), zap.String("why", "cooling down"))...)
		default:
			r.log.Debug("state changed", zap.String("unit", t.Unit.Name()), zap.String("policy", t.Policy),
				zap.Stringer("from", t.From), zap.Stringer("to", t.To), zap.String("why", string(t.Reason)))
		}
	}
}

func reasonFields(t transition) []zap.Field {
	return []zap.Field{
		zap.String("unit", t.Unit.Name()),
		zap.String("service", t.service),
		zap.String("policy", t.Policy),
		zap.String("monitor", t.Cause.Monitor),
		zap.Float64("value", round(t.Cause.Value)),
		zap.Float64("threshold", t.Cause.Threshold),
		zap.String("window", t.Cause.Window),
	}
}

func (r *reporter) opened(t transition) {
	r.counters.trigger(t.Policy, triggerOpened)
	fields := reasonFields(t)
	if t.userShare >= 0 {
		fields = append(fields, zap.Float64("user_share", round(t.userShare)))
	}
	r.log.Info("gate opened", append(fields, zap.String("trigger_id", t.Opening.ID), zap.Time("until", t.Opening.Until))...)
}

func (r *reporter) closed(t transition) {
	fields := []zap.Field{
		zap.String("unit", t.Unit.Name()),
		zap.String("service", t.service),
		zap.String("policy", t.Policy),
		zap.String("trigger_id", t.Opening.ID),
		zap.String("why", string(t.Reason)),
		zap.Int("samples", t.samples),
		zap.Int("bytes", t.bytes),
	}
	if t.NothingExported() {
		r.counters.trigger(t.Policy, triggerNothingExported)
		why := "no profile of the unit arrived"
		if t.refused > 0 {
			why = fmt.Sprintf("the next component refused %d profiles: %s", t.refused, t.whyRefused)
		}
		fields = append(fields, zap.String("nothing_exported", why))
	}
	r.log.Info("gate closed", fields...)
}

// round keeps a number readable: three digits after the point.
func round(f float64) float64 { return math.Round(f*1000) / 1000 }

// evaluator has the decision core decide, on a goroutine of its own, and reports
// what came of it.
type evaluator struct {
	units    *units
	debug    *debugUnits
	reporter *reporter
	now      func() time.Time
}

func (e *evaluator) evaluate() {
	now := e.now()
	e.units.Evaluate(now)
	e.reporter.counters.evaluation(e.now().Sub(now))
	e.flush()
	if e.debug.on {
		e.reporter.showWindows(e.units.standings(e.debug, now), now)
	}
}

// flush reports what is pending.
func (e *evaluator) flush() { e.reporter.report(e.units.takePending()) }
