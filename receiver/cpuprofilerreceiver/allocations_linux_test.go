// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/allocs"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// allocator is a running program that allocates memory when the test requests it.
type allocator struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func startAllocator(t *testing.T, in ...*hosttest.Cgroup) *allocator {
	t.Helper()
	path := program(t, "allocator")
	cmd := exec.Command(path)
	for _, group := range in {
		cmd = group.Command(path)
	}
	cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME=allocator")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	a := &allocator{t: t, cmd: run(t, cmd), in: stdin, out: bufio.NewReader(out)}
	_, err = a.out.ReadString('\n')
	require.NoError(t, err)
	return a
}

// allocate asks the program to allocate memory. It returns the numbers of bytes and objects
// that the program's runtime has counted.
func (a *allocator) allocate(kind string, n int) (bytes, objects float64) {
	a.t.Helper()
	_, err := fmt.Fprintln(a.in, kind, n)
	require.NoError(a.t, err)
	line, err := a.out.ReadString('\n')
	require.NoError(a.t, err)
	_, err = fmt.Sscan(line, &bytes, &objects)
	require.NoError(a.t, err)
	return bytes, objects
}

// values returns the sum and the number of all values of a sample type.
func values(all []pprofile.Profiles, sampleType, unit string) (sum float64, n int) {
	for _, ps := range all {
		text := func(i int32) string { return ps.Dictionary().StringTable().At(int(i)) }
		for _, rp := range ps.ResourceProfiles().All() {
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					if text(p.SampleType().TypeStrindex()) != sampleType || text(p.SampleType().UnitStrindex()) != unit {
						continue
					}
					for _, s := range p.Samples().All() {
						for _, v := range s.Values().All() {
							sum += float64(v)
							n++
						}
					}
				}
			}
		}
	}
	return sum, n
}

func needProbes(t *testing.T) {
	t.Helper()
	u, err := perfevent.Open(perfevent.Options{HostWide: true, Probes: true})
	if err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
		return
	}
	require.NoError(t, u.Close())
}

func withAllocations(pid int, cfg allocs.Config) func(*Config) {
	return func(c *Config) {
		c.CPU.Enabled = false
		c.Targets = []TargetConfig{{PID: pid}}
		c.Allocations = configoptional.Some(cfg)
	}
}

func (r *running) sampled(n int) bool {
	m, err := r.telemetry.GetMetric("otelcol_cpu_profiler.targets")
	return err == nil && m.Data != nil && r.telemetryGauge("otelcol_cpu_profiler.targets") == int64(n)
}

func TestKernelReceiverSamplesAllocations(t *testing.T) {
	needProbes(t)
	for name, limit := range map[string]int{"all that the runtime samples": 0, "limited": 60_000} { // 60000 per minute are 200 per export
		t.Run(name, func(t *testing.T) {
			a := startAllocator(t)
			r := start(t, func(c *Config) {
				withAllocations(a.cmd.Process.Pid, allocs.Config{When: sampler.WhenAlways, MaxSamplesPerMinute: limit})(c)
				c.BufferSize = 16 * bytesize.MiB
			})
			require.Eventually(t, func() bool { return r.sampled(1) }, patience, 10*time.Millisecond)
			var bytes, objects float64
			for range 10 {
				b, o := a.allocate("pages", 256<<20)
				bytes, objects = bytes+b, objects+o
			}
			r.stop()
			r.conforms()
			space, n := values(r.sink.AllProfiles(), "alloc_space", "bytes")
			count, m := values(r.sink.AllProfiles(), "alloc_objects", "count")
			require.Equal(t, n, m, "each is of both")
			// Each sample represents 512 KiB. All samples of pages have the
			// same size, so the estimate from the kept samples is as exact
			// as an estimate from all samples.
			sd := 1 / math.Sqrt(bytes/(512<<10))
			require.InEpsilon(t, bytes, space, 5*sd+0.02)
			require.InEpsilon(t, objects, count, 5*sd+0.02)
			for _, row := range rows(r.sink.AllProfiles()) {
				require.Equal(t, "allocator", row.resource["service.name"])
			}
			found := r.until("its function", func(rows []row) bool { return len(rows) > 0 && rows[0].has("main.pages") })
			require.Equal(t, "main.pages", found[0].functions[0])
		})
	}
}

// newHotUnits starts a hotunits extension that has no hot units yet.
func newHotUnits(t *testing.T) component.Component {
	t.Helper()
	factory := hotunitsextension.NewFactory()
	ext, err := factory.Create(context.Background(), extension.Settings{
		ID: component.NewID(factory.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings(),
	}, factory.CreateDefaultConfig())
	require.NoError(t, err)
	require.NoError(t, ext.Start(context.Background(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, ext.Shutdown(context.Background())) })
	return ext
}

func TestKernelReceiverSamplesAllocationsOfHotUnitsAlone(t *testing.T) {
	needProbes(t)
	ext := newHotUnits(t)
	publisher := ext.(*hotunitsextension.HotUnits).Publisher(component.MustNewID("test"))

	group := hosttest.NewCgroup(t, "hotprofile-allocations")
	a, other := startAllocator(t, group), startAllocator(t)
	r := startTo(t, nil, func(c *Config) {
		c.CPU.Enabled = false
		c.Allocations = configoptional.Some(allocs.DefaultConfig()) // samples the whole host
		c.DiscoveryInterval = time.Hour                             // only a change of the hot units starts a search
	}, ext)
	allocate := func() {
		a.allocate("pages", 64<<20)
		other.allocate("pages", 64<<20)
	}
	require.Eventually(t, func() bool { return r.sampled(0) }, patience, 10*time.Millisecond)
	allocate()

	publisher.Publish([]hotunitsextension.Unit{{Name: group.Path, Cgroup: group.Path}})
	require.Eventually(t, func() bool { return r.sampled(1) }, patience, 10*time.Millisecond)
	allocate()
	r.until("allocations while it is hot", func(rows []row) bool { return len(rows) > 0 })

	publisher.Publish(nil)
	require.Eventually(t, func() bool { return r.sampled(0) }, patience, 10*time.Millisecond)
	allocate()
	r.stop()
	r.conforms()
	space, _ := values(r.sink.AllProfiles(), "alloc_space", "bytes")
	require.InEpsilon(t, 64<<20, space, 5/math.Sqrt(128)) // only one of the three allocations of a
	for _, row := range rows(r.sink.AllProfiles()) {
		require.EqualValues(t, a.cmd.Process.Pid, row.resource["process.pid"])
	}
}

// TestFloodOfAllocationsLeavesRoomForOthers fills the buffers of allocations
// while running threads are sampled.
func TestFloodOfAllocationsLeavesRoomForOthers(t *testing.T) {
	needProbes(t)
	t.Setenv("RATE", "65536")
	a := startAllocator(t)
	r := start(t, func(c *Config) {
		withAllocations(a.cmd.Process.Pid, allocs.Config{When: sampler.WhenAlways, MaxSamplesPerMinute: allocs.MaxMaxSamplesPerMinute})(c)
		c.CPU.Enabled, c.BufferSize = true, bytesize.MiB
		c.ExportInterval = time.Second
	})
	const message = "Discarding captured allocation sample. Allocation buffer is full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **"
	require.Eventually(t, func() bool {
		a.allocate("pages", 512<<20)
		return r.logs.FilterMessage(message).Len() > 0
	}, patience, time.Millisecond)
	r.stop()
	require.Zero(t, r.logs.FilterMessageSnippet("Skipping a thread sample period").Len())
	left := make(map[string]int64)
	metric, err := r.telemetry.GetMetric("otelcol_cpu_profiler.samples")
	require.NoError(t, err)
	for _, p := range metric.Data.(metricdata.Sum[int64]).DataPoints {
		sampler, _ := p.Attributes.Value("sampler")
		outcome, _ := p.Attributes.Value("outcome")
		left[sampler.AsString()+" "+outcome.AsString()] = p.Value
	}
	require.Positive(t, left["allocations buffer_full"])
	require.Positive(t, left["allocations exported"])
	require.Positive(t, left["on_cpu exported"])
	require.Zero(t, left["on_cpu buffer_full"])
	_, exported := values(r.sink.AllProfiles(), "alloc_space", "bytes")
	require.EqualValues(t, exported, left["allocations exported"], "each is counted once")
}
