// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package sampler

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
)

func TestLimitsThatAreHitAreCounted(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	builder, err := metadata.NewTelemetryBuilder(tel.NewTelemetrySettings())
	require.NoError(t, err)
	var table processes.Stats
	var files symbolizer.Counters
	c := &Counters{builder}
	perf := &Perf{counters: c}
	var seen processes.Stats
	record := func() {
		c.table(context.Background(), &table, &seen)
		seen = table
		perf.recordSymbols(context.Background(), files)
	}
	record()
	table = processes.Stats{Evicted: 1, MappingsLeftOut: 2, StackResets: 3, ThreadNameResets: 4, StartsLeftOut: 5}
	files = symbolizer.Counters{Evictions: 6, Dropped: 7}
	record()
	table.Evicted = 11
	record()
	m, err := tel.GetMetric("otelcol_cpu_profiler.limits.hit")
	require.NoError(t, err)
	got := map[string]int64{}
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		limit, _ := p.Attributes.Value(attribute.Key("limit"))
		got[limit.AsString()] = p.Value
	}
	require.Equal(t, map[string]int64{
		"processes": 11, "mappings": 2, "stacks": 3, "thread_names": 4, "program_starts": 5, "files": 6, "file_requests": 7,
	}, got)
}
