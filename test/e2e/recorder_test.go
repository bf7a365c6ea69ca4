// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// TestTheRecorderHoldsWhatLedToTheTrigger runs a program that calls a special function
// just before the program turns hot. The exported profiles must contain this function.
func TestTheRecorderHoldsWhatLedToTheTrigger(t *testing.T) {
	t.Parallel()
	hot := newCgroup(t, "hot")
	hot.SetQuota(t, cores/2)
	hot.RaiseWeight(t)
	w := startWire(t)
	dir, metrics := filepath.Join(t.TempDir(), "profiles"), freePort(t)
	c := pipeline{
		receiver: fmt.Sprintf("{frequency: %d, max_overhead: 0, export_interval: 1s}", frequency),
		trigger: fmt.Sprintf(`
    policies:
      - name: cpu
        match: {cgroup: %q}
        any_of: [{monitor: cpu_utilization, threshold: 60, average_over: 3s}]
        duration: 4s`, ofThisTest(t)),
		exporters: []string{
			fmt.Sprintf(`otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}, sending_queue: {enabled: false}}`, w.port),
			fmt.Sprintf(`pprof: {directory: %q, idle_timeout: 3s}`, dir),
		},
	}.start(t, metrics)
	startLoad(t, hot.Command(loadBinary, "-warm", "7s", "-warm-duty", "0.05", "-busy", "14s"), hotService)
	ofUnit := func(l logLine) bool { return l.str("unit") == hot.Path }
	c.wait(startTimeout, "gate opened", ofUnit)
	c.wait(startTimeout, "gate closed", ofUnit)
	written := c.wait(startTimeout, "profile written", ofUnit)
	checkAccounts(t, metrics)
	c.stop()

	f, err := profileOf(written.str("file"))
	require.NoError(t, err)
	before := 0
	for _, s := range f.Sample {
		if slices.ContainsFunc(s.Location[0].Line, func(l pprof.Line) bool { return l.Function.Name == "main.burnBefore" }) {
			before += int(s.Value[0])
		}
	}
	require.Positive(t, before, "the file has nothing of what was done before the program turned hot")

	phases, last := map[string]int{}, time.Time{}
	for _, p := range flatten(w.received()) {
		if p.str("hotprofile.unit") != hot.Path {
			continue
		}
		phases[p.str("hotprofile.trigger.phase")] += p.events()
		// The profiles of one time window may begin some nanoseconds apart.
		require.False(t, p.start.Before(last.Add(-time.Microsecond)), "profiles came out of order")
		last = p.start
	}
	t.Logf("%d samples of the time before it turned hot; by phase: %v", before, phases)
	require.Positive(t, phases["before"])
	require.Positive(t, phases["after"])
}

func profileOf(file string) (*pprof.Profile, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return pprof.Parse(f)
}
