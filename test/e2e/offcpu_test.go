// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestWaitsOfHotUnitsAreSampledWhileTheyAreHot runs two cgroups, each with a
// thread that waits all the time. Waits of a cgroup must be sampled only
// while the cgroup is hot, and samples must pass only while its gate is
// open. Waits of the cool cgroup must never be sampled.
func TestWaitsOfHotUnitsAreSampledWhileTheyAreHot(t *testing.T) {
	t.Parallel()
	if err := perfevent.Probe().Kernel; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	const (
		idle, busy = 5 * time.Second, 12 * time.Second
		duration   = 6 * time.Second
	)
	hot, cool := newCgroup(t, "hot"), newCgroup(t, "cool")
	for _, g := range []*hosttest.Cgroup{hot, cool} {
		g.SetQuota(t, cores)
		g.RaiseWeight(t)
	}
	w, metrics := startWire(t), freePort(t)
	c := pipeline{
		extensions: []string{"hot_units:"},
		receiver:   "{export_interval: 1s, off_cpu: {}}",
		evaluation: time.Second,
		trigger:    onceAbove(t, threshold, duration),
		exporters:  []string{w.exporter()},
	}.start(t, metrics)
	started := c.wait(startTimeout, "off-CPU sampling started", nil)
	require.Equal(t, "hot, as there is a hot_units extension", started.str("when"))
	attached := func() float64 { return scrape(t, metrics, "otelcol_cpu_profiler_targets", `sampler="off_cpu"`) }
	require.Zero(t, attached(), "nothing is hot")

	startLoad(t, cool.Command(loadBinary, "-duty", "0.05", "-waiting", "1"), coolService)
	startLoad(t, hot.Command(loadBinary, "-idle", idle.String(), "-busy", busy.String(), "-waiting", "1"), hotService)
	turnedHot := func(l logLine) bool { return strings.Contains(l.str("now_hot"), hot.Path) }
	time.Sleep(idle / 2)
	targets := attached()
	if !slices.ContainsFunc(c.lines("hot units changed"), turnedHot) { // otherwise the test was delayed
		require.Zero(t, targets, "nothing is hot though threads wait")
	}

	turned := c.wait(startTimeout, "hot units changed", turnedHot)
	with := func(targets string) func(logLine) bool {
		return func(l logLine) bool { return l.str("targets") == targets && at(t, l).After(at(t, turned)) }
	}
	followed := c.wait(startTimeout, "off-CPU targets", with("1"))
	took := at(t, followed).Sub(at(t, turned))
	t.Logf("attached %v after it was hot", took)
	c.wait(startTimeout, "gate opened", of(hot.Path))
	closed := c.wait(startTimeout, "gate closed", of(hot.Path))
	cooled := c.wait(startTimeout, "hot units changed", func(l logLine) bool {
		return strings.Contains(l.str("not_hot"), hot.Path) && !at(t, l).Before(at(t, closed))
	})
	left := c.wait(startTimeout, "off-CPU targets", func(l logLine) bool {
		return l.str("targets") == "0" && !at(t, l).Before(at(t, cooled))
	})
	t.Logf("left %v after it was not", at(t, left).Sub(at(t, cooled)))
	require.Eventually(t, func() bool { return attached() == 0 }, startTimeout, 50*time.Millisecond)
	checkAccounts(t, metrics)
	c.stop() // the exporters flush their queues first

	received := w.received()
	for i, p := range received {
		for _, v := range conformancetest.Check(p, conformancetest.Options{Triggered: true, References: true}) {
			t.Errorf("request %d on the wire: %v", i, v)
		}
	}
	in := map[string]float64{}
	var waited time.Duration
	var first, last time.Time
	for _, p := range flatten(received) {
		if p.sampleType != "off_cpu" && p.sampleType != "runqueue" {
			continue
		}
		require.Equal(t, hot.Path, p.str("hotprofile.unit"))
		require.Equal(t, hotService, p.service())
		require.NotEmpty(t, p.str("hotprofile.trigger.id"))
		var ours time.Duration
		for _, s := range p.samples {
			require.Positive(t, s.value)
			require.Equal(t, 1, s.events)
			for _, f := range s.functions {
				for _, name := range []string{"waitThreeParts", "waitOnePart"} {
					if strings.HasSuffix(f, name) {
						require.Equal(t, map[string]string{"off_cpu": "sleep", "runqueue": ""}[p.sampleType], s.wait)
						in[name] += float64(s.value)
						ours += time.Duration(s.value)
					}
				}
			}
		}
		if first.IsZero() || p.start.Before(first) {
			first = p.start
		}
		if p.end.After(last) {
			last = p.end
		}
		waited += ours
	}
	covered := last.Sub(first)
	share := 100 * in["waitThreeParts"] / (in["waitThreeParts"] + in["waitOnePart"])
	t.Logf("%v of %v waited, %.1f%% of that in waitThreeParts", waited, covered, share)
	require.Greater(t, covered, duration/2)
	// The thread only waits. However, it wakes up late if its program has used up the quota,
	// or if it has to wait for the scheduler of its runtime.
	require.InEpsilon(t, covered, waited, 0.2)
	require.Greater(t, share, 45.)
	require.Less(t, share, 80.)
}

// at returns the time at which a line was logged.
func at(t *testing.T, l logLine) time.Time {
	t.Helper()
	for _, layout := range []string{"2006-01-02T15:04:05.000Z0700", time.RFC3339Nano} {
		if when, err := time.Parse(layout, l.str("ts")); err == nil {
			return when
		}
	}
	t.Fatalf("no time in %v", l)
	return time.Time{}
}
