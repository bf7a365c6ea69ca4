// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bytes"
	"debug/elf"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pprofile "github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestAllocationsOfHotUnitsAreSampledWhileTheyAreHot runs two Go programs that allocate,
// and one of them turns hot. Each program has its own cgroup and its own file. The code
// of the hot program must have a probe only while the program is hot. The allocations of
// the hot program must be exported while its gate is open. Three quarters of the
// allocations must be in one function and one quarter in another function.
func TestAllocationsOfHotUnitsAreSampledWhileTheyAreHot(t *testing.T) {
	t.Parallel()
	skipWithoutProbes(t)
	const (
		idle, busy = 5 * time.Second, 12 * time.Second
		duration   = 6 * time.Second
	)
	program := buildAllocating(t)
	twin := filepath.Join(filepath.Dir(program), "twin")
	copyFile(t, program, twin)

	hot, cool := newCgroup(t, "hot"), newCgroup(t, "cool")
	for _, g := range []*hosttest.Cgroup{hot, cool} {
		g.SetQuota(t, cores)
		g.RaiseWeight(t)
	}
	w, p, metrics := startWire(t), startPeer(t), freePort(t)
	dir := filepath.Join(t.TempDir(), "profiles")
	// The limiter drops some samples but keeps enough to judge shares.
	c := pipeline{
		extensions: []string{"hot_units:"},
		receiver:   "{export_interval: 1s, allocations: {when: hot, max_samples_per_minute: 30000}, buffer_size: 16MiB}",
		evaluation: time.Second,
		trigger:    onceAbove(t, threshold, duration),
		exporters: []string{
			w.exporter(), p.exporter(),
			fmt.Sprintf(`pprof: {directory: %q, idle_timeout: 10m}`, dir), // otherwise a pause would split the profile into two files
		},
	}.start(t, metrics)
	sampled := func() float64 { return scrape(t, metrics, "otelcol_cpu_profiler_targets", `sampler="allocations"`) }

	coolCommand := cool.Command(twin, "-idle", "1h")
	startLoad(t, coolCommand, coolService)
	hotCommand := hot.Command(program, "-idle", idle.String(), "-busy", busy.String())
	startLoad(t, hotCommand, hotService)
	ours, other := newProbed(t, hotCommand.Process.Pid, program), newProbed(t, coolCommand.Process.Pid, twin)
	turnedHot := func(l logLine) bool { return strings.Contains(l.str("now_hot"), hot.Path) }
	time.Sleep(idle / 2)
	programs, probe := sampled(), ours.is(t)
	if !slices.ContainsFunc(c.lines("hot units changed"), turnedHot) { // otherwise the test was delayed
		require.Zero(t, programs, "nothing is hot")
		require.False(t, probe)
	}

	turned := c.wait(startTimeout, "hot units changed", turnedHot)
	attached := c.wait(startTimeout, "allocations of a program are sampled", func(l logLine) bool { return strings.HasSuffix(l.str("program"), program) })
	require.False(t, at(t, attached).Before(at(t, turned)))
	took := at(t, attached).Sub(at(t, turned))
	t.Logf("attached %v after it was hot", took)
	require.True(t, ours.is(t), "the code has no probe in it")
	require.Eventually(t, func() bool { return sampled() == 1 }, startTimeout, 50*time.Millisecond) // the log line comes before the metric
	require.False(t, other.is(t))

	c.wait(startTimeout, "gate opened", of(hot.Path))
	closed := c.wait(startTimeout, "gate closed", of(hot.Path))
	cooled := c.wait(startTimeout, "hot units changed", func(l logLine) bool {
		return strings.Contains(l.str("not_hot"), hot.Path) && !at(t, l).Before(at(t, closed))
	})
	left := c.wait(startTimeout, "allocations of a program are no longer sampled", func(l logLine) bool { return !at(t, l).Before(at(t, cooled)) })
	t.Logf("detached %v after it was not", at(t, left).Sub(at(t, cooled)))
	require.Eventually(t, func() bool { return !ours.is(t) && sampled() == 0 }, startTimeout, 50*time.Millisecond)
	require.False(t, other.is(t))
	for _, l := range c.lines("allocations of a program are sampled") {
		require.True(t, strings.HasSuffix(l.str("program"), program), "%v", l)
	}
	checkAllocationAccounts(t, metrics)
	c.stop() // the exporters flush their queues first
	p.stop()

	received := w.received()
	for i, batch := range received {
		for _, v := range conformancetest.Check(batch, conformancetest.Options{Triggered: true, References: true}) {
			t.Errorf("request %d on the wire: %v", i, v)
		}
	}
	n := 0 // the number of samples, which is the same for wire and peer
	for over, profiles := range map[string][]profile{"wire": flatten(received), "peer": flatten(readProfiles(t, p.grpcFile))} {
		values := map[string]map[string]float64{}
		n = 0
		for _, p := range profiles {
			require.Equal(t, hot.Path, p.str("hotprofile.unit"))
			if p.sampleType != "alloc_space" && p.sampleType != "alloc_objects" {
				continue
			}
			require.Equal(t, hotService, p.service())
			require.NotEmpty(t, p.str("hotprofile.trigger.id"))
			require.NotEmpty(t, p.str("hotprofile.scaled"))
			sum := values[p.sampleType]
			if sum == nil {
				sum = map[string]float64{}
				values[p.sampleType] = sum
			}
			for _, s := range p.samples {
				require.Positive(t, s.value)
				require.NotEmpty(t, s.functions)
				sum[strings.TrimPrefix(s.functions[0], "main.")] += float64(s.value)
				if p.sampleType == "alloc_space" {
					n++
				}
			}
		}
		for _, kind := range []string{"alloc_space", "alloc_objects"} {
			checkParts(t, over+" "+kind, values[kind], n)
		}
		// Each object has the size of one piece.
		require.InEpsilon(t, 4096, values["alloc_space"]["allocThreeParts"]/values["alloc_objects"]["allocThreeParts"], 0.01)
	}
	checkAllocationFiles(t, dir, n)
}

// checkAllocationAccounts is like checkAccounts for runs with
// allocations. An allocation is an event in two profiles. The
// receiver counts it once, and the processor counts it twice.
func checkAllocationAccounts(t *testing.T, metrics int) {
	t.Helper()
	var in, twice, out float64
	require.Eventually(t, func() bool {
		in = scrape(t, metrics, "otelcol_cpu_profiler_samples", `outcome="exported"`)
		twice = scrape(t, metrics, "otelcol_cpu_profiler_samples", `outcome="exported"`, `sampler="allocations"`)
		out = scrape(t, metrics, "otelcol_cpu_trigger_samples") + scrape(t, metrics, "otelcol_cpu_trigger_recorder_samples")
		return twice > 0 && in+twice == out
	}, startTimeout, 100*time.Millisecond) // a batch may be exported between the scrapes
	t.Logf("in %v, %v of it twice, out %v", in, twice, out)
}

// checkParts checks that three quarters of the total are in one function, within the
// accuracy of n samples. Each sample is in either function with a fixed probability,
// independent of earlier samples.
func checkParts(t *testing.T, what string, in map[string]float64, n int) {
	t.Helper()
	total := in["allocThreeParts"] + in["allocOnePart"]
	share := in["allocThreeParts"] / total
	bound := 5 * math.Sqrt(0.75*0.25/float64(n))
	t.Logf("%s: %d samples, %.1f MB or objects, %.2f%% of it in allocThreeParts, 75%% within %.2f points", what, n, total/1e6, 100*share, 100*bound)
	require.Greater(t, n, 500, "too few to judge shares")
	require.InDelta(t, 0.75, share, bound, what)
	all := 0.
	for _, v := range in {
		all += v
	}
	require.Greater(t, total, 0.95*all, "%v", in)
}

// checkAllocationFiles reads the files that the pprof exporter has written for n samples.
func checkAllocationFiles(t *testing.T, dir string, n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, hotService+"_*.pb.gz"))
	require.NoError(t, err)
	found := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		p, err := pprofile.Parse(bytes.NewReader(content))
		require.NoError(t, err, file)
		index, err := p.SampleIndexByName("alloc_space")
		if err != nil {
			continue
		}
		found++
		in := map[string]float64{}
		for _, s := range p.Sample {
			lines := s.Location[0].Line
			in[strings.TrimPrefix(lines[0].Function.Name, "main.")] += float64(s.Value[index])
		}
		checkParts(t, filepath.Base(file), in, n)
		out, err := exec.Command("go", "tool", "pprof", "-top", "-sample_index=alloc_space", file).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "main.allocThreeParts")
		require.NotContains(t, strings.ToLower(string(out)), "warning")
	}
	require.Equal(t, 1, found, "%v", files)
}

func skipWithoutProbes(t *testing.T) {
	t.Helper()
	u, err := perfevent.Open(perfevent.Options{HostWide: true, Probes: true})
	if err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
		return
	}
	require.NoError(t, u.Close())
}

func buildAllocating(t *testing.T) string {
	t.Helper()
	return hosttest.Compiled(t, "allocating", "allocating", func(out string) {
		cmd := exec.Command("go", "build", "-o", out, "./testdata/allocating")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		b, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", b)
	})
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, b, 0o755))
}

// probed checks whether the runtime function that samples allocations has a probe in a
// process. If it has a probe, the process's copy of the code contains a breakpoint.
type probed struct {
	pid     int
	address uint64
	code    []byte // the code in the file
}

func newProbed(t *testing.T, pid int, program string) probed {
	t.Helper()
	f, err := elf.Open(program)
	require.NoError(t, err)
	defer f.Close()
	all, err := f.Symbols()
	require.NoError(t, err)
	for _, s := range all {
		if s.Name != "runtime.profilealloc" {
			continue
		}
		text := f.Section(".text")
		p := probed{pid: pid, address: s.Value, code: make([]byte, min(s.Size, 64))}
		_, err := text.ReadAt(p.code, int64(s.Value-text.Addr))
		require.NoError(t, err)
		return p
	}
	t.Fatalf("%s has no runtime.profilealloc", program)
	return probed{}
}

func (p probed) is(t *testing.T) bool {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.pid))
	require.NoError(t, err)
	defer f.Close()
	now := make([]byte, len(p.code))
	_, err = f.ReadAt(now, int64(p.address))
	require.NoError(t, err)
	return !bytes.Equal(now, p.code)
}
