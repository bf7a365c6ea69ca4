// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/collect"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// quick returns a configuration whose gate opens within seconds and stays
// open for duration.
func quick(duration time.Duration) string {
	return fmt.Sprintf(`
pre_trigger: 0s
min_age: 0s
collection_interval: 200ms
evaluation_interval: 200ms
policies:
  - {name: cpu, duration: %v, cooldown: 1h, any_of: [{monitor: cpu_utilization, threshold: 80, average_over: 2s}]}
`, duration)
}

// eventually is the time within which a condition must become
// true, even on a busy machine.
const eventually = time.Minute

// running is a processor on this machine, with all its goroutines.
type running struct {
	t    *testing.T
	p    *cpuTrigger
	sink *consumertest.ProfilesSink
	logs *observer.ObservedLogs
}

func start(t *testing.T, yaml string) *running {
	t.Helper()
	cfg, err := load(t, yaml)
	require.NoError(t, err)
	core, logs := observer.New(zapcore.InfoLevel)
	telemetry := componenttest.NewTelemetry()
	set := processor.Settings{ID: processortest.NewNopSettings(metadata.Type).ID, TelemetrySettings: telemetry.NewTelemetrySettings()}
	set.Logger = zap.New(core)
	r := &running{t: t, sink: &consumertest.ProfilesSink{}, logs: logs}
	r.p, err = newProcessor(set, cfg, r.sink)
	require.NoError(t, err)
	require.NoError(t, r.p.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() {
		require.NoError(t, r.p.Shutdown(context.Background()))
		require.NoError(t, telemetry.Shutdown(context.Background()))
	})
	return r
}

// wait waits for a log message about a unit.
func (r *running) wait(message, unit string) map[string]any {
	r.t.Helper()
	deadline := time.Now().Add(eventually)
	for time.Now().Before(deadline) {
		if found := r.said(message, unit); found != nil {
			return found
		}
		time.Sleep(20 * time.Millisecond)
	}
	r.t.Fatalf("no %q about %s within %v; logged: %v", message, unit, eventually, r.logs.All())
	return nil
}

func (r *running) said(message, unit string) map[string]any {
	for _, e := range r.logs.FilterMessage(message).All() {
		if m := e.ContextMap(); unit == "" || m["unit"] == unit {
			return m
		}
	}
	return nil
}

// send sends a batch with a cgroup's profiles of the last five seconds. The attributes
// are the same as in profiles of the receiver.
func (r *running) send(path string) int {
	r.t.Helper()
	host, err := os.Hostname()
	require.NoError(r.t, err)
	before := r.sink.ProfileCount()
	require.NoError(r.t, r.p.ConsumeProfiles(r.t.Context(), batch(r.t, time.Now(), part{attributes: map[string]any{
		"process.linux.cgroup": path, "host.name": host, "process.executable.name": "sh",
	}})))
	return r.sink.ProfileCount() - before
}

// spin starts a program in the cgroup that keeps one CPU busy, within the cgroup's
// quota. It raises the cgroup's weight, so that other programs on this machine do
// not slow it down.
func spin(t *testing.T, c *hosttest.Cgroup) {
	t.Helper()
	c.RaiseWeight(t)
	begin(t, c.Command("/bin/sh", "-c", "while :; do :; done"))
	tree, err := cgroup.Open("/")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		u, ok := tree.GroupAt(c.Path)
		pids, _ := tree.Processes(u)
		return ok && len(pids) > 0
	}, eventually, time.Millisecond, "it is to be in its cgroup")
}

func begin(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

func TestHotCgroupOpensAndItsIdleTwinDoesNot(t *testing.T) {
	hot, idle := hosttest.NewCgroup(t, "hotprofile-hot"), hosttest.NewCgroup(t, "hotprofile-idle")
	hot.SetQuota(t, 0.3)
	idle.SetQuota(t, 0.3)
	spin(t, hot)
	begin(t, idle.Command("/bin/sleep", "600"))
	const duration = 5 * time.Second
	r := start(t, quick(duration))
	early := r.send(hot.Path)
	sent := time.Now()

	opened := r.wait("gate opened", hot.Path)
	fired := opened["until"].(time.Time).Add(-duration)
	require.True(t, early == 0 || fired.Before(sent), "no window was full yet")
	require.InDelta(t, 100, opened["value"], 20)
	require.Contains(t, opened, "user_share")
	require.Greater(t, opened["user_share"], 0.3)
	mode := r.wait("cgroup mode", "")
	require.Contains(t, []any{"v1", "hybrid", "v2"}, mode["mode"])
	require.Contains(t, mode["tree"], "/sys/fs/cgroup")
	require.Positive(t, mode["units"])

	require.Equal(t, 1, r.send(hot.Path))
	require.Zero(t, r.send(idle.Path))
	got := allProfiles(r.sink.AllProfiles()[0])
	require.Equal(t, hot.Path, got[0].attributes["hotprofile.unit"])
	closed := r.wait("gate closed", hot.Path)
	require.Equal(t, "duration", closed["why"])
	require.EqualValues(t, 6*(early+1), closed["samples"])
	require.Nil(t, r.said("gate opened", idle.Path))
}

func TestCgroupRemovedWhileItsGateIsOpen(t *testing.T) {
	c := hosttest.NewCgroup(t, "hotprofile-removed")
	c.SetQuota(t, 0.2)
	spin(t, c)
	r := start(t, quick(time.Hour))
	r.wait("gate opened", c.Path)
	require.Equal(t, 1, r.send(c.Path))
	c.Remove(t)
	require.Equal(t, "unit gone", r.wait("gate closed", c.Path)["why"])
	require.Equal(t, 1, r.send(c.Path), "what was taken before it was removed still passes")
}

func TestQuotaChangedAndRemovedWhileRunning(t *testing.T) {
	c := hosttest.NewCgroup(t, "hotprofile-quota")
	c.SetQuota(t, 0.2)
	spin(t, c)
	// One spinning thread uses up a limit of 0.2 cores, but uses at most half of a limit of
	// two cores.
	r := start(t, `
min_age: 0s
collection_interval: 200ms
evaluation_interval: 200ms
policies:
  - {name: cpu, duration: 1s, cooldown: 0s, any_of: [{monitor: cpu_utilization, threshold: 80, average_over: 1s}]}
`)
	r.wait("gate opened", c.Path)
	c.SetQuota(t, 0) // the host's CPUs are the limit now
	if online, err := os.ReadFile("/sys/devices/system/cpu/online"); err == nil && string(online) == "0\n" {
		t.Skip("with one CPU, one thread is all of it")
	}
	level := func() float64 {
		s, _ := r.conditionStatus(c.Path)
		return s.Value
	}
	require.Eventually(t, func() bool { v := level(); return v > 0 && v < 70 }, eventually, 50*time.Millisecond, "the limit was removed")
	c.SetQuota(t, 0.1)
	require.Eventually(t, func() bool { return level() > 80 }, eventually, 50*time.Millisecond, "the limit was set again")
}

func TestCgroupRestartedUnderTheSameName(t *testing.T) {
	c := hosttest.NewCgroup(t, "hotprofile-restarted")
	c.SetQuota(t, 0.2)
	spin(t, c)
	r := start(t, `
min_age: 0s
collection_interval: 200ms
evaluation_interval: 200ms
policies:
  - {name: cpu, duration: 3s, cooldown: 1h, any_of: [{monitor: cpu_usage, threshold: 0.05, average_over: 1s}]}
`)
	r.wait("gate opened", c.Path)
	require.Equal(t, 1, r.send(c.Path))
	c.Remove(t)
	r.wait("gate closed", c.Path)

	again := hosttest.NewCgroupCalled(t, strings.TrimPrefix(c.Path, "/"))
	again.SetQuota(t, 0.2)
	spin(t, again)
	r.send(c.Path) // a host with very many units is scanned rarely
	require.Eventually(t, func() bool {
		s, ok := r.conditionStatus(c.Path)
		return ok && s.Holds
	}, eventually, 50*time.Millisecond, "the new cgroup is a unit again, with readings of its own")
	s, _ := r.conditionStatus(c.Path)
	require.Equal(t, trigger.CoolingDown, s.State, "its cooldown outlives the restart")
}

// TestARepetitionOpensTheGateOfAServiceThatRestarted repeats an alert after a
// service has restarted with a cgroup of the same name. The repetition must open the
// gate of the service.
func TestARepetitionOpensTheGateOfAServiceThatRestarted(t *testing.T) {
	c := hosttest.NewCgroup(t, "hotprofile-alert")
	begin(t, c.Command("/bin/sleep", "600"))
	r := start(t, `
collection_interval: 200ms
evaluation_interval: 200ms
manual: {endpoint: 'localhost:0', alerts: {duration: 1h, labels: {id: cgroup}}}
policies: [{name: cpu, match: {cgroup: /no/such}, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 1s}]}]
`)
	firing := alert("firing", "f00d", time.Now(), "alertname=Slow", "id="+c.Path)
	post := func() any { return postAlerts(t, r.p.manual, firing)[0]["outcome"] }
	require.Eventually(t, func() bool { return post() == "opened" }, eventually, 50*time.Millisecond)
	require.Equal(t, "already_open", post())
	c.Remove(t)
	require.Equal(t, "unit gone", r.wait("gate closed", c.Path)["why"])

	again := hosttest.NewCgroupCalled(t, strings.TrimPrefix(c.Path, "/"))
	begin(t, again.Command("/bin/sleep", "600"))
	var got any
	require.Eventually(t, func() bool { got = post(); return got != "unknown_unit" }, eventually, 50*time.Millisecond)
	require.Equal(t, "opened", got)
	require.Equal(t, "already_open", post())
}

// conditionStatus returns the status of one condition of a unit. It selects the condition
// whose value has the highest ratio to its threshold, and ignores conditions without
// enough readings.
func (r *running) conditionStatus(unit string) (s trigger.ConditionStatus, ok bool) {
	for _, of := range r.p.units.Statuses(units.Max, time.Now()) {
		for _, c := range of.Conditions {
			if of.Unit == unit && c.Enough && (!ok || c.Ratio() > s.Ratio()) {
				s, ok = c, true
			}
		}
	}
	return s, ok
}

func TestProcessScope(t *testing.T) {
	r := start(t, `
scope: process
pre_trigger: 0s
min_age: 0s
collection_interval: 200ms
evaluation_interval: 200ms
policies:
  - {name: cpu, duration: 20s, any_of: [{monitor: cpu_usage, threshold: 0.1, average_over: 1s}]}
`)
	cmd := exec.Command("/bin/sh", "-c", "while :; do :; done")
	begin(t, cmd)
	p, ok := r.p.router.Host.Process(cmd.Process.Pid)
	require.True(t, ok)
	send := func() int {
		before := r.sink.ProfileCount()
		require.NoError(t, r.p.ConsumeProfiles(t.Context(), batch(t, time.Now(), part{attributes: map[string]any{
			"process.pid": cmd.Process.Pid, "process.creation.time": p.Started.Format(time.RFC3339Nano),
		}})))
		return r.sink.ProfileCount() - before
	}
	// The process is watched after its first profile. On a busy machine, a new process
	// may appear to have started slightly later.
	require.Eventually(t, func() bool {
		require.Zero(t, send())
		_, known := r.p.units.Lookup(p.Name)
		return known
	}, 30*time.Second, 10*time.Millisecond)
	r.wait("gate opened", p.Name)
	require.Equal(t, 1, send())
	require.Equal(t, p.Name, allProfiles(r.sink.AllProfiles()[0])[0].attributes["hotprofile.unit"])
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Equal(t, "unit gone", r.wait("gate closed", p.Name)["why"])
	require.Equal(t, 1, send(), "its last profile arrives when it has ended")
}

// TestManySendersAtOnce runs senders, readings, evaluations and scans at the same time,
// for the race detector.
func TestManySendersAtOnce(t *testing.T) {
	c := hosttest.NewCgroup(t, "hotprofile-senders")
	c.SetQuota(t, 0.2)
	spin(t, c)
	r := start(t, `
min_age: 0s
collection_interval: 100ms
evaluation_interval: 100ms
policies:
  - {name: cpu, duration: 1s, cooldown: 0s, any_of: [{monitor: cpu_usage, threshold: 0.01, average_over: 1s}]}
`)
	r.wait("gate opened", c.Path)
	host, err := os.Hostname()
	require.NoError(t, err)
	var senders sync.WaitGroup
	for range 4 {
		senders.Go(func() {
			for range 50 {
				pd := batch(t, time.Now(), part{attributes: map[string]any{"process.linux.cgroup": c.Path, "host.name": host}}, inContainer(containerB))
				if err := r.p.ConsumeProfiles(t.Context(), pd); err != nil {
					t.Error(err)
				}
			}
		})
	}
	senders.Wait()
	require.Positive(t, r.sink.ProfileCount())
}

func TestLifecycle(t *testing.T) {
	cfg := createDefaultConfig()
	set := processortest.NewNopSettings(metadata.Type)
	t.Run("shutdown without start, and twice", func(t *testing.T) {
		p, err := newProcessor(set, cfg, consumertest.NewNop())
		require.NoError(t, err)
		require.NoError(t, p.Shutdown(t.Context()))
		require.NoError(t, p.Shutdown(t.Context()))
		require.ErrorIs(t, p.ConsumeProfiles(t.Context(), batch(t, time.Now(), inService())), errShutdown)
	})
	t.Run("profiles through it, then shutdown with an open gate", func(t *testing.T) {
		c := hosttest.NewCgroup(t, "hotprofile-shutdown")
		c.SetQuota(t, 0.2)
		spin(t, c)
		r := start(t, quick(time.Hour))
		r.wait("gate opened", c.Path)
		require.Equal(t, 1, r.send(c.Path))
		require.NoError(t, r.p.Shutdown(t.Context()))
		closed := r.said("gate closed", c.Path)
		require.Equal(t, "shutdown", closed["why"])
		require.EqualValues(t, 6, closed["samples"])
		require.NoError(t, r.p.Shutdown(t.Context()))
	})
	t.Run("no control groups", func(t *testing.T) {
		r := start(t, "root_path: "+t.TempDir())
		require.Len(t, r.logs.FilterMessage("cannot read control groups").All(), 1)
		require.Zero(t, r.send("/system.slice/x.service"))
		require.Equal(t, string(identify.NoControlGroups), r.logs.FilterMessage("profiles match no unit").All()[0].ContextMap()["why"])
	})
}

// TestUnitsBeyondTheBoundAreCountedAndLogged checks that profiles of units beyond the
// bound are counted as unmatched.
func TestUnitsBeyondTheBoundAreCountedAndLogged(t *testing.T) {
	c := hosttest.NewCgroup(t, "hotprofile-beyond")
	c.SetQuota(t, 0.2)
	spin(t, c)
	r := newRig(t, "")
	for i := range units.Max {
		require.True(t, r.p.units.Add(identify.Identity{Name: fmt.Sprint("/s", i)}, r.now))
	}
	require.False(t, r.p.units.Add(identify.Identity{Name: c.Path}, r.now))
	r.discover()
	logged := r.log("not all units are watched")
	require.Len(t, logged, 1)
	require.EqualValues(t, units.Max, logged[0].ContextMap()["watched"])
	refused := logged[0].ContextMap()["refused"]
	require.Positive(t, refused)
	require.Equal(t, refused, r.metric("otelcol_cpu_trigger.units.refused")["too_many"])
}

// discover searches once for the units of this host.
func (r *rig) discover() {
	r.t.Helper()
	tree, err := cgroup.Open("/")
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(r.t.Context())
	d := &collect.Discoverer{
		Tree: tree, Scope: identify.ScopeCgroup, Units: r.p.units, TTL: time.Hour, Interval: time.Second,
		Now: func() time.Time { return r.now }, Log: r.p.log, SetClaims: func([]cgroup.Claim) {},
	}
	scanned, done := make(chan struct{}), make(chan struct{})
	go func() { d.Run(ctx, scanned); close(done) }()
	<-scanned
	cancel()
	<-done
}

// TestASandboxThatIsFoundIsNoUnit checks that a pod's sandbox does not become a unit. If
// a profile has made the sandbox a unit, the unit is removed.
func TestASandboxThatIsFoundIsNoUnit(t *testing.T) {
	sleep, err := os.ReadFile("/bin/sleep")
	require.NoError(t, err)
	dir := t.TempDir()
	ids := map[string]string{}
	for i, name := range []string{"pause", "app"} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, sleep, 0o755))
		ids[name] = fmt.Sprintf("%012x%051x%d", os.Getpid(), time.Now().UnixNano(), i)
		cmd := hosttest.NewContainer(t, ids[name], 0).Command(file, "600")
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
			return string(comm) == name+"\n"
		}, 30*time.Second, time.Millisecond)
	}
	r := newRig(t, "")
	require.True(t, r.p.units.Add(identify.Identity{Name: ids["pause"]}, r.now))
	r.discover()
	_, ok := r.p.units.Lookup(ids["app"])
	require.True(t, ok)
	_, ok = r.p.units.Lookup(ids["pause"])
	require.False(t, ok)
}
