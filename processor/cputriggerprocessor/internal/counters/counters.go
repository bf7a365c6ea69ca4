// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package counters contains the metrics of cpu_trigger and the outcomes that they count.
package counters

import (
	"context"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/hotprofile/hotprofile/internal/httplisten"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
)

// SampleOutcome is the outcome of a sample.
type SampleOutcome uint8

// These are the outcomes of samples.
const (
	SamplePassed     SampleOutcome = iota // the next component accepted it, with a reason
	SampleRefused                         // the next component did not accept it
	SampleEvicted                         // the recorder had no room for it
	SampleGateShut                        // the gate of its unit was shut and did not open within pre_trigger
	SampleFiltered                        // the gate was open, but not for its profile type
	SampleUnmatched                       // it belongs to no unit, and was dropped or passed
	SampleOverBudget                      // a budget kept the gate shut or held back the profile
	SampleDryRun                          // only the gate of a dry run was open
	SampleShutdown                        // it arrived after the shutdown, or was in the recorder at the shutdown
	numSampleOutcomes
)

var sampleOutcomes = [numSampleOutcomes]string{"passed", "refused", "evicted", "gate_shut", "filtered", "unmatched", "over_budget", "dry_run", "shutdown"}

// Samples counts samples by SampleOutcome.
type Samples [numSampleOutcomes]int64

// ReadingOutcome is the outcome of a reading.
type ReadingOutcome uint8

// These are the outcomes of readings.
const (
	ReadingOK ReadingOutcome = iota
	ReadingFailed
	ReadingLate // more than two intervals after the previous reading; it is still used
	ReadingUnavailable
	numReadingOutcomes
)

var readingOutcomes = [numReadingOutcomes]string{"ok", "failed", "late", "unavailable"}

// Readings counts readings of one monitor by ReadingOutcome.
type Readings [numReadingOutcomes]int64

// ItemOutcome is the outcome of a server span, or of a data point that conditions use.
type ItemOutcome uint8

// These are the outcomes of items.
const (
	ItemIgnored   ItemOutcome = iota // not counted, because no condition uses it or another source is preferred
	ItemInvalid                      // its times, buckets or type are invalid
	ItemOK                           // it was counted for a condition
	ItemLate                         // its time is too far from the time of its arrival
	ItemOverLimit                    // there are too many resources or series
	ItemUnmatched                    // its resource matches no unit
	numItemOutcomes
)

var itemOutcomes = [numItemOutcomes]string{"", "invalid", "ok", "late", "over_limit", "unmatched"}

// Items counts server spans and data points by ItemOutcome.
type Items [numItemOutcomes]int64

// PolicyReadOutcome is the outcome of one read of policies_from.
type PolicyReadOutcome string

// These are the outcomes of reads.
const (
	PoliciesChanged   PolicyReadOutcome = "changed"
	PoliciesUnchanged PolicyReadOutcome = "unchanged"
	PoliciesRefused   PolicyReadOutcome = "refused" // the last document is not valid
	PoliciesFailed    PolicyReadOutcome = "failed"
)

// TriggerOutcome is the outcome of a trigger.
type TriggerOutcome string

// These are the outcomes of triggers.
const (
	TriggerOpened          TriggerOutcome = "opened"
	TriggerCoolingDown     TriggerOutcome = "cooling_down"
	TriggerDryRun          TriggerOutcome = "dry_run"
	TriggerNothingExported TriggerOutcome = "nothing_exported"
	TriggerOverBudget      TriggerOutcome = "over_budget"
)

// Counters contains the metrics. Attribute sets are created
// once, so that hot paths need not create them.
type Counters struct {
	*metadata.TelemetryBuilder
	samples [numSampleOutcomes]metric.MeasurementOption
	items   [numItemOutcomes]metric.MeasurementOption
}

// New returns counters.
func New(set component.TelemetrySettings) (*Counters, error) {
	builder, err := metadata.NewTelemetryBuilder(set)
	if err != nil {
		return nil, err
	}
	c := &Counters{TelemetryBuilder: builder}
	for i, o := range sampleOutcomes {
		c.samples[i] = with(attribute.String("outcome", o))
	}
	for i, o := range itemOutcomes {
		c.items[i] = with(attribute.String("outcome", o))
	}
	return c, nil
}

func with(attributes ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attributes...))
}

// AddLinked counts samples whose span is known, and samples whose span is not known.
func (c *Counters) AddLinked(joined, unknown int64) {
	for outcome, n := range map[string]int64{"joined": joined, "unknown": unknown} {
		if n > 0 {
			c.CPUTriggerLinkedSamples.Add(context.Background(), n, with(attribute.String("outcome", outcome)))
		}
	}
}

// Figures contains the values of the observed metrics about units.
type Figures struct {
	Units, Gates     int
	TooMany, Claimed int // cgroups that are not watched
	Forgotten        trigger.Forgotten
}

// Observe registers the observable metrics. Their values come from the three functions.
// count returns the figures about units. held returns the numbers of samples and bytes in
// the recorder. policies returns the number and the version of the policies.
func (c *Counters) Observe(count func() Figures, held func() (samples, size int64), policies func() (int, string)) error {
	for _, m := range []struct {
		register func(metric.Int64Callback) error
		observe  func(metric.Int64Observer)
	}{
		{c.RegisterCPUTriggerUnitsCallback, func(o metric.Int64Observer) { o.Observe(int64(count().Units)) }},
		{c.RegisterCPUTriggerUnitsRefusedCallback, func(o metric.Int64Observer) {
			f := count()
			o.Observe(int64(f.TooMany), with(attribute.String("reason", "too_many")))
			o.Observe(int64(f.Claimed), with(attribute.String("reason", "claimed")))
		}},
		{c.RegisterCPUTriggerForgottenCallback, func(o metric.Int64Observer) {
			f := count().Forgotten
			o.Observe(int64(f.Units), with(attribute.String("what", "unit")))
			o.Observe(int64(f.Services), with(attribute.String("what", "service")))
			o.Observe(int64(f.Openings), with(attribute.String("what", "opening")))
		}},
		{c.RegisterCPUTriggerGatesOpenCallback, func(o metric.Int64Observer) { o.Observe(int64(count().Gates)) }},
		{c.RegisterCPUTriggerPoliciesCallback, func(o metric.Int64Observer) {
			n, version := policies()
			o.Observe(int64(n), with(attribute.String("version", version)))
		}},
		{c.RegisterCPUTriggerRecorderSamplesCallback, func(o metric.Int64Observer) { samples, _ := held(); o.Observe(samples) }},
		{c.RegisterCPUTriggerRecorderSizeCallback, func(o metric.Int64Observer) { _, size := held(); o.Observe(size) }},
	} {
		if err := m.register(func(_ context.Context, o metric.Int64Observer) error {
			m.observe(o)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// ObserveManual registers the counts of requests and connections that the manual server has
// refused since its start.
func (c *Counters) ObserveManual(refused func() httplisten.Stats) error {
	return c.RegisterCPUTriggerManualRefusedCallback(func(_ context.Context, o metric.Int64Observer) error {
		refused().Observe(o)
		return nil
	})
}

// AddSamples counts samples.
func (c *Counters) AddSamples(ctx context.Context, n *Samples) {
	add(ctx, c.CPUTriggerSamples, n[:], c.samples[:])
}

// AddItems counts server spans and data points. It does not count ignored items.
func (c *Counters) AddItems(n *Items) {
	add(context.Background(), c.CPUTriggerItems, n[ItemIgnored+1:], c.items[ItemIgnored+1:])
}

// AddReadings counts readings of a monitor.
func (c *Counters) AddReadings(monitor string, n *Readings) {
	monitor, _, _ = strings.Cut(monitor, "(") // without parameters
	for o, n := range n {
		if n > 0 {
			c.CPUTriggerReadings.Add(context.Background(), n, with(attribute.String("monitor", monitor), attribute.String("outcome", readingOutcomes[o])))
		}
	}
}

// add adds the counts of all outcomes.
func add(ctx context.Context, counter metric.Int64Counter, counts []int64, options []metric.MeasurementOption) {
	for o, n := range counts {
		if n > 0 {
			counter.Add(ctx, n, options[o])
		}
	}
}

// AddTrigger counts a trigger of a policy.
func (c *Counters) AddTrigger(policy string, o TriggerOutcome, more ...attribute.KeyValue) {
	c.CPUTriggerTriggers.Add(context.Background(), 1, with(append(more, attribute.String("policy", policy), attribute.String("outcome", string(o)))...))
}

// AddAlert counts an alert, once for each unit that it names.
func (c *Counters) AddAlert(outcome string) {
	c.CPUTriggerAlerts.Add(context.Background(), 1, with(attribute.String("outcome", outcome)))
}

// AddPolicyRead counts a read of policies_from.
func (c *Counters) AddPolicyRead(o PolicyReadOutcome) {
	c.CPUTriggerPoliciesReads.Add(context.Background(), 1, with(attribute.String("outcome", string(o))))
}

// AddPeersLost counts data about connections that was not read or not attributed.
func (c *Counters) AddPeersLost(what string, n int) {
	c.CPUTriggerPeersLost.Add(context.Background(), int64(n), with(attribute.String("what", what)))
}
