// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// busyContainer starts a busy program in a cgroup whose name contains a container's id.
// If user is not 0, the cgroup is below a cgroup that is delegated to this user.
func busyContainer(t *testing.T, id string, user int) *hosttest.Cgroup {
	t.Helper()
	c := hosttest.NewContainer(t, id, user)
	c.SetQuota(t, 0.2)
	spin(t, c)
	return c
}

// asStamped returns a batch like the batch that the receiver
// sends for a process of a container.
func asStamped(t *testing.T, id string, c *hosttest.Cgroup, service string) pprofile.Profiles {
	t.Helper()
	host, err := os.Hostname()
	require.NoError(t, err)
	return batch(t, time.Now(), part{attributes: map[string]any{
		"container.id": id, "process.linux.cgroup": c.Path, "host.name": host, "service.name": service,
		"process.pid": 1 << 21, "process.executable.name": "sh",
	}})
}

// TestACgroupDoesNotBecomeAContainerByItsName checks that a cgroup with a container's id
// in its name does not replace the container. Every user who can create a cgroup can
// choose this name.
func TestACgroupDoesNotBecomeAContainerByItsName(t *testing.T) {
	id := strings.Repeat("c1a1", 16)
	forged := busyContainer(t, id, 1000) // the real container was stopped, and its id is known
	r := start(t, `
unmatched: pass
min_age: 0s
collection_interval: 100ms
evaluation_interval: 100ms
policies:
  - {name: cpu, match: {container.id: "`+id+`"}, any_of: [{monitor: cpu_usage, threshold: 0.02, average_over: 1s}], duration: 1h, cooldown: 1h}
`)
	r.wait("gate opened", id)
	require.NoError(t, r.p.ConsumeProfiles(t.Context(), asStamped(t, id, forged, "evil")))
	require.Equal(t, 1, r.sink.ProfileCount(), "it is a container of its own")

	container := busyContainer(t, id, 0)
	said := r.wait("cgroup refused: its name has the id of a container that runs in another cgroup", id)
	require.Equal(t, forged.Path, said["cgroup"])
	require.Equal(t, container.Path, said["container"])
	require.Equal(t, "unit gone", r.wait("gate closed", id)["why"])
	ours := func(message string) int {
		return r.logs.FilterMessageSnippet(message).FilterField(zap.String("unit", id)).Len()
	}
	require.Eventually(t, func() bool { return ours("gate opened") == 2 }, eventually, 10*time.Millisecond,
		"what the other one did leaves no cooldown")
	u, ok := r.p.units.Lookup(id)
	require.True(t, ok)
	require.Equal(t, container.Path, u.Path)

	r.sink.Reset()
	require.NoError(t, r.p.ConsumeProfiles(t.Context(), asStamped(t, id, forged, "evil")))
	require.NoError(t, r.p.ConsumeProfiles(t.Context(), asStamped(t, id, container, "payments")))
	sent := r.sink.AllProfiles()
	require.Len(t, sent, 2)
	attributes := func(n int) map[string]any { return sent[n].ResourceProfiles().At(0).Resource().Attributes().AsRaw() }
	require.NotContains(t, attributes(0), "container.id", "it passes as unmatched, with no name that is another's")
	require.NotContains(t, attributes(0), "hotprofile.trigger.policy")
	require.Equal(t, id, attributes(1)["container.id"])
	require.Equal(t, "cpu", attributes(1)["hotprofile.trigger.policy"])
	require.Equal(t, string(identify.OtherCgroup), r.wait("profiles match no unit", "")["why"])
	require.Positive(t, r.p.units.Count().Claimed)
	require.Equal(t, 1, ours("cgroup refused"), "logged once")

	// This sender knows only the pid, like the eBPF profiler.
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	for c, want := range map[*hosttest.Cgroup]identify.Unmatched{forged: identify.OtherCgroup, container: ""} {
		g, ok := tree.GroupAt(c.Path)
		require.True(t, ok)
		pids, err := tree.Processes(g)
		require.NoError(t, err)
		for pid := range pids {
			_, why := identify.Match(r.p.router.Host, identify.ScopeCgroup, identify.Claim{ContainerID: id, PID: pid, ExecutableName: "sh"}, time.Now())
			if p, ok := r.p.router.Host.Process(pid); ok && p.Comm == "sh" {
				require.Equal(t, want, why)
			}
			_, why = identify.Match(r.p.router.Host, identify.ScopeCgroup, identify.Claim{PID: pid, ExecutableName: "sh"}, time.Now())
			require.Equal(t, want, why)
		}
	}
	_, why := identify.ByName(r.p.router.Host, identify.ScopeCgroup, forged.Path)
	require.NotEmpty(t, why)
	found, why := identify.ByName(r.p.router.Host, identify.ScopeCgroup, container.Path)
	require.Empty(t, why)
	require.Equal(t, id, found.Name)

	// A restart of the collector has the same result.
	again := start(t, `{policies: [{name: cpu, any_of: [{monitor: cpu_usage, threshold: 100, average_over: 1s}]}]}`)
	again.wait("cgroup mode", "")
	u, ok = again.p.units.Lookup(id)
	require.True(t, ok)
	require.Equal(t, container.Path, u.Path)
}
