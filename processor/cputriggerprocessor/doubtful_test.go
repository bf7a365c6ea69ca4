// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThresholdsThatAreProbablyMistakesAreWarnedOf(t *testing.T) {
	cpus := runtime.NumCPU()
	for condition, want := range map[string]string{
		"monitor: cpu_utilization, threshold: 0.8":                          "did you mean 80?",
		"monitor: cpu_bottleneck, threshold: 0.95":                          "did you mean 95?",
		fmt.Sprintf("monitor: cpu_usage, threshold: %d", 20*cpus):           fmt.Sprintf("this host has %d", cpus),
		"monitor: cpu_utilization, threshold: 1":                            "",
		"monitor: cpu_pressure, threshold: 0.5":                             "",
		fmt.Sprintf("monitor: cpu_usage, threshold: %g", float64(cpus)-0.5): "",
	} {
		r := newRig(t, "policies: [{name: mine, any_of: [{"+condition+"}]}]")
		r.p.warnDoubtful(r.p.cfg)
		said := r.log("a threshold is probably a mistake")
		if want == "" {
			require.Empty(t, said, condition)
			continue
		}
		require.Len(t, said, 1, condition)
		require.Contains(t, said[0].ContextMap()["why"], want)
		require.Equal(t, "mine", said[0].ContextMap()["policy"])
	}
}

func TestAThresholdMayBeWrittenAsPercent(t *testing.T) {
	for _, text := range []string{"80", "'80'", "80%", "' 80 % '"} {
		cfg, err := load(t, "policies: [{any_of: [{monitor: cpu_utilization, threshold: "+text+", release_below: 60%}]}]")
		if text == "' 80 % '" {
			require.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		require.InDelta(t, 80, *cfg.Policies[0].AnyOf[0].Threshold, 0)
		require.InDelta(t, 60, *cfg.Policies[0].AnyOf[0].ReleaseBelow, 0)
	}
}
