// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/test/conformancetest"
)

const (
	startTimeout = 2 * time.Minute
	hotService   = "e2e-hot"
	coolService  = "e2e-cool"
	threshold    = 80
	// cores is the CPU quota of the programs. The quota is low, so
	// that the programs can use all of it even on a busy machine.
	cores = 0.4
	// frequency is high enough to judge ratios of samples.
	frequency = 997
)

// scenario is one run with two programs. One program idles and then turns hot in its
// own cgroup. The other program, in another cgroup, uses hardly any CPU time.
type scenario struct {
	threshold float64
}

// outcome is the result of a run.
type outcome struct {
	turnedHot      time.Time // the earliest possible time, because the program was idle before
	opened, closed []logLine
	grpc, http     []profile
	wire           []pprofile.Profiles
	pprofFiles     []string
	hotCgroup      string
}

func TestHotCgroupPassesAndItsTwinDoesNot(t *testing.T) {
	t.Parallel()
	o := play(t, scenario{threshold: threshold})
	for _, err := range checkGate(o) {
		t.Error(err)
	}
	for i, p := range o.wire {
		for _, v := range conformancetest.Check(p, conformancetest.Options{Triggered: true, References: true}) {
			t.Errorf("request %d on the wire: %v", i, v)
		}
	}
	require.NotEmpty(t, o.wire)

	for over, profiles := range map[string][]profile{"gRPC": o.grpc, "HTTP": o.http} {
		n := shares(profiles, "burnThreeParts", "burnOnePart")
		total := n["burnThreeParts"] + n["burnOnePart"]
		share := 100 * float64(n["burnThreeParts"]) / float64(total)
		t.Logf("%s: %d samples, %.1f%% of them in burnThreeParts", over, total, share)
		if total < 1500 {
			t.Errorf("%s: only %d samples: too few to judge their ratio", over, total)
		}
		if math.Abs(share-75) > 5 {
			t.Errorf("%s: %.1f%% of the samples are in burnThreeParts, want 75%% within 5 points", over, share)
		}
	}
	checkPprofFiles(t, o)
}

// TestTheChecksCatchAForcedGate shows that the checks above can fail. The
// checks must find a gate that always opens and a gate that never opens.
func TestTheChecksCatchAForcedGate(t *testing.T) {
	t.Parallel()
	for name, forced := range map[string]float64{"open": 0, "shut": 1e6} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			errs := checkGate(play(t, scenario{threshold: forced}))
			if len(errs) == 0 {
				t.Fatal("the checks found nothing wrong")
			}
			t.Logf("%d faults found, as it should be; the last: %v", len(errs), errs[len(errs)-1])
		})
	}
}

// play runs a scenario until the gate of the hot
// program has closed, or until a time limit.
func play(t *testing.T, s scenario) outcome {
	const idle, busy, duration = 5 * time.Second, 12 * time.Second, 6 * time.Second
	hot, cool := newCgroup(t, "hot"), newCgroup(t, "cool")
	hot.SetQuota(t, cores)
	hot.RaiseWeight(t)
	cool.SetQuota(t, cores)
	cool.RaiseWeight(t)
	w, p := startWire(t), startPeer(t)
	dir, metrics := filepath.Join(t.TempDir(), "profiles"), freePort(t)
	c := pipeline{
		receiver: fmt.Sprintf("{frequency: %d, max_overhead: 0, export_interval: 1s}", frequency),
		trigger:  onceAbove(t, s.threshold, duration),
		exporters: []string{
			p.exporter(), w.exporter(),
			fmt.Sprintf(`otlp_http/peer: {endpoint: "http://127.0.0.1:%d"}`, p.http),
			fmt.Sprintf(`pprof: {directory: %q, idle_timeout: 10m}`, dir), // otherwise a pause would split the profile into two files
		},
	}.start(t, metrics)
	o := outcome{hotCgroup: hot.Path}
	startLoad(t, cool.Command(loadBinary, "-duty", "0.05"), coolService)
	o.turnedHot = time.Now().Add(idle) // at the earliest
	startLoad(t, hot.Command(loadBinary, "-idle", idle.String(), "-busy", busy.String()), hotService)

	// If the gate never opens, there is no end to wait for.
	wait := startTimeout
	if s.threshold > 100 {
		wait = idle + busy + duration/2
	}
	end := time.After(wait)
	for waiting := true; waiting; {
		select {
		case <-end:
			waiting = false
		case <-time.After(200 * time.Millisecond):
			for _, l := range c.lines("gate closed") {
				waiting = waiting && l.str("service") != hotService && l.str("unit") != hot.Path
			}
		}
	}
	checkAccounts(t, metrics)
	// Other busy programs on this host have their own gates.
	ours := func(unit any, service string) bool {
		return unit == hot.Path || unit == cool.Path || service == hotService || service == coolService
	}
	for msg, lines := range map[string]*[]logLine{"gate opened": &o.opened, "gate closed": &o.closed} {
		for _, l := range c.lines(msg) {
			if ours(l["unit"], l.str("service")) {
				*lines = append(*lines, l)
			}
		}
	}
	c.stop() // the exporters flush their queues first
	p.stop()
	read := func(file string) (out []profile) {
		for _, p := range flatten(readProfiles(t, file)) {
			if ours(p.attributes["hotprofile.unit"], p.service()) {
				out = append(out, p)
			}
		}
		return out
	}
	o.grpc, o.http = read(p.grpcFile), read(p.httpFile)
	o.wire = w.received()
	files, err := filepath.Glob(filepath.Join(dir, "e2e-*.pb.gz"))
	require.NoError(t, err)
	o.pprofFiles = files
	return o
}

// checkAccounts checks that the processor has counted or
// still holds every sample of the receiver exactly once.
func checkAccounts(t *testing.T, metrics int) {
	t.Helper()
	var in, out float64
	for end := time.Now().Add(startTimeout); time.Now().Before(end); {
		in = scrape(t, metrics, "otelcol_cpu_profiler_samples", `outcome="exported"`)
		out = scrape(t, metrics, "otelcol_cpu_trigger_samples") + scrape(t, metrics, "otelcol_cpu_trigger_recorder_samples")
		if in > 0 && in == out {
			t.Logf("in %v = out %v", in, out)
			return
		}
		time.Sleep(100 * time.Millisecond) // the receiver may have emitted a batch between the two scrapes
	}
	t.Errorf("cpu_profiler emitted %v samples, cpu_trigger counted %v", in, out)
}

func startLoad(t *testing.T, cmd *exec.Cmd, service string, env ...string) {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // the program is killed if the tests die
	cmd.Env = append(append(os.Environ(), "OTEL_SERVICE_NAME="+service), env...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// checkGate checks that the exported profiles fit the purpose of the gate. All profiles
// must be from the hot unit and from the time after the threshold was crossed. All
// profiles must name the reason for the opening.
func checkGate(o outcome) (errs []error) {
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(o.opened) != 1 || o.opened[0].str("unit") != o.hotCgroup || o.opened[0].str("service") != hotService {
		fail("gates opened: %v, want one, of %s", o.opened, o.hotCgroup)
	}
	if len(o.closed) != 1 {
		fail("%d gates closed, want one", len(o.closed))
	}
	ids := map[string]bool{}
	for over, profiles := range map[string][]profile{"gRPC": o.grpc, "HTTP": o.http} {
		if len(profiles) == 0 {
			fail("%s: nothing arrived", over)
		}
		early := 0
		for _, p := range profiles {
			ids[p.str("hotprofile.trigger.id")] = true
			if p.service() != hotService || p.str("hotprofile.unit") != o.hotCgroup {
				fail("%s: a profile of service %q, unit %q", over, p.service(), p.str("hotprofile.unit"))
			}
			fired, err := time.Parse(time.RFC3339Nano, p.str("hotprofile.trigger.time"))
			if err != nil {
				fail("%s: hotprofile.trigger.time: %v", over, err)
			}
			if fired.Before(o.turnedHot) || p.end.Before(fired) {
				early++
			}
			value, _ := strconv.ParseFloat(p.str("hotprofile.trigger.value"), 64)
			limit, _ := strconv.ParseFloat(p.str("hotprofile.trigger.threshold"), 64)
			if !(value > limit) || limit != threshold || p.resource["hotprofile.trigger.kind"] != "hot" ||
				p.str("hotprofile.trigger.policy") != "cpu" || p.resource["hotprofile.trigger.policy"] != "cpu" ||
				p.str("hotprofile.trigger.monitor") != "cpu_utilization" ||
				p.str("hotprofile.trigger.window") != "3s average" ||
				p.str("hotprofile.trigger.until") == "" || p.str("hotprofile.trigger.phase") == "" {
				fail("%s: the reason is %v", over, p.attributes)
			}
			for _, name := range []string{"process.linux.cgroup", "process.pid", "process.creation.time", "process.executable.path"} {
				if _, leaked := p.resource[name]; leaked {
					fail("%s: %s left with the profile", over, name)
				}
			}
		}
		if early > 0 {
			fail("%s: %d of %d profiles from before the threshold was crossed", over, early, len(profiles))
		}
	}
	if len(ids) > 1 {
		fail("%d trigger ids, want one", len(ids))
	}
	if len(o.pprofFiles) != 1 {
		fail("pprof files: %v, want one", o.pprofFiles)
	}
	return errs
}

func checkPprofFiles(t *testing.T, o outcome) {
	t.Helper()
	for _, f := range o.pprofFiles {
		require.True(t, strings.HasPrefix(filepath.Base(f), hotService+"_"), f)
		out, err := exec.Command("go", "tool", "pprof", "-top", f).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "burnThreeParts")
		require.NotContains(t, strings.ToLower(string(out)), "warning")
		out, err = exec.Command("go", "tool", "pprof", "-comments", f).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "hotprofile.trigger.monitor")
		require.Contains(t, string(out), "cpu_utilization")
	}
}
