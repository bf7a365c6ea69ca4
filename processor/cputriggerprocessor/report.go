// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/reason"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/requests"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// reporter logs and counts transitions.
type reporter struct {
	log      *zap.Logger
	counters *counters.Counters
	events   *hotunitsextension.HotUnits // nil: events are not published
	requests *requests.Intake
	host     []attribute.KeyValue // host.name, which is the resource of events that do not concern a unit
	closes   []units.Transition   // closings whose requests are not published yet
}

// notOpened contains the reasons why a gate does not open, with their texts for the debug
// log and for the event. Reasons with coolingDown are counted as cooling_down.
var notOpened = map[trigger.Reason]struct {
	log, event  string
	coolingDown bool
}{
	trigger.RisingEdge:     {"cooling down", "cooldown", true},
	trigger.ServiceCooling: {"another unit of its service is open or cools down", "cooldown of its service", true},
	trigger.ServiceUnknown: {"its service is unknown before its first profile", "service unknown", false},
	trigger.TooYoung:       {"younger than min_age", "min_age", false},
}

func (r *reporter) report(ts []units.Transition) {
	for _, t := range ts {
		switch why, known := notOpened[t.Reason]; {
		case t.HeldBack:
			r.heldBack(t)
		case t.To == trigger.Profiling && t.From != trigger.Profiling:
			r.opened(t)
		case t.From == trigger.Profiling && t.To != trigger.Profiling:
			r.closed(t)
		case t.Reason == trigger.OverBudget:
			r.counters.AddTrigger(t.Policy, counters.TriggerOverBudget, attribute.String("budget", t.Budget))
			r.log.Info("gate not opened", append(reasonFields(t), zap.String("why", "over budget"), zap.String("budget", t.Budget))...)
			r.publishNotOpened(t, "budget")
		case known:
			if why.coolingDown {
				r.counters.AddTrigger(t.Policy, counters.TriggerCoolingDown)
			}
			r.log.Debug("gate not opened", append(reasonFields(t), zap.String("why", why.log))...)
			r.publishNotOpened(t, why.event)
		default:
			r.log.Debug("state changed", zap.String("unit", t.Unit.Name()), zap.String("policy", t.Policy),
				zap.Stringer("from", t.From), zap.Stringer("to", t.To), zap.String("why", string(t.Reason)))
		}
	}
}

// fieldsOf returns log fields with the unit, the service and the policy of a transition,
// followed by more fields.
func fieldsOf(t units.Transition, more ...zap.Field) []zap.Field {
	return append([]zap.Field{zap.String("unit", t.Unit.Name()), zap.String("service", t.Service), zap.String("policy", t.Policy)}, more...)
}

func reasonFields(t units.Transition) []zap.Field {
	fields := fieldsOf(t, zap.String("monitor", t.Cause.Monitor), zap.String("window", t.Cause.Window))
	fields = append(fields, workloadFields(t)...)
	if t.Cause.Value == 0 && t.Cause.Threshold == 0 { // opened by hand or by an alert
		return fields
	}
	return append(fields, zap.Float64("value", reason.Round(t.Cause.Value)), zap.Float64("threshold", t.Cause.Threshold))
}

// workloadFields returns log fields with the unit's names in Kubernetes, which are read
// from the resource of the unit's profiles. If no profile of the unit has arrived,
// workloadFields returns no fields.
func workloadFields(t units.Transition) (fields []zap.Field) {
	for _, a := range t.Resource {
		if key := string(a.Key); strings.HasPrefix(key, "k8s.") && strings.HasSuffix(key, ".name") {
			fields = append(fields, zap.String(key, a.Value.AsString()))
		}
	}
	return fields
}

// kindFields returns the log fields that mark a dry run and a baseline.
func kindFields(o *trigger.Opening) (fields []zap.Field) {
	if o.DryRun {
		fields = append(fields, zap.Bool("dry_run", true))
	}
	if o.Baseline {
		fields = append(fields, zap.String("phase", string(trigger.BaselinePhase)))
	}
	return fields
}

// countedAs returns the policy under which an opening is counted. Openings by alert are
// counted under manual. Otherwise the alert names of other systems could create any
// number of series.
func countedAs(t units.Transition) string {
	if t.Opening.Alert != "" {
		return trigger.Manual
	}
	return t.Policy
}

func (r *reporter) opened(t units.Transition) {
	what := counters.TriggerOpened
	if t.Opening.DryRun {
		what = counters.TriggerDryRun
	}
	r.counters.AddTrigger(countedAs(t), what)
	fields := reasonFields(t)
	if t.UserShare >= 0 {
		fields = append(fields, zap.Float64("user_share", reason.Round(t.UserShare)))
	}
	fields = append(fields, zap.String("trigger_id", t.Opening.ID), zap.Time("until", t.Until))
	fields = append(fields, kindFields(t.Opening)...)
	if trace := r.requests.Span(t.Unit.Name(), t.Cause.Key).Trace; !trace.IsEmpty() {
		fields = append(fields, zap.Stringer("trace_id", trace))
	}
	if len(t.Others) > 0 {
		fields = append(fields, zap.Strings("also_open", t.Others))
	}
	r.log.Info("gate opened", fields...)
	r.publishOpened(t)
}

func (r *reporter) closed(t units.Transition) {
	fields := fieldsOf(t, zap.String("trigger_id", t.Opening.ID), zap.String("why", string(t.Reason)), zap.Int("samples", t.Samples), zap.Int("bytes", t.Bytes))
	fields = append(fields, workloadFields(t)...)
	fields = append(fields, kindFields(t.Opening)...)
	var nothing string
	if t.NothingExported {
		r.counters.AddTrigger(countedAs(t), counters.TriggerNothingExported)
		nothing = r.whyNothing(t)
		fields = append(fields, zap.String("nothing_exported", nothing))
	}
	r.log.Info("gate closed", fields...)
	r.publishClosed(t, nothing)
	if r.events.Listening() {
		r.closes = append(r.closes, t)
	}
}

func (r *reporter) whyNothing(t units.Transition) string {
	switch {
	case t.Refused > 0:
		return fmt.Sprintf("the next component refused %d profiles: %s", t.Refused, t.WhyRefused)
	case t.OverBudget:
		return "over budget: " + budget.MaxBytesPerHour
	case len(t.Opening.Types) > 0:
		return "no profile of the unit arrived that is of the policy's profile_types"
	}
	return "no profile of the unit arrived"
}

// heldBack logs that a budget holds back profiles although their gate is open.
func (r *reporter) heldBack(t units.Transition) {
	r.log.Info("profiles held back", fieldsOf(t, zap.String("trigger_id", t.Opening.ID), zap.String("why", "over budget"), zap.String("budget", t.Budget))...)
}

// nearest is the number of units that the debug log shows.
const nearest = 10

// evaluate evaluates the policies and reports the transitions. It must be called by one
// goroutine only.
func (p *cpuTrigger) evaluate() {
	now := p.now()
	p.units.Evaluate(now)
	p.counters.CPUTriggerEvaluationDuration.Record(context.Background(), p.now().Sub(now).Seconds())
	p.flush()
	p.logForgotten(now)
	for _, u := range p.units.TakeUnused(now) {
		p.log.Warn("a policy matches no unit", zap.String("policy", u.Policy), zap.String("match", u.Match), zap.String("why", u.Why))
		p.reporter.publishUnmatched(u, now)
	}
	p.hot.Publish()
	if p.log.Core().Enabled(zapcore.DebugLevel) {
		p.reporter.logWindows(p.units.Statuses(nearest, now), now)
	}
}

// forgottenEpisode is the minimum time without a forgotten cooldown after which a
// forgotten cooldown is logged again.
const forgottenEpisode = 10 * time.Minute

// logForgotten logs once per episode that cooldowns of removed units were forgotten.
func (p *cpuTrigger) logForgotten(now time.Time) {
	f := p.units.Count().Forgotten
	if f.Units == p.forgotten.Units && f.Services == p.forgotten.Services {
		return
	}
	if p.forgottenAt.IsZero() || now.Sub(p.forgottenAt) > forgottenEpisode {
		p.log.Warn("cooldowns forgotten: too many units are gone",
			zap.Int("units", f.Units-p.forgotten.Units), zap.Int("services", f.Services-p.forgotten.Services))
	}
	p.forgotten, p.forgottenAt = f, now
}

// flush reports pending transitions. If cooldowns or budgets have changed, flush saves
// them immediately, because the process may be killed.
func (p *cpuTrigger) flush() {
	ts, began := p.units.TakePending()
	p.reporter.report(ts)
	p.reporter.publishRequests(p.now(), p.closed.Load())
	if p.save != nil && (began || slices.ContainsFunc(ts, lasts)) {
		p.save()
	}
}

// lasts reports whether a transition changed a cooldown or a budget.
func lasts(t units.Transition) bool {
	return t.Reason == trigger.LateExport || (t.From == trigger.Profiling) != (t.To == trigger.Profiling)
}

// logWindows logs the windows and the reasons why gates did not open, at debug level.
func (r *reporter) logWindows(statuses []units.Status, now time.Time) {
	for _, s := range statuses {
		for _, i := range s.Conditions {
			if i.Off {
				continue
			}
			r.log.Debug("window updated",
				zap.String("unit", s.Unit), zap.String("policy", i.Policy), zap.String("monitor", i.Monitor),
				zap.Float64("value", reason.Round(i.Value)), zap.Float64("threshold", i.Threshold), zap.String("window", i.Window),
				zap.Bool("filled", i.Enough), zap.Stringer("state", i.State))
		}
		if why, fields := whyShut(s.Conditions, now); why != "" {
			r.log.Debug("gate not opened", append(fields, zap.String("unit", s.Unit), zap.String("why", why))...)
		}
	}
}

// nearer reports whether condition a is nearer to opening a gate than condition b. Policies
// that apply to the unit come first, then conditions with enough readings, then conditions
// with a higher ratio to the threshold.
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

// whyShut returns the reason why the gate of a unit is shut. It considers the condition
// that is nearest to opening the gate. If the gate is open, why is empty.
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
		zap.Float64("value", reason.Round(near.Value)), zap.Float64("threshold", near.Threshold), zap.String("window", near.Window),
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
		return "below the threshold", append(fields, zap.Float64("short_by", reason.Round(near.Threshold-near.Value)))
	case near.State == trigger.CoolingDown:
		return "cooling down", left()
	case near.State == trigger.Profiling:
		return "its policy is a dry run", fields
	case near.Blocked == trigger.OverBudget:
		return "over budget", append(left(), zap.String("budget", near.Budget))
	case notOpened[near.Blocked].log != "":
		return notOpened[near.Blocked].log, left()
	case near.NotBefore.After(now):
		return "nothing was exported last time", left()
	}
	return "the policy is to be evaluated again", fields
}
