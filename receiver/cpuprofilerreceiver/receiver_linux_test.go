// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/hosttest"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/conformance"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
)

// patience is how long tests wait for what the real kernel does.
const patience = 30 * time.Second

// running is a started receiver and what came out of it.
type running struct {
	t         *testing.T
	sink      *consumertest.ProfilesSink
	logs      *observer.ObservedLogs
	telemetry *componenttest.Telemetry
	component component.Component
	started   time.Time

	mu       sync.Mutex
	statuses []*componentstatus.Event
}

// Report takes the component's status.
func (r *running) Report(e *componentstatus.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.statuses = append(r.statuses, e)
}

// GetExtensions returns none.
func (r *running) GetExtensions() map[component.ID]component.Component { return nil }

// start starts a receiver with short intervals. It is shut down at the end of
// the test.
func start(t *testing.T, change func(*Config)) *running {
	return startTo(t, nil, change)
}

// startTo is start with a consumer of the test's own.
func startTo(t *testing.T, next xconsumer.Profiles, change func(*Config)) *running {
	t.Helper()
	r := &running{t: t, sink: new(consumertest.ProfilesSink), telemetry: componenttest.NewTelemetry(), started: time.Now()}
	if next == nil {
		next = r.sink
	}
	cfg := createDefaultConfig()
	cfg.ExportInterval = 200 * time.Millisecond
	cfg.DiscoveryInterval = 100 * time.Millisecond
	cfg.Frequency = 499
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	core, logs := observer.New(zap.DebugLevel)
	r.logs = logs
	set := receivertest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = r.telemetry.NewTelemetrySettings()
	set.Logger = zap.New(core)
	var err error
	r.component, err = NewFactory().(xreceiver.Factory).CreateProfiles(context.Background(), set, cfg, next)
	require.NoError(t, err)
	require.NoError(t, r.component.Start(context.Background(), r))
	t.Cleanup(r.stop)
	return r
}

func (r *running) stop() {
	require.NoError(r.t, r.component.Shutdown(context.Background()))
	if r.t.Failed() {
		for _, l := range r.logs.Filter(func(l observer.LoggedEntry) bool { return l.Level > zap.DebugLevel }).All() {
			r.t.Logf("%s %s %v", l.Level, l.Message, l.ContextMap())
		}
	}
}

// until waits for a condition on the profiles so far.
func (r *running) until(what string, ok func([]row) bool) []row {
	r.t.Helper()
	var last []row
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if last = rows(r.sink.AllProfiles()); ok(last) {
			return last
		}
	}
	r.t.Fatalf("not within %v: %s; %d kinds of samples came", patience, what, len(last))
	return nil
}

// row is one kind of sample, in words.
type row struct {
	resource  map[string]any
	attrs     map[string]any
	functions []string // the leaf first, inlined calls expanded
	lines     []int64
	types     []string
	events    int
}

func (r row) has(function string) bool {
	return slices.ContainsFunc(r.functions, func(f string) bool { return strings.Contains(f, function) })
}

func rows(all []pprofile.Profiles) (out []row) {
	for _, ps := range all {
		d := ps.Dictionary()
		text := func(i int32) string { return d.StringTable().At(int(i)) }
		attributes := func(indices []int32) map[string]any {
			m := make(map[string]any)
			for _, i := range indices {
				a := d.AttributeTable().At(int(i))
				m[text(a.KeyStrindex())] = a.Value().AsRaw()
			}
			return m
		}
		for _, rp := range ps.ResourceProfiles().All() {
			resource := rp.Resource().Attributes().AsRaw()
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					for _, s := range p.Samples().All() {
						r := row{resource: resource, attrs: attributes(s.AttributeIndices().AsRaw()), events: s.TimestampsUnixNano().Len()}
						for _, li := range d.StackTable().At(int(s.StackIndex())).LocationIndices().All() {
							l := d.LocationTable().At(int(li))
							kind, _ := attributes(l.AttributeIndices().AsRaw())["profile.frame.type"].(string)
							for _, line := range l.Lines().All() {
								r.functions = append(r.functions, text(d.FunctionTable().At(int(line.FunctionIndex())).NameStrindex()))
								r.lines = append(r.lines, line.Line())
								r.types = append(r.types, kind)
							}
							if l.Lines().Len() == 0 {
								r.functions = append(r.functions, "?")
								r.lines = append(r.lines, 0)
								r.types = append(r.types, kind)
							}
						}
						out = append(out, r)
					}
				}
			}
		}
	}
	return out
}

// conforms fails the test where what came breaks a rule of some backend.
func (r *running) conforms() {
	r.t.Helper()
	for i, p := range r.sink.AllProfiles() {
		for _, v := range conformance.Check(p, conformance.Options{Now: time.Now()}) {
			r.t.Errorf("request %d: %v", i, v)
		}
	}
}

// needHostWide skips where the whole host may not be sampled.
func needHostWide(t *testing.T) {
	t.Helper()
	if err := perfevent.Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
}

// program builds a program in testdata once.
func program(t *testing.T, name string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	var build *exec.Cmd
	if source := filepath.Join("testdata", name+".c"); exists(source) {
		cc, err := exec.LookPath("cc")
		if err != nil {
			t.Skip("no C compiler")
		}
		build = exec.Command(cc, "-O1", "-fno-omit-frame-pointer", "-pthread", "-o", out, source)
	} else {
		build = exec.Command("go", "build", "-o", out, "./"+filepath.Join("testdata", name))
	}
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// run starts a command and kills it at the end of the test.
func run(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func TestReceiverSamplesTheWholeHostWithNames(t *testing.T) {
	needHostWide(t)
	busy := exec.Command(program(t, "busy"))
	busy.Env = append(os.Environ(), "OTEL_SERVICE_NAME=checkout")
	run(t, busy)
	r := start(t, nil)
	got := r.until("a Go stack with an inlined call, down to its root", func(rows []row) bool {
		return slices.ContainsFunc(rows, func(r row) bool {
			return r.has("main.inlined") && r.has("main.outer") && r.has("runtime.goexit")
		})
	})
	for _, row := range got {
		if !row.has("main.inlined") {
			continue
		}
		require.Equal(t, "checkout", row.resource["service.name"])
		require.Equal(t, "busy", row.resource["process.executable.name"])
		require.EqualValues(t, busy.Process.Pid, row.resource["process.pid"])
		require.Equal(t, "busy", row.attrs["thread.name"])
		require.NotContains(t, row.attrs, "thread.id")
		i := slices.Index(row.functions, "main.outer")
		require.Equal(t, "main.inlined", row.functions[i-1])
		require.Equal(t, "go", row.types[i])
		require.Positive(t, row.lines[i])
		require.Equal(t, "runtime.goexit", row.functions[len(row.functions)-1])
		require.NotContains(t, row.attrs, "hotprofile.stack.truncated")
	}
	for _, row := range got {
		require.NotEqualValues(t, os.Getpid(), row.resource["process.pid"], "the collector itself")
		require.NotEqualValues(t, 0, row.resource["process.pid"], "the idle task")
	}
	r.stop()
	r.conforms()
	require.Equal(t, 1, r.logs.FilterMessage("sampling started").Len())
	require.EqualValues(t, sampleEvents(r.sink.AllProfiles()), counted(t, r.telemetry)["exported"])
}
