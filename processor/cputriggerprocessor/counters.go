// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
)

// sampleOutcome is what became of a sample.
type sampleOutcome uint8

const (
	samplePassed     sampleOutcome = iota // the next component accepted it, with a reason
	sampleRefused                         // the next component did not accept it
	sampleEvicted                         // the flight recorder had no room for it
	sampleGateShut                        // its unit's gate was shut when it was taken, and did not open within pre_trigger
	sampleFiltered                        // the gate was open, but not for its type
	sampleUnmatched                       // it is of no known unit; dropped, or accepted by the next component
	sampleOverBudget                      // a budget kept its unit's gate shut, or kept it in
	sampleDryRun                          // only a policy that lets nothing out would have let it out
	sampleShutdown                        // it came after the shutdown, or the recorder held it then
	numSampleOutcomes
)

// readingOutcome is what became of a reading.
type readingOutcome uint8

const (
	readingOK readingOutcome = iota
	readingFailed
	readingLate // more than two intervals after the one before; it counts all the same
	readingUnavailable
	numReadingOutcomes
)

// triggerOutcome is what became of a trigger.
type triggerOutcome string

const (
	triggerOpened          triggerOutcome = "opened"
	triggerCoolingDown     triggerOutcome = "cooling_down"
	triggerOverBudget      triggerOutcome = "over_budget"
	triggerDryRun          triggerOutcome = "dry_run"
	triggerNothingExported triggerOutcome = "nothing_exported"
)

// counters are the component's own metrics. Attribute sets are made once: the
// hot paths only add.
type counters struct {
	builder  *metadata.TelemetryBuilder
	samples  [numSampleOutcomes]metric.MeasurementOption
	readings [][numReadingOutcomes]metric.MeasurementOption
}

func newCounters(set component.TelemetrySettings, monitors []string) (*counters, error) {
	builder, err := metadata.NewTelemetryBuilder(set)
	if err != nil {
		return nil, err
	}
	c := &counters{builder: builder}
	for i, o := range [numSampleOutcomes]string{"passed", "refused", "evicted", "gate_shut", "filtered", "unmatched", "over_budget", "dry_run", "shutdown"} {
		c.samples[i] = metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", o)))
	}
	for _, m := range monitors {
		var options [numReadingOutcomes]metric.MeasurementOption
		for i, o := range [numReadingOutcomes]string{"ok", "failed", "late", "unavailable"} {
			options[i] = metric.WithAttributeSet(attribute.NewSet(attribute.String("monitor", m), attribute.String("outcome", o)))
		}
		c.readings = append(c.readings, options)
	}
	return c, nil
}

// observe has the gauges ask for the number of units and of open gates, and for
// what the flight recorder holds.
func (c *counters) observe(count func() (units, gates int), held func() (samples, size int64)) error {
	for _, gauge := range []struct {
		register func(metric.Int64Callback) error
		value    func() int64
	}{
		{c.builder.RegisterCPUTriggerUnitsCallback, func() int64 { units, _ := count(); return int64(units) }},
		{c.builder.RegisterCPUTriggerGatesOpenCallback, func() int64 { _, gates := count(); return int64(gates) }},
		{c.builder.RegisterCPUTriggerRecorderSamplesCallback, func() int64 { samples, _ := held(); return samples }},
		{c.builder.RegisterCPUTriggerRecorderSizeCallback, func() int64 { _, size := held(); return size }},
	} {
		if err := gauge.register(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(gauge.value())
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

func (c *counters) sample(ctx context.Context, n *[numSampleOutcomes]int64) {
	for o, n := range n {
		if n > 0 {
			c.builder.CPUTriggerSamples.Add(ctx, n, c.samples[o])
		}
	}
}

func (c *counters) reading(monitor int, o readingOutcome, n int64) {
	c.builder.CPUTriggerReadings.Add(context.Background(), n, c.readings[monitor][o])
}

func (c *counters) trigger(policy string, o triggerOutcome) {
	c.builder.CPUTriggerTriggers.Add(context.Background(), 1,
		metric.WithAttributes(attribute.String("policy", policy), attribute.String("outcome", string(o))))
}

// overBudget counts a trigger that a budget kept from opening a gate.
func (c *counters) overBudget(policy, budget string) {
	c.builder.CPUTriggerTriggers.Add(context.Background(), 1, metric.WithAttributes(attribute.String("policy", policy),
		attribute.String("outcome", string(triggerOverBudget)), attribute.String("budget", budget)))
}

func (c *counters) evaluation(took time.Duration) {
	c.builder.CPUTriggerEvaluationDuration.Record(context.Background(), took.Seconds())
}
