// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// TestReceiverLowersTheFrequencyAndThePeriodFollows samples a program that is always busy.
// Reading its samples costs more than the limit allows.
func TestReceiverLowersTheFrequencyAndThePeriodFollows(t *testing.T) {
	cmd := run(t, exec.Command("sh", "-c", "while :; do :; done"))
	r := start(t, func(c *Config) {
		c.Targets = []TargetConfig{{PID: cmd.Process.Pid}}
		c.Frequency, c.MaxOverhead = 997, 0.01
	})
	const said = "sampling frequency lowered: sampling costs more than max_overhead"
	require.Eventually(t, func() bool { return r.logs.FilterMessage(said).Len() > 0 }, 2*patience, 10*time.Millisecond)
	began := r.logs.FilterMessage("sampling started").All()[0].ContextMap()
	require.EqualValues(t, 997, began["frequency"])
	require.InDelta(t, 0.01, began["max_overhead_percent"], 1e-9)

	full := int64(time.Second / 997)
	r.until("samples of a longer period", func([]row) bool {
		periods := make(map[int64]bool)
		for _, ps := range r.sink.AllProfiles() {
			for _, rp := range ps.ResourceProfiles().All() {
				for _, sp := range rp.ScopeProfiles().All() {
					for _, p := range sp.Profiles().All() {
						periods[p.Period()] = true
					}
				}
			}
		}
		return periods[full] && periods[2*full]
	})
	r.stop()
	r.conforms()
	changes, err := r.telemetry.GetMetric("otelcol_cpu_profiler.frequency.changes")
	require.NoError(t, err)
	lowered := int64(0)
	for _, p := range changes.Data.(metricdata.Sum[int64]).DataPoints {
		if d, _ := p.Attributes.Value("direction"); d.AsString() == "lowered" {
			lowered = p.Value
		}
	}
	require.EqualValues(t, r.logs.FilterMessage(said).Len(), lowered)
	by := make(map[string]float64)
	spent, err := r.telemetry.GetMetric("otelcol_cpu_profiler.cpu.time")
	require.NoError(t, err)
	for _, p := range spent.Data.(metricdata.Sum[float64]).DataPoints {
		require.Positive(t, p.Value)
		work, _ := p.Attributes.Value("work")
		by[work.AsString()] = p.Value
	}
	require.Len(t, by, 3, "samples, names and files")
}
