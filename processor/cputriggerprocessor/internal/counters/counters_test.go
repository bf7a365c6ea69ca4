// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadatatest"
)

func newCounters(t *testing.T) (*Counters, *componenttest.Telemetry) {
	t.Helper()
	telemetry := componenttest.NewTelemetry()
	t.Cleanup(func() { require.NoError(t, telemetry.Shutdown(context.Background())) })
	c, err := New(telemetry.NewTelemetrySettings())
	require.NoError(t, err)
	return c, telemetry
}

// point is the value of a counter for the attributes that keysAndValues lists.
func point(n int64, keysAndValues ...string) metricdata.DataPoint[int64] {
	var attributes []attribute.KeyValue
	for i := 0; i < len(keysAndValues); i += 2 {
		attributes = append(attributes, attribute.String(keysAndValues[i], keysAndValues[i+1]))
	}
	return metricdata.DataPoint[int64]{Attributes: attribute.NewSet(attributes...), Value: n}
}

func TestSamplesAreCountedByOutcome(t *testing.T) {
	c, telemetry := newCounters(t)
	c.AddSamples(t.Context(), &Samples{
		SamplePassed: 1, SampleRefused: 2, SampleEvicted: 3, SampleGateShut: 4, SampleFiltered: 5,
		SampleUnmatched: 6, SampleOverBudget: 7, SampleDryRun: 8,
	})
	metadatatest.AssertEqualCPUTriggerSamples(t, telemetry, []metricdata.DataPoint[int64]{
		point(1, "outcome", "passed"), point(2, "outcome", "refused"), point(3, "outcome", "evicted"),
		point(4, "outcome", "gate_shut"), point(5, "outcome", "filtered"), point(6, "outcome", "unmatched"),
		point(7, "outcome", "over_budget"), point(8, "outcome", "dry_run"), // there is no point for shutdown
	}, metricdatatest.IgnoreTimestamp())
}

func TestIgnoredItemsAreNotCounted(t *testing.T) {
	c, telemetry := newCounters(t)
	c.AddItems(&Items{ItemIgnored: 9, ItemInvalid: 1, ItemOK: 2, ItemLate: 3, ItemOverLimit: 4, ItemUnmatched: 5})
	metadatatest.AssertEqualCPUTriggerItems(t, telemetry, []metricdata.DataPoint[int64]{
		point(1, "outcome", "invalid"), point(2, "outcome", "ok"), point(3, "outcome", "late"),
		point(4, "outcome", "over_limit"), point(5, "outcome", "unmatched"),
	}, metricdatatest.IgnoreTimestamp())
}

// TestReadingsAreCountedByMonitor checks that two monitors that differ only in their
// parameters share one series.
func TestReadingsAreCountedByMonitor(t *testing.T) {
	c, telemetry := newCounters(t)
	c.AddReadings("memory_events(max)", &Readings{ReadingOK: 1, ReadingLate: 2})
	c.AddReadings("memory_events(oom)", &Readings{ReadingOK: 4})
	c.AddReadings("cpu_usage", &Readings{ReadingFailed: 8, ReadingUnavailable: 16})
	metadatatest.AssertEqualCPUTriggerReadings(t, telemetry, []metricdata.DataPoint[int64]{
		point(5, "monitor", "memory_events", "outcome", "ok"), point(2, "monitor", "memory_events", "outcome", "late"),
		point(8, "monitor", "cpu_usage", "outcome", "failed"), point(16, "monitor", "cpu_usage", "outcome", "unavailable"),
	}, metricdatatest.IgnoreTimestamp())
}
