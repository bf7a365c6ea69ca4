// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/exporter/xexporter"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"go.yaml.in/yaml/v3"

	"github.com/hotprofile/hotprofile/exporter/pprofexporter/internal/metadata"
	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// harness is an exporter whose clock is set by the test. The test also decides when the
// exporter searches for due files.
type harness struct {
	*pprofExporter
	t     testing.TB
	clock time.Time
	logs  *observer.ObservedLogs
	tel   *componenttest.Telemetry
}

func newHarness(t testing.TB, change func(*Config)) *harness {
	t.Helper()
	cfg := createDefaultConfig(func(string) string { return "" }).(*Config)
	cfg.Directory = filepath.Join(t.TempDir(), "profiles")
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	core, logs := observer.New(zapcore.DebugLevel)
	tel := componenttest.NewTelemetry()
	set := exportertest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	set.Logger = zap.New(core)
	h := &harness{t: t, clock: time.Unix(0, pprofstest.WindowStart+pprofstest.Window), logs: logs, tel: tel}
	e, err := newExporter(set, cfg, func() time.Time { return h.clock })
	require.NoError(t, err)
	h.pprofExporter = e
	t.Cleanup(func() {
		require.NoError(t, tel.Shutdown(context.Background()))
	})
	return h
}

// started returns an exporter that was started on a no-op host.
func started(t testing.TB, change func(*Config)) *harness {
	t.Helper()
	h := newHarness(t, change)
	h.startOn(componenttest.NewNopHost())
	return h
}

// startOn starts the exporter and stops its loop. The test calls finishDue itself, so no
// other goroutine reads the clock.
func (h *harness) startOn(host component.Host) {
	h.t.Helper()
	require.NoError(h.t, h.start(context.Background(), host))
	h.cancel()
	h.wg.Wait()
	h.t.Cleanup(func() { _ = h.shutdown(context.Background()) })
}

// send passes a request to the exporter. Then it waits until the exporter has written all
// files that the request finished.
func (h *harness) send(in pprofstest.Input) {
	h.t.Helper()
	require.NoError(h.t, h.consume(context.Background(), in.Build(h.t)))
	h.settle()
}

func (h *harness) due() {
	h.finishDue()
	h.settle()
}

// settle waits until all finished files are written.
func (h *harness) settle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.queue.writing {
		require.NoError(h.t, h.wait(context.Background()))
	}
}

func (h *harness) files() []string {
	h.t.Helper()
	entries, err := os.ReadDir(h.cfg.Directory)
	require.NoError(h.t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (h *harness) read(name string) *profile.Profile {
	h.t.Helper()
	f, err := os.Open(filepath.Join(h.cfg.Directory, name))
	require.NoError(h.t, err)
	defer f.Close()
	p, err := profile.Parse(f)
	require.NoError(h.t, err)
	require.NoError(h.t, p.CheckValid())
	return p
}

// counted returns the value of a metric for one value of its attribute.
func (h *harness) counted(metric, attribute string) int64 {
	h.t.Helper()
	m, err := h.tel.GetMetric("otelcol_" + metric)
	if err != nil {
		return 0
	}
	total := int64(0)
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			if attribute == "" || slices.Contains(values(p), attribute) {
				total += p.Value
			}
		}
	case metricdata.Gauge[int64]:
		for _, p := range data.DataPoints {
			total += p.Value
		}
	}
	return total
}

func values(p metricdata.DataPoint[int64]) []string {
	var out []string
	for _, kv := range p.Attributes.ToSlice() {
		out = append(out, kv.Value.AsString())
	}
	return out
}

func TestIdleFileIsWritten(t *testing.T) {
	h := started(t, nil)
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("0a1b", "t1", "2026-05-28T20:26:42Z"), Hot: 60, Cold: 20})
	h.due()
	require.Empty(t, h.files(), "a file is visible only when it is complete")
	require.Positive(t, h.counted("pprof.memory", ""))

	h.clock = h.clock.Add(14 * time.Second)
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("0a1b", "t1", "2026-05-28T20:26:42Z"), Hot: 15, Cold: 5, Later: 5 * time.Second})
	h.clock = h.clock.Add(14 * time.Second)
	h.due()
	require.Empty(t, h.files(), "a new profile restarts the idle timeout")
	h.clock = h.clock.Add(time.Second)
	h.due()

	const name = "checkout_0a1b_20260528T202642Z_cpu_cpu.pb.gz"
	require.Equal(t, []string{name}, h.files())
	require.EqualValues(t, 1, h.counted("pprof.files", "idle"))
	require.EqualValues(t, 100, h.counted("pprof.samples", "written"))
	require.Zero(t, h.counted("pprof.memory", ""))

	lines := h.logs.FilterMessage("profile written").All()
	require.Len(t, lines, 1)
	require.Equal(t, zapcore.InfoLevel, lines[0].Level)
	fields := lines[0].ContextMap()
	require.Equal(t, filepath.Join(h.cfg.Directory, name), fields["file"])
	require.EqualValues(t, 100, fields["samples"])
	require.Equal(t, []any{"main.hot 75.0%", "main.cold 25.0%"}, fields["hottest"])
}

func TestFileHasAllFieldsOfPprof(t *testing.T) {
	h := started(t, nil)
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("0a1b", "t1", "2026-05-28T20:26:42Z"), Hot: 60, Cold: 20})
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("0a1b", "t1", "2026-05-28T20:26:42Z"), Hot: 15, Cold: 5, Later: 5 * time.Second})
	require.NoError(t, h.shutdown(context.Background()))
	p := h.read(h.files()[0])

	require.Equal(t, []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}, p.SampleType)
	require.Equal(t, &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, p.PeriodType)
	require.EqualValues(t, pprofstest.Period, p.Period)
	require.EqualValues(t, pprofstest.WindowStart, p.TimeNanos)
	require.EqualValues(t, 2*pprofstest.Window, p.DurationNanos)
	require.Equal(t, []string{
		"hotprofile.trigger.id=t1",
		"hotprofile.trigger.monitor=cpu_utilization",
		"hotprofile.trigger.policy=cpu",
		"hotprofile.trigger.threshold=80",
		"hotprofile.trigger.time=2026-05-28T20:26:42Z",
		"hotprofile.unit=0a1b",
	}, p.Comments)

	require.Len(t, p.Sample, 2, "equal stacks of two windows are merged")
	hot, cold := p.Sample[0], p.Sample[1]
	require.Equal(t, []int64{75, 75 * pprofstest.Period}, hot.Value)
	require.Equal(t, []int64{25, 25 * pprofstest.Period}, cold.Value)
	require.Empty(t, hot.Label)
	require.Equal(t, map[string][]string{"thread.name": {"worker"}}, cold.Label)
	require.Equal(t, map[string][]int64{"thread.id": {42}}, cold.NumLabel)
	require.Equal(t, "main.hot", hot.Location[0].Line[0].Function.Name)
	require.Equal(t, "main.loop", hot.Location[0].Line[1].Function.Name, "inlined calls, the innermost first")
	require.EqualValues(t, 21, hot.Location[0].Line[0].Line)
	require.EqualValues(t, 20, hot.Location[0].Line[0].Function.StartLine)
	require.Empty(t, cold.Location[1].Line)

	require.Len(t, p.Mapping, 2)
	require.Equal(t, "/bin/app", p.Mapping[0].File, "the first mapping is the program's")
	require.Equal(t, "abcd", p.Mapping[0].BuildID)
	require.EqualValues(t, 0x1000, p.Mapping[0].Offset)
	require.Equal(t, "11bc", p.Mapping[1].BuildID)
}

func TestProgramIsTheFirstMappingIfOnlyItsNameIsKnown(t *testing.T) {
	h := started(t, nil)
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("0a1b", "t1", ""), Stacks: 1, Cold: 1, Hot: 1, NoPath: true})
	require.NoError(t, h.shutdown(context.Background()))
	p := h.read(h.files()[0])
	require.Len(t, p.Mapping, 2)
	require.Equal(t, "/bin/app", p.Mapping[0].File)
}

func TestGoToolPprofReadsAFileWithoutWarning(t *testing.T) {
	h := started(t, nil)
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("/system.slice/checkout.service", "t1", ""), Hot: 75, Cold: 25})
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("/system.slice/checkout.service", "t1", ""), Cold: 4, Stacks: 50})
	require.NoError(t, h.shutdown(context.Background()))
	file := filepath.Join(h.cfg.Directory, h.files()[0])
	for view, want := range map[string][]string{
		"-top":  {"File: app", "Build ID: abcd", "Type: cpu", "Duration: 5s", "main.hot", "48.70%"},
		"-raw":  {"hotprofile.trigger.monitor=cpu_utilization", "samples/count cpu/nanoseconds", "thread.name:[worker]", "/lib/libc.so.6 11bc"},
		"-tags": {"thread.name", "worker"},
		"-tree": {"main.main"},
		// pprof does not need the binary of the program for this view.
		"-peek=main.cold": {"libc.so.6"},
	} {
		t.Run(view, func(t *testing.T) {
			out := pprof(t, view, file)
			for _, w := range want {
				require.Contains(t, out, w)
			}
		})
	}
}

// pprof returns the output of `go tool pprof`. The tool must not print warnings.
func pprof(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"tool", "pprof"}, args...)...)
	cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), stderr.String())
	require.Empty(t, stderr.String())
	return stdout.String()
}

func TestGoToolPprofSelectsWhatThreadsWaitedFor(t *testing.T) {
	batch := samples.NewBatch(1 << 20)
	batch.Start, batch.End = pprofstest.WindowStart, pprofstest.WindowStart+pprofstest.Window
	r := &samples.Resource{PID: 7, Attributes: []samples.Attribute{{Key: "service.name", Value: "checkout"}}}
	for function, wait := range map[string]samples.Wait{
		"receive": samples.WaitNetwork, "load": samples.WaitDisk, "lock": samples.WaitLock, "rest": samples.WaitUnknown,
	} {
		at := &samples.Location{Type: samples.FrameNative, Resolved: true, Lines: []samples.Line{{Function: function}}}
		k := samples.Key{Resource: r, Type: samples.OffCPU, Period: 1, Stack: &samples.Stack{Locations: []*samples.Location{at}, Wait: wait}}
		require.True(t, batch.AddValue(k, pprofstest.WindowStart, int64(time.Second)))
	}
	h := started(t, nil)
	for p := range otlpprofiles.NewBuilder(otlpprofiles.Options{}).Build(batch) {
		require.NoError(t, h.consume(context.Background(), p))
	}
	require.NoError(t, h.shutdown(context.Background()))
	file := filepath.Join(h.cfg.Directory, h.files()[0])
	for wait, function := range map[string]string{"network": "receive", "disk": "load", "lock": "lock"} {
		top := pprof(t, "-top", "-tagfocus=hotprofile.wait="+wait, file)
		require.Contains(t, top, "1s, 25.00% of 4s total")
		require.Contains(t, top, function)
	}
	require.Contains(t, pprof(t, "-tags", file), "hotprofile.wait: Total 3s of 4s (75.00%)")
}

// TestGoToolPprofReadsCodeWithoutAFile covers code without a file. Interpreters and
// other senders may send such code.
func TestGoToolPprofReadsCodeWithoutAFile(t *testing.T) {
	for name, change := range map[string]func(pprofile.ProfilesDictionary){
		"no mapping": func(d pprofile.ProfilesDictionary) {
			for _, l := range d.LocationTable().All() {
				l.SetMappingIndex(0)
			}
		},
		"mappings of no file": func(d pprofile.ProfilesDictionary) {
			for _, m := range d.MappingTable().All() {
				m.SetFilenameStrindex(0)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := started(t, nil)
			changed := pprofile.NewProfiles()
			pprofstest.Input{Resource: pprofstest.Checkout(), Hot: 3, Cold: 1}.Build(t).CopyTo(changed)
			change(changed.Dictionary())
			require.NoError(t, h.consume(context.Background(), changed))
			require.NoError(t, h.shutdown(context.Background()))
			file := filepath.Join(h.cfg.Directory, h.files()[0])
			require.Contains(t, pprof(t, "-top", file), "main.hot")
			require.Contains(t, pprof(t, "-raw", file), "main.cold")
		})
	}
}

func TestEachUnitAndTriggerAndTypeHasAFile(t *testing.T) {
	h := started(t, nil)
	at := "2026-05-28T20:26:42Z"
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", at), Hot: 1})
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("b", "t2", at), Hot: 1})
	wall := pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", at), Hot: 1}.Build(t)
	changed := pprofile.NewProfiles()
	wall.CopyTo(changed)
	for i, s := range changed.Dictionary().StringTable().All() {
		if s == "cpu" && i == int(profileOf(changed).PeriodType().TypeStrindex()) {
			changed.Dictionary().StringTable().SetAt(i, "wall")
		}
	}
	require.NoError(t, h.consume(context.Background(), changed))
	require.NoError(t, h.shutdown(context.Background()))
	files := h.files()
	require.Len(t, files, 3)
	slices.Sort(files)
	require.True(t, strings.HasPrefix(files[0], "checkout_a_20260528T202642Z_"))
	require.True(t, strings.HasSuffix(files[1], "_wall.pb.gz"), files[1])
	require.Equal(t, "wall", h.read(files[1]).SampleType[1].Type)
	require.True(t, strings.HasPrefix(files[2], "checkout_b_"))
}

func profileOf(p pprofile.Profiles) pprofile.Profile {
	return p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
}

// valued converts the profile of a request to a profile with values. The only sample
// of the profile has the value n.
func valued(t *testing.T, in pprofstest.Input, name, unit string, n int64) pprofile.Profiles {
	t.Helper()
	out := pprofile.NewProfiles()
	in.Build(t).CopyTo(out)
	table := out.Dictionary().StringTable()
	table.Append(name, unit)
	p := profileOf(out)
	p.SampleType().SetTypeStrindex(int32(table.Len() - 2))
	p.SampleType().SetUnitStrindex(int32(table.Len() - 1))
	require.Equal(t, 1, p.Samples().Len())
	p.Samples().At(0).Values().Append(n)
	return out
}

func TestValuesAreAddedOnlyIfTheyMeasureTheSame(t *testing.T) {
	h := started(t, nil)
	at := pprofstest.Reason("a", "t1", "2026-05-28T20:26:42Z")
	cpu := pprofstest.Input{Resource: pprofstest.Checkout(), Profile: at, Hot: 1}
	pulled := pprofstest.Input{Resource: map[string]string{"service.name": "checkout", "hotprofile.origin": "pprof"}, Profile: at, Hot: 20}
	ctx := context.Background()
	for range 2 {
		h.send(cpu)
		require.NoError(t, h.consume(ctx, valued(t, cpu, "cpu", "nanoseconds", 1e9)))
		require.NoError(t, h.consume(ctx, valued(t, cpu, "cpu", "microseconds", 5)))
		h.send(pulled)
		other := pprofile.NewProfiles()
		pprofstest.Input{Resource: pprofstest.Checkout(), Profile: at, Hot: 300}.Build(t).CopyTo(other)
		other.ResourceProfiles().At(0).ScopeProfiles().At(0).Scope().SetName("another profiler")
		require.NoError(t, h.consume(ctx, other))
	}
	require.NoError(t, h.shutdown(ctx))

	got := make(map[string]int)
	for _, name := range h.files() {
		require.Regexp(t, `^checkout_a_20260528T202642Z_cpu_cpu(-[2-5])?\.pb\.gz$`, name)
		p := h.read(name)
		what := fmt.Sprint(p.SampleType[0].Type, "/", p.SampleType[0].Unit, " ", p.Sample[0].Value)
		if slices.Contains(p.Comments, "hotprofile.origin=pprof") {
			what += " pulled"
		}
		got[what]++
	}
	require.Equal(t, map[string]int{
		fmt.Sprint("samples/count ", []int{2, 2 * pprofstest.Period}):               1,
		fmt.Sprint("samples/count ", []int{40, 40 * pprofstest.Period}) + " pulled": 1,
		fmt.Sprint("samples/count ", []int{600, 600 * pprofstest.Period}):           1,
		"cpu/nanoseconds [2000000000]":                                              1,
		"cpu/microseconds [10]":                                                     1,
	}, got)
	require.Equal(t, 1, h.logs.FilterMessage("profile written").FilterField(zap.String("origin", "pprof")).Len())
}

func TestServiceWithTheLargestPartNamesTheFile(t *testing.T) {
	h := started(t, nil)
	of := func(service, executable string) map[string]string {
		return map[string]string{"service.name": service, "process.executable.path": executable}
	}
	at := pprofstest.Reason("a", "t1", "2026-05-28T20:26:42Z")
	h.send(pprofstest.Input{Resource: of("sidecar", "/lib/libc.so.6"), Profile: at, Hot: 5, NoPath: true})
	h.send(pprofstest.Input{Resource: of("checkout", "/bin/app"), Profile: at, Cold: 4, NoPath: true})
	h.send(pprofstest.Input{Resource: of("cron", "/bin/cron"), Profile: at, Hot: 7, NoPath: true})
	h.send(pprofstest.Input{Resource: of("checkout", "/bin/app"), Profile: at, Cold: 4, NoPath: true})
	require.NoError(t, h.shutdown(context.Background()))
	require.Equal(t, []string{"checkout_a_20260528T202642Z_cpu_cpu.pb.gz"}, h.files())
	require.Equal(t, "/bin/app", h.read(h.files()[0]).Mapping[0].File)
	require.Equal(t, 1, h.logs.FilterMessage("profile written").FilterField(zap.String("service", "checkout")).Len())
}

func TestServiceWithTheLargestValuesNamesTheFile(t *testing.T) {
	h := started(t, nil)
	for _, part := range []struct {
		service string
		bytes   int64
	}{{"small", 10}, {"small", 10}, {"large", 1000}, {"small", 10}} {
		in := pprofstest.Input{Resource: map[string]string{"service.name": part.service}, Profile: pprofstest.Reason("b", "t2", "2026-05-28T20:26:42Z"), Hot: 1}
		require.NoError(t, h.consume(context.Background(), valued(t, in, "alloc_space", "bytes", part.bytes)))
	}
	require.NoError(t, h.shutdown(context.Background()))
	require.Equal(t, []string{"large_b_20260528T202642Z_cpu_alloc_space.pb.gz"}, h.files())
}

func TestFilesOfAGateThatStaysOpenAreFinished(t *testing.T) {
	h := started(t, nil)
	at := pprofstest.Reason("a", "t1", "2026-05-28T20:26:42Z")
	const hours = 9 // enough for more files than are kept
	for elapsed := time.Duration(0); elapsed < hours*time.Hour; elapsed += 10 * time.Second {
		h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: at, Hot: 1, Later: elapsed})
		h.clock = h.clock.Add(10 * time.Second)
		h.due()
		for _, f := range h.open.files {
			require.Less(t, h.clock.Sub(f.begun), 5*time.Minute)
		}
	}
	require.EqualValues(t, hours*60/5, h.counted("pprof.files", "age"))
	require.EqualValues(t, hours*60*6, h.counted("pprof.samples", "written"))
	require.Len(t, h.files(), h.cfg.MaxFiles)
	require.Contains(t, h.files(), "checkout_a_20260528T202642Z_cpu_cpu-108.pb.gz")
}

func TestNewTriggerFinishesTheFilesOfItsUnit(t *testing.T) {
	h := started(t, nil)
	first, second := "2026-05-28T20:26:42Z", "2026-05-28T20:27:42Z"
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", first), Hot: 1})
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("b", "t2", first), Hot: 1})
	require.Empty(t, h.files())
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t3", second), Hot: 1})
	require.Len(t, h.files(), 1)
	require.Contains(t, h.read(h.files()[0]).Comments, "hotprofile.trigger.id=t1")
	require.EqualValues(t, 1, h.counted("pprof.files", "trigger"))

	// A late profile of the old trigger does not finish the file of the new trigger.
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", first), Hot: 2})
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t3", second), Hot: 3})
	require.Len(t, h.files(), 1)
	require.NoError(t, h.shutdown(context.Background()))
	require.Len(t, h.files(), 4)
	require.EqualValues(t, 8, h.counted("pprof.samples", "written"))
	require.Equal(t, []string{
		"checkout_a_20260528T202642Z_cpu_cpu-2.pb.gz",
		"checkout_a_20260528T202642Z_cpu_cpu.pb.gz",
		"checkout_a_20260528T202742Z_cpu_cpu.pb.gz",
		"checkout_b_20260528T202642Z_cpu_cpu.pb.gz",
	}, h.files(), "a name that is taken gets a number")
}

func TestProfilesWithoutATriggerAreWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		resource map[string]string
		want     string
	}{
		"of a container":                      {map[string]string{"service.name": "checkout", "container.id": "4f1c0c6b8a2e"}, "checkout_4f1c0c6b8a2e_20260528T202640Z_none_cpu.pb.gz"},
		"of a process":                        {pprofstest.Checkout(), "checkout_pid-7_20260528T202640Z_none_cpu.pb.gz"},
		"of a process without a service name": {nil, "unknown_service-app_pid-7_20260528T202640Z_none_cpu.pb.gz"},
	} {
		t.Run(name, func(t *testing.T) {
			h := started(t, nil)
			h.send(pprofstest.Input{Resource: tc.resource, Hot: 1})
			h.clock = h.clock.Add(10 * time.Second)
			h.send(pprofstest.Input{Resource: tc.resource, Hot: 1})
			h.due()
			require.Empty(t, h.files())
			for range 10 { // the file is never idle, so only its age ends it
				h.clock = h.clock.Add(5 * time.Second)
				h.send(pprofstest.Input{Resource: tc.resource, Hot: 1})
				h.due()
			}
			require.Equal(t, []string{tc.want}, h.files())
			require.EqualValues(t, 1, h.counted("pprof.files", "age"))
		})
	}
}

func TestHostileServiceNamesStayInTheDirectory(t *testing.T) {
	h := started(t, nil)
	for i, service := range []string{"../../x", "..", "/etc/passwd", ".hidden", "-rf", "a b\n\x00ü", strings.Repeat("long", 100)} {
		h.send(pprofstest.Input{
			Resource: map[string]string{"service.name": service},
			Profile:  pprofstest.Reason(fmt.Sprint("../../unit", i, strings.Repeat("/u", 200)), "t1", ""), Hot: 1,
		})
	}
	require.NoError(t, h.shutdown(context.Background()))
	require.Len(t, h.files(), 7)
	for _, f := range h.files() {
		require.LessOrEqual(t, len(f), 200)
		require.Regexp(t, `^[A-Za-z0-9_][A-Za-z0-9._-]*\.pb\.gz$`, f)
		require.Regexp(t, ours(), f)
	}
	parent, err := os.ReadDir(filepath.Dir(h.cfg.Directory))
	require.NoError(t, err)
	require.Len(t, parent, 1)
}

func TestFailedWriteIsLoggedCountedAndReported(t *testing.T) {
	h := newHarness(t, nil)
	host := &statusHost{Host: componenttest.NewNopHost()}
	h.startOn(host)
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", ""), Hot: 3})
	// Every write fails, because a file has replaced the directory.
	require.NoError(t, os.Remove(h.cfg.Directory))
	require.NoError(t, os.WriteFile(h.cfg.Directory, nil, 0o600))
	h.clock = h.clock.Add(time.Minute)
	h.due()
	require.EqualValues(t, 1, h.counted("pprof.files.failed", ""))
	require.EqualValues(t, 3, h.counted("pprof.samples", "failed"))
	lines := h.logs.FilterMessage("profile not written, its samples are lost").All()
	require.Len(t, lines, 1)
	require.EqualValues(t, 3, lines[0].ContextMap()["samples"])
	require.Contains(t, lines[0].ContextMap()["error"], h.cfg.Directory)
	require.Equal(t, []componentstatus.Status{componentstatus.StatusRecoverableError}, host.reported())

	require.NoError(t, os.Remove(h.cfg.Directory))
	h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t2", ""), Hot: 1})
	h.clock = h.clock.Add(time.Minute)
	h.due()
	require.Len(t, h.files(), 1, "a removed directory is created again")
	require.Equal(t, []componentstatus.Status{componentstatus.StatusRecoverableError, componentstatus.StatusOK}, host.reported())
	require.NoError(t, h.shutdown(context.Background()))
}

type statusHost struct {
	component.Host
	mu   sync.Mutex
	seen []componentstatus.Status
}

func (h *statusHost) Report(e *componentstatus.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = append(h.seen, e.Status())
}

func (h *statusHost) reported() []componentstatus.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.seen)
}

func TestStartFailsIfTheDirectoryIsNotWritable(t *testing.T) {
	for name, make := range map[string]func(*testing.T) string{
		"a file is in its place": func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			return path
		},
		"a file is in its parent's place": func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			return filepath.Join(path, "profiles")
		},
		"it may not be written": func(t *testing.T) string {
			if os.Geteuid() == 0 {
				if _, err := os.Stat("/proc/self/fd"); err != nil {
					t.Skip("root may write everywhere here")
				}
				return "/proc/self/fd"
			}
			path := filepath.Join(t.TempDir(), "read-only")
			require.NoError(t, os.Mkdir(path, 0o550))
			return path
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := make(t)
			h := newHarness(t, func(c *Config) { c.Directory = dir })
			require.ErrorContains(t, h.start(context.Background(), componenttest.NewNopHost()), dir)
			require.NoError(t, h.shutdown(context.Background()))
		})
	}
}

func TestStartAndShutdownInAnyOrder(t *testing.T) {
	create := func(t *testing.T, dir string) xexporter.Profiles {
		f := NewFactory()
		cfg := f.CreateDefaultConfig().(*Config)
		cfg.Directory = dir
		cfg.IdleTimeout = minIdleTimeout
		e, err := f.(xexporter.Factory).CreateProfiles(context.Background(), exportertest.NewNopSettings(metadata.Type), cfg)
		require.NoError(t, err)
		require.False(t, e.Capabilities().MutatesData)
		return e
	}
	ctx := context.Background()
	t.Run("shutdown without start", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "profiles")
		require.NoError(t, create(t, dir).Shutdown(ctx))
		require.NoDirExists(t, dir)
	})
	t.Run("shutdown twice, and consume after it", func(t *testing.T) {
		e := create(t, t.TempDir())
		require.NoError(t, e.Start(ctx, componenttest.NewNopHost()))
		require.NoError(t, e.Shutdown(ctx))
		require.NoError(t, e.Shutdown(ctx))
		require.ErrorContains(t, e.ConsumeProfiles(ctx, pprofstest.Input{Hot: 1}.Build(t)), "shut down")
	})
	t.Run("idle files are written by themselves", func(t *testing.T) {
		dir := t.TempDir()
		e := create(t, dir)
		require.NoError(t, e.Start(ctx, componenttest.NewNopHost()))
		require.NoError(t, e.ConsumeProfiles(ctx, pprofstest.Input{Hot: 1}.Build(t)))
		require.Eventually(t, func() bool {
			files, err := filepath.Glob(filepath.Join(dir, "*.pb.gz"))
			require.NoError(t, err)
			return len(files) == 1
		}, time.Minute, 10*time.Millisecond)
		require.NoError(t, e.Shutdown(ctx))
	})
	t.Run("many consume at once", func(t *testing.T) {
		dir := t.TempDir()
		e := create(t, dir)
		require.NoError(t, e.Start(ctx, componenttest.NewNopHost()))
		var wg sync.WaitGroup
		for i := range 8 {
			in := pprofstest.Input{Profile: pprofstest.Reason(fmt.Sprint("u", i%4), "t", ""), Hot: 5, Cold: 5}.Build(t)
			wg.Go(func() {
				for range 50 {
					if err := e.ConsumeProfiles(ctx, in); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, e.Shutdown(ctx))
		files, err := filepath.Glob(filepath.Join(dir, "*.pb.gz"))
		require.NoError(t, err)
		total := int64(0)
		for _, name := range files {
			f, err := os.Open(name)
			require.NoError(t, err)
			p, err := profile.Parse(f)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			for _, s := range p.Sample {
				total += s.Value[0]
			}
		}
		require.EqualValues(t, 8*50*10, total)
	})
}

func TestConfiguration(t *testing.T) {
	env := func(v string) func(string) string {
		return func(k string) string {
			if k == "STATE_DIRECTORY" {
				return v
			}
			return ""
		}
	}
	require.Equal(t, "profiles", createDefaultConfig(env("")).(*Config).Directory)
	require.Equal(t, "/var/lib/hotprofile", createDefaultConfig(env("/var/lib/hotprofile")).(*Config).Directory)
	list := strings.Join([]string{"/var/lib/a", "/var/lib/b"}, string(os.PathListSeparator))
	require.Equal(t, "/var/lib/a", createDefaultConfig(env(list)).(*Config).Directory)

	good := createDefaultConfig(env("")).(*Config)
	require.NoError(t, good.Validate())
	require.Equal(t, &Config{Directory: "profiles", IdleTimeout: 15 * time.Second, MaxFiles: 100, MaxBytes: 256 * bytesize.MiB}, good)

	err := (&Config{IdleTimeout: -1, MaxFiles: -1, MaxBytes: -1}).Validate()
	for _, key := range []string{"directory", "idle_timeout", "max_files", "max_bytes"} {
		require.ErrorContains(t, err, key+":", "all faults at once")
	}
}

// schema is the part of a JSON schema that the test reads.
type schema struct {
	Properties map[string]struct {
		Default any `yaml:"default"`
	} `yaml:"properties"`
}

func TestSchemaAndReadmeHaveEveryKeyAndItsDefault(t *testing.T) {
	text, err := os.ReadFile("config.schema.yaml")
	require.NoError(t, err)
	var s schema
	require.NoError(t, yaml.Unmarshal(text, &s))
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)

	conf := confmap.New()
	require.NoError(t, conf.Marshal(createDefaultConfig(func(string) string { return "" })))
	have := conf.ToStringMap()
	require.Len(t, s.Properties, len(have))
	for key, value := range have {
		require.Equal(t, fmt.Sprint(value), fmt.Sprint(s.Properties[key].Default), key)
		require.Contains(t, string(readme), "| `"+key+"` |")
	}
}

func TestUnknownKeyIsAnError(t *testing.T) {
	cfg := NewFactory().CreateDefaultConfig()
	err := confmap.NewFromStringMap(map[string]any{"directory": "x", "max_file": 3}).Unmarshal(cfg)
	require.ErrorContains(t, err, "max_file")
}

func TestMalformedSamplesAreDroppedAndCounted(t *testing.T) {
	h := started(t, nil)
	p := pprofile.NewProfiles()
	pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", ""), Hot: 3, Cold: 2}.Build(t).CopyTo(p)
	profileOf(p).Samples().At(0).SetStackIndex(99)
	require.NoError(t, h.consume(context.Background(), p))
	require.NoError(t, h.shutdown(context.Background()))
	require.EqualValues(t, 3, h.counted("pprof.samples", "malformed"))
	require.EqualValues(t, 2, h.counted("pprof.samples", "written"))
}

// FuzzConvert converts arbitrary requests. The files must be valid and contain each
// sample once. At the end, the estimated memory must have its initial value again.
func FuzzConvert(f *testing.F) {
	seed := pprofile.NewProfiles()
	pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", ""), Hot: 3, Cold: 2, Stacks: 20}.Build(f).CopyTo(seed)
	b, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(seed)
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(in)
		if err != nil {
			return
		}
		o := newOpenFiles()
		o.maxFileMemory = 32 << 10
		sent, got := int64(0), int64(0)
		read := func(done []*openFile) {
			for _, f := range done {
				out := f.pprof.Finish(f.main().executable)
				pprofconv.Hottest(out, 5)
				require.NoError(t, out.CheckValid())
				require.Regexp(t, ours(), f.name()+extension)
				got += int64(f.pprof.Events())
			}
		}
		d := dictionary.NewReader(p.Dictionary())
		for _, rp := range p.ResourceProfiles().All() {
			of := sourceOf(rp.Resource().Attributes())
			for _, sp := range rp.ScopeProfiles().All() {
				for _, one := range sp.Profiles().All() {
					sent += pprofconv.Part{Profile: one}.Events(0)
					for _, part := range pprofconv.PartsOf(d.ProfileType(one), one) {
						for from := 0; from < part.Len(); {
							done, a := o.add(d, of, part, from, 4<<10, time.Time{})
							require.Greater(t, a.Next, from)
							from = a.Next
							got += int64(a.Malformed)
							read(done)
						}
					}
				}
			}
		}
		read(o.all())
		require.Equal(t, sent, got)
		require.Zero(t, o.memory)
		require.Empty(t, o.files)
	})
}
