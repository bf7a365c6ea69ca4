// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// buildSender builds the command that imitates a .NET service.
func buildSender(t *testing.T) string {
	t.Helper()
	return hosttest.Compiled(t, "dotnetsender", "dotnetsender", func(out string) {
		build := exec.Command("go", "build", "-o", out, "../dotnetsender")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		text, err := build.CombinedOutput()
		require.NoError(t, err, "%s", text)
	})
}

// TestDotnetOfAHotCgroupPasses sends recorded buffers of .NET services
// over a Unix socket. One sender runs in a hot cgroup. The other sender
// runs in a cool cgroup and claims to be in the hot cgroup. Only profiles
// of the first sender may arrive at a second collector.
func TestDotnetOfAHotCgroupPasses(t *testing.T) {
	t.Parallel()
	hot, cool := newCgroup(t, "hot"), newCgroup(t, "cool")
	for _, g := range []*hosttest.Cgroup{hot, cool} {
		g.SetQuota(t, cores)
		g.RaiseWeight(t)
	}
	sender := buildSender(t)
	dir, err := os.MkdirTemp("", "hp")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "dotnet.sock")
	w, p := startWire(t), startPeer(t)
	metrics := freePort(t)
	c := pipeline{
		receiver: fmt.Sprintf(`
    export_interval: 1s
    dotnet: {transport: unix, endpoint: %q}`, socket),
		trigger:   onceAbove(t, threshold, 5*time.Second),
		exporters: []string{p.exporter(), w.exporter()},
	}.start(t, metrics)
	require.Len(t, c.lines(".NET profile server listening"), 1)
	require.Empty(t, c.lines("sampling started"), "dotnet alone samples no threads")

	const recorded = "../../testdata/dotnet/"
	args := func(resource string) []string {
		return []string{
			"-socket", socket, "-rate", "4", "-for", "5m", "-resource", resource, "-compression", "gzip",
			recorded + "web", recorded + "allocations", recorded + "selected", recorded + "names",
		}
	}
	startLoad(t, hot.Command(loadBinary), hotService)
	startLoad(t, hot.Command(sender, args("service.name="+hotService+",telemetry.sdk.language=dotnet")...), "")
	startLoad(t, cool.Command(sender, args(fmt.Sprintf("service.name=%s,process.linux.cgroup=%s,process.pid=1,host.name=else", coolService, hot.Path))...), "")

	ours := func(l logLine) bool { return l.str("unit") == hot.Path || l.str("unit") == cool.Path }
	opened := c.wait(startTimeout, "gate opened", ours)
	require.Equal(t, hot.Path, opened.str("unit"))
	require.Equal(t, hotService, opened.str("service"))
	c.wait(startTimeout, "gate closed", ours)
	checkAccounts(t, metrics)
	for _, sampler := range []string{"dotnet_threads", "dotnet_allocations", "dotnet_selected"} {
		require.Positive(t, scrape(t, metrics, "otelcol_cpu_profiler_samples", `sampler="`+sampler+`"`, `outcome="exported"`), sampler)
	}
	require.Positive(t, scrape(t, metrics, "otelcol_cpu_trigger_samples", `outcome="gate_shut"`))
	c.stop()
	p.stop()

	for i, batch := range w.received() {
		for _, v := range conformancetest.Check(batch, conformancetest.Options{Triggered: true, References: true}) {
			t.Errorf("request %d on the wire: %v", i, v)
		}
	}
	checkDotnet(t, hot.Path, readProfiles(t, p.grpcFile))
}

// checkDotnet checks the profiles that arrived at the second collector.
func checkDotnet(t *testing.T, unit string, batches []pprofile.Profiles) {
	t.Helper()
	types, events, linked := map[string]int{}, 0, 0
	var functions []string
	for _, f := range flatten(batches) {
		require.Equal(t, hotService, f.service())
		require.Equal(t, unit, f.str("hotprofile.unit"))
		require.Equal(t, "cpu", f.resource["hotprofile.trigger.policy"])
		require.Equal(t, "dotnet", f.resource["telemetry.sdk.language"])
		require.NotContains(t, f.resource, "process.linux.cgroup")
		_, unscaled := f.attributes["hotprofile.unscaled"]
		require.Equal(t, strings.HasPrefix(f.sampleType, "alloc_"), unscaled)
		require.WithinDuration(t, time.Now(), f.end, 2*time.Minute)
		types[f.sampleType] += f.events()
		events += f.events()
		for _, s := range f.samples {
			functions = append(functions, s.functions...)
		}
	}
	for _, b := range batches {
		linked += b.Dictionary().LinkTable().Len() - 1
	}
	t.Logf("%d events at the second collector: %v, %d spans", events, types, linked)
	for _, want := range []string{"wall", "alloc_objects", "alloc_space"} {
		require.Positive(t, types[want], want)
	}
	require.Equal(t, types["alloc_objects"], types["alloc_space"])
	require.Positive(t, linked)
	require.True(t, slices.ContainsFunc(functions, func(f string) bool { return strings.HasPrefix(f, "Microsoft.AspNetCore.") }))
}
