// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/allocs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/offcpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/oncpu"
	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// patience is the longest time that a test waits for an event
// of the kernel or of a program.
const patience = time.Minute

// partOf returns the receiver's part of the given type. It returns nil if
// the receiver has no such part.
func partOf[T any](r component.Component) (found T) {
	for _, part := range r.(*profiler).parts {
		if of, ok := part.(T); ok {
			return of
		}
	}
	return found
}

// running is a started receiver with the profiles, logs and
// telemetry that it has produced.
type running struct {
	t         *testing.T
	sink      *consumertest.ProfilesSink
	logs      *observer.ObservedLogs
	telemetry *componenttest.Telemetry
	component component.Component
	started   time.Time
	// extensions are the extensions of the receiver's host.
	extensions map[component.ID]component.Component
	// decoded contains the rows of the first seen requests of sink. Decoding all requests
	// again at each look of until would use most of the test's CPU time.
	decoded []row
	seen    int

	mu       sync.Mutex
	statuses []*componentstatus.Event
}

func (r *running) Report(e *componentstatus.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.statuses = append(r.statuses, e)
}

func (r *running) GetExtensions() map[component.ID]component.Component { return r.extensions }

// start starts a receiver with short intervals. The receiver is
// shut down at the end of the test.
func start(t *testing.T, change func(*Config)) *running {
	return startTo(t, nil, change)
}

// startTo does the same as start, but with the given consumer and extensions. If next is
// nil, the profiles go to r.sink.
func startTo(t *testing.T, next xconsumer.Profiles, change func(*Config), extensions ...component.Component) *running {
	t.Helper()
	return startWithin(t, exportTimeout, next, change, extensions...)
}

// startWithin does the same as startTo, but with another deadline for a batch.
func startWithin(t *testing.T, timeout time.Duration, next xconsumer.Profiles, change func(*Config), extensions ...component.Component) *running {
	t.Helper()
	with := make(map[component.ID]component.Component)
	for i, e := range extensions {
		with[component.MustNewIDWithName("extension", strconv.Itoa(i))] = e
	}
	r := &running{extensions: with, t: t, sink: new(consumertest.ProfilesSink), telemetry: componenttest.NewTelemetry(), started: time.Now()}
	if next == nil {
		next = r.sink
	}
	cfg := createDefaultConfig()
	cfg.ExportInterval = 200 * time.Millisecond
	cfg.DiscoveryInterval = 100 * time.Millisecond
	cfg.Frequency = 499
	cfg.MaxOverhead = 0 // sampling must not back off on a busy machine
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
	r.component.(*profiler).exportTimeout = timeout
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

// reset forgets all received profiles.
func (r *running) reset() {
	r.sink.Reset()
	r.decoded, r.seen = nil, 0
}

// until waits until a condition on all received profiles is true.
func (r *running) until(what string, ok func([]row) bool) []row {
	r.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		all := r.sink.AllProfiles()
		r.decoded, r.seen = append(r.decoded, rows(all[r.seen:])...), len(all)
		if ok(r.decoded) {
			return r.decoded
		}
	}
	r.t.Fatalf("not within %v: %s; %d kinds of samples came", patience, what, len(r.decoded))
	return nil
}

func (r *running) telemetryGauge(name string) int64 {
	m, err := r.telemetry.GetMetric(name)
	require.NoError(r.t, err)
	return m.Data.(metricdata.Gauge[int64]).DataPoints[0].Value
}

// row is a decoded sample.
type row struct {
	resource  map[string]any
	attrs     map[string]any
	functions []string // from the leaf to the root, with inlined calls expanded
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

// conforms reports an error for each received profile that breaks a rule of a backend.
func (r *running) conforms() {
	r.t.Helper()
	options := conformancetest.Options{Now: time.Now(), SampleAttributes: []string{"thread.id"}}
	for i, p := range r.sink.AllProfiles() {
		for _, v := range conformancetest.Check(p, options) {
			r.t.Errorf("request %d: %v", i, v)
		}
	}
}

// needHostWide skips the test if sampling of the whole host is not permitted.
func needHostWide(t *testing.T) {
	t.Helper()
	if err := perfevent.Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
}

// program builds a program from testdata and returns the path of the executable.
func program(t *testing.T, name string) string {
	t.Helper()
	return hosttest.Compiled(t, name, name, func(out string) {
		var build *exec.Cmd
		if source := filepath.Join("testdata", name+".c"); exists(source) {
			cc := hosttest.Tool(t, "cc")
			build = exec.Command(cc, "-O1", "-fno-omit-frame-pointer", "-pthread", "-o", out, source)
		} else {
			build = exec.Command("go", "build", "-o", out, filepath.Join("../../test/testdata", name))
		}
		text, err := build.CombinedOutput()
		require.NoError(t, err, "%s", text)
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// run starts a command. The process is killed at the end of the test.
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

func TestReceiverFollowsAThreadThatStartsLater(t *testing.T) {
	cmd := run(t, exec.Command(program(t, "threads")))
	r := start(t, func(c *Config) {
		c.Targets = []TargetConfig{{PID: cmd.Process.Pid}}
		c.ThreadAttributes = []string{"thread.name", "thread.id"}
	})
	got := r.until("a C stack of the thread", func(rows []row) bool {
		return slices.ContainsFunc(rows, func(r row) bool {
			return r.attrs["thread.name"] == "worker" && r.has("c_leaf")
		})
	})
	for _, row := range got {
		require.EqualValues(t, cmd.Process.Pid, row.resource["process.pid"], "only what was asked for")
		if row.attrs["thread.name"] == "worker" {
			require.NotEqualValues(t, cmd.Process.Pid, row.attrs["thread.id"])
		}
	}
	r.stop()
	r.conforms()
}

func TestReceiverFindsATargetThatAppearsLaterAndFollowsItsEnd(t *testing.T) {
	binary := program(t, "busy")
	r := start(t, func(c *Config) { c.Targets = []TargetConfig{{Executable: filepath.Dir(binary) + "/*"}} })
	missing := func() int { return r.logs.FilterMessage("target not found, searching again").Len() }
	require.Eventually(t, func() bool { return missing() == 1 }, patience, time.Millisecond)
	require.Eventually(t, func() bool { return r.logs.FilterMessage("sampling started").Len() == 1 }, patience, time.Millisecond)

	for range 2 { // the second process starts after the first process has ended
		r.reset()
		cmd := exec.Command(binary)
		run(t, cmd)
		r.until("samples of the target", func(rows []row) bool {
			return slices.ContainsFunc(rows, func(r row) bool {
				return r.resource["process.pid"] == int64(cmd.Process.Pid) && r.has("main.inlined")
			})
		})
		before := missing()
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.Eventually(t, func() bool { return missing() == before+1 }, patience, time.Millisecond)
	}
}

// TestReceiverLogsAMissingTargetOnceWhateverIsSampled checks that a missing target is logged
// only once, although all enabled samplers look for the same targets.
func TestReceiverLogsAMissingTargetOnceWhateverIsSampled(t *testing.T) {
	needHostWide(t)
	offCPU := func(when sampler.When) func(*Config) {
		cfg := offcpu.DefaultConfig()
		cfg.When = when
		return func(c *Config) { c.OffCPU = configoptional.Some(cfg) }
	}
	allocations := func(when sampler.When) func(*Config) {
		cfg := allocs.DefaultConfig()
		cfg.When = when
		return func(c *Config) { c.Allocations = configoptional.Some(cfg) }
	}
	for name, enable := range map[string][]func(*Config){
		"on-CPU":                      {func(c *Config) { c.CPU.Enabled = true }},
		"off-CPU":                     {offCPU(sampler.WhenAlways)},
		"off-CPU, nothing is hot":     {offCPU(sampler.WhenHot)},
		"allocations":                 {allocations(sampler.WhenAlways)},
		"allocations, nothing is hot": {allocations(sampler.WhenHot)},
		"all":                         {func(c *Config) { c.CPU.Enabled = true }, offCPU(sampler.WhenAlways), allocations(sampler.WhenAlways)},
	} {
		t.Run(name, func(t *testing.T) {
			sleep := filepath.Join(t.TempDir(), "sleep")
			binary, err := os.ReadFile("/bin/sleep")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(sleep, binary, 0o700))
			ext := newHotUnits(t)
			r := startTo(t, nil, func(c *Config) {
				c.CPU.Enabled = false
				c.Targets = []TargetConfig{{Executable: sleep}}
				for _, e := range enable {
					e(c)
				}
			}, ext)
			missing := func() int { return r.logs.FilterMessage("target not found, searching again").Len() }
			found := func() int { return r.logs.FilterMessage("target found").Len() }
			require.Eventually(t, func() bool { return missing() == 1 }, patience, time.Millisecond)
			cmd := run(t, exec.Command(sleep, "600"))
			require.Eventually(t, func() bool { return found() == 1 }, patience, time.Millisecond)
			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait()
			require.Eventually(t, func() bool { return missing() == 2 }, patience, time.Millisecond)
			r.stop()
			require.Equal(t, 2, missing())
			require.Equal(t, 1, found())
		})
	}
}

func TestReceiverFollowsExec(t *testing.T) {
	needHostWide(t)
	binary := program(t, "busy")
	// The shell spins until the file exists, and then executes the other program.
	flag := filepath.Join(t.TempDir(), "now")
	cmd := run(t, exec.Command("/bin/sh", "-c", `while ! test -e "$0"; do :; done; exec "$1"`, flag, binary))
	r := start(t, nil)
	of := func(name, function string) func([]row) bool {
		return func(rows []row) bool {
			return slices.ContainsFunc(rows, func(r row) bool {
				return r.resource["process.pid"] == int64(cmd.Process.Pid) && r.resource["process.executable.name"] == name && r.has(function)
			})
		}
	}
	r.until("samples of the shell", of("sh", ""))
	require.NoError(t, os.WriteFile(flag, nil, 0o600))
	r.until("samples of the program after exec", of("busy", "main.inlined"))
	r.stop()
	r.conforms()
}

func TestReceiverSamplesOneCgroupAndNotItsNeighbour(t *testing.T) {
	needHostWide(t)
	binary := program(t, "busy")
	in, out := hosttest.NewCgroup(t, "hotprofile-receiver-in"), hosttest.NewCgroup(t, "hotprofile-receiver-out")
	for name, target := range map[string]string{"by path": in.Path, "by glob": in.Path[:len(in.Path)-3] + "*"} {
		t.Run(name, func(t *testing.T) {
			inside, outside := run(t, in.Command(binary)), run(t, out.Command(binary))
			r := start(t, func(c *Config) { c.Targets = []TargetConfig{{Cgroup: target}} })
			got := r.until("samples of the cgroup", func(rows []row) bool {
				return slices.ContainsFunc(rows, func(r row) bool {
					return r.resource["process.pid"] == int64(inside.Process.Pid) && r.has("main.inlined")
				})
			})
			for _, row := range got {
				require.NotEqualValues(t, outside.Process.Pid, row.resource["process.pid"])
				require.Equal(t, in.Path, row.resource["process.linux.cgroup"])
			}
			r.stop()
			r.conforms()
		})
	}
}

func TestReceiverSamplesAContainerByThePrefixOfItsID(t *testing.T) {
	needHostWide(t)
	id := fmt.Sprintf("%012x%052x", os.Getpid(), time.Now().UnixNano())
	c := hosttest.NewCgroupCalled(t, "docker-"+id+".scope")
	run(t, c.Command(program(t, "busy")))
	r := start(t, func(cfg *Config) { cfg.Targets = []TargetConfig{{ContainerID: id[:12]}} })
	for _, row := range r.until("samples of the container", func(rows []row) bool {
		return slices.ContainsFunc(rows, func(r row) bool { return r.has("main.inlined") })
	}) {
		require.Equal(t, id, row.resource["container.id"])
	}
	r.stop()
	r.conforms()
}

func TestReceiverFiltersByTargetWhereTheirOwnEventsWouldBeTooMany(t *testing.T) {
	needHostWide(t)
	cpus, err := perfevent.OnlineCPUs()
	require.NoError(t, err)
	binary := program(t, "busy")
	wanted, other := run(t, exec.Command(binary)), run(t, exec.Command(binary))
	// Each thread of a target needs a perf event on each CPU.
	require.Eventually(t, func() bool {
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", wanted.Process.Pid))
		return len(threads) > 3
	}, patience, time.Millisecond)
	r := start(t, func(c *Config) {
		c.Targets = []TargetConfig{{PID: wanted.Process.Pid}}
		c.MaxPerfEvents = max(8, 3*len(cpus))
	})
	for _, row := range r.until("samples of the target", func(rows []row) bool {
		return slices.ContainsFunc(rows, func(r row) bool { return r.has("main.inlined") })
	}) {
		require.EqualValues(t, wanted.Process.Pid, row.resource["process.pid"], "not of %d", other.Process.Pid)
	}
	started := r.logs.FilterMessage("sampling started").All()
	require.Len(t, started, 1)
	require.Contains(t, started[0].ContextMap()["what"], "by events on all of")
	require.Contains(t, started[0].ContextMap()["why"], "perf events")
}

// TestReceiverProfilesHaveTheCPUTimeOfTheirProcess compares the CPU time in the profiles'
// attribute with the CPU time that the number of samples represents. The two times must be
// close to each other, because the test program seldom sleeps.
func TestReceiverProfilesHaveTheCPUTimeOfTheirProcess(t *testing.T) {
	needHostWide(t)
	cmd := run(t, exec.Command(program(t, "busy"), "always"))
	r := start(t, func(c *Config) { c.Targets = []TargetConfig{{PID: cmd.Process.Pid}} })
	charged := func() (all time.Duration) {
		for _, ps := range r.sink.AllProfiles() {
			for _, rp := range ps.ResourceProfiles().All() {
				for _, p := range rp.ScopeProfiles().At(0).Profiles().All() {
					for k, v := range dictionary.NewReader(ps.Dictionary()).Attributes(p.AttributeIndices()) {
						if k == "hotprofile.cpu.time" {
							ns, err := strconv.ParseInt(v.Str(), 10, 64)
							require.NoError(t, err)
							all += time.Duration(ns)
						}
					}
				}
			}
		}
		return all
	}
	r.until("a CPU time", func([]row) bool { return charged() > 0 })
	r.until("two seconds of CPU time", func([]row) bool { return charged() > 2*time.Second })
	r.stop()
	sampled := float64(eventsBetween(r.sink.AllProfiles(), time.Time{}, time.Now().Add(time.Hour))) / 499
	require.InDelta(t, charged().Seconds(), sampled, charged().Seconds()/3)
	require.LessOrEqual(t, charged(), cpuTime(t, cmd.Process.Pid))
}

func TestReceiverSamplesACgroupThatComesBackUnderItsName(t *testing.T) {
	needHostWide(t)
	binary := program(t, "busy")
	name := fmt.Sprintf("hotprofile-receiver-again-%d", os.Getpid())
	r := start(t, func(c *Config) { c.Targets = []TargetConfig{{Cgroup: "/" + name}} })
	for range 2 {
		r.reset()
		c := hosttest.NewCgroupCalled(t, name)
		cmd := c.Command(binary)
		require.NoError(t, cmd.Start())
		r.until("samples of the cgroup", func(rows []row) bool {
			return slices.ContainsFunc(rows, func(r row) bool {
				return r.resource["process.pid"] == int64(cmd.Process.Pid) && r.has("main.inlined")
			})
		})
		c.Remove(t)
		_ = cmd.Wait()
	}
}

func TestKernelReceiverSamplesAProcessOfTwoTargetsOnce(t *testing.T) {
	needHostWide(t)
	binary := program(t, "busy")
	c := hosttest.NewCgroup(t, "hotprofile-receiver-twice")
	cmd := run(t, c.Command(binary, "always"))
	r := start(t, func(cfg *Config) {
		cfg.Targets = []TargetConfig{{Cgroup: c.Path}, {Cgroup: c.Path + "*"}, {PID: cmd.Process.Pid}, {Executable: binary}}
	})
	r.until("samples", func(rows []row) bool { return len(rows) > 0 })
	// Events are counted by their timestamps, because events that are exported after this
	// moment may have been sampled before.
	from, before := time.Now(), cpuTime(t, cmd.Process.Pid)
	r.until("two seconds of the process's CPU time", func([]row) bool { return cpuTime(t, cmd.Process.Pid)-before > 2*time.Second })
	to, used := time.Now(), cpuTime(t, cmd.Process.Pid)-before
	r.until("what was sampled until then", func([]row) bool { return eventsBetween(r.sink.AllProfiles(), to, to.Add(time.Hour)) > 0 })
	want := used.Seconds() * 499
	require.InDelta(t, want, eventsBetween(r.sink.AllProfiles(), from, to), want/4, "twice as many were one target too many")
}

// eventsBetween counts the events whose timestamps are between from and to.
func eventsBetween(all []pprofile.Profiles, from, to time.Time) (n int) {
	for _, ps := range all {
		for _, rp := range ps.ResourceProfiles().All() {
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					for _, s := range p.Samples().All() {
						for _, at := range s.TimestampsUnixNano().All() {
							if when := time.Unix(0, int64(at)); when.After(from) && when.Before(to) {
								n++
							}
						}
					}
				}
			}
		}
	}
	return n
}

// cpuTime returns the CPU time of a process, summed over
// its threads that are still alive.
func cpuTime(t *testing.T, pid int) (used time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var ns int64
		_, err = fmt.Sscan(string(text), &ns)
		require.NoError(t, err)
		used += time.Duration(ns)
	}
	return used
}

func TestReceiverKnowsTheCgroupOfProcessesThatLiveForMilliseconds(t *testing.T) {
	needHostWide(t)
	cgroup := hosttest.NewCgroup(t, "hotprofile-receiver-short")
	// Each of these processes uses about 20 ms of CPU time.
	shell := cgroup.Command("/bin/sh", "-c", `while :; do /bin/sh -c 'i=0; while [ $i -lt 8000 ]; do i=$((i+1)); done' & echo $!; wait $!; done`)
	out, err := shell.StdoutPipe()
	require.NoError(t, err)
	run(t, shell)
	var ours sync.Map // the set of the pids of our processes
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if pid, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				ours.Store(pid, true)
			}
		}
	}()
	r := start(t, func(c *Config) { c.Frequency = 999 })
	events := func(rows []row) (inside, astray int) {
		for _, row := range rows {
			if _, known := ours.Load(row.resource["process.pid"]); !known {
				continue // processes of other programs start and end too
			}
			if row.resource["process.linux.cgroup"] == cgroup.Path {
				inside += row.events
			} else {
				astray += row.events
			}
		}
		return inside, astray
	}
	got := r.until("500 samples", func(rows []row) bool { inside, _ := events(rows); return inside > 500 })
	inside, astray := events(got)
	t.Logf("%d samples in the cgroup, %d elsewhere", inside, astray)
	require.Less(t, astray, inside/20)
}

func TestReceiverPausesWhenBuffersAreFullAndRecovers(t *testing.T) {
	needHostWide(t)
	run(t, exec.Command(program(t, "busy"), "always"))
	var blocked atomic.Bool
	blocked.Store(true)
	sink := new(consumertest.ProfilesSink)
	called, release := make(chan struct{}), make(chan struct{})
	next := consumerOf(func(ctx context.Context, p pprofile.Profiles) error {
		if blocked.Load() {
			close(called)
			<-release // the consumer blocks even after the deadline
			<-ctx.Done()
			return ctx.Err()
		}
		return sink.ConsumeProfiles(ctx, p)
	})
	r := startWithin(t, 50*time.Millisecond, next, func(c *Config) {
		c.BufferSize = 64 * bytesize.KiB
		c.ThreadAttributes = []string{"thread.name", "thread.id"}
		c.Frequency = 999
	})
	full := "Skipping a thread sample period, buffers are full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **"
	<-called
	require.Eventually(t, func() bool { return r.telemetryGauge("otelcol_cpu_profiler.buffer.usage") == 64<<10 }, patience, time.Millisecond)
	require.Eventually(t, func() bool { return r.logs.FilterMessage(full).Len() > 0 }, patience, time.Millisecond)
	time.Sleep(20 * time.Millisecond) // some sample periods pass and are skipped

	blocked.Store(false)
	close(release)
	require.Eventually(t, func() bool { return sampleEvents(sink.AllProfiles()) > 0 }, patience, time.Millisecond)
	again := func() *observer.ObservedLogs { return r.logs.FilterMessage("sampling resumed, a buffer is free again") }
	require.Eventually(t, func() bool { return again().Len() > 0 }, patience, time.Millisecond)

	sink.Reset()
	require.Eventually(t, func() bool { return sampleEvents(sink.AllProfiles()) > 100 }, patience, time.Millisecond)
	sampler := partOf[interface{ Stats() oncpu.Stats }](r.component)
	r.stop()
	ended := again().Len() + r.logs.FilterMessage("sampling ended while both buffers were full").Len()
	require.Equal(t, r.logs.FilterMessage(full).Len(), ended, "one line at each end of an episode")
	sum := int64(0)
	for _, n := range counted(t, r.telemetry) {
		sum += n
	}
	require.EqualValues(t, sampler.Stats().Read, sum, "what was read is the sum of what left")
	require.Equal(t, 1, r.logs.FilterMessage("next component refused profiles, dropping them").Len())
	require.Positive(t, counted(t, r.telemetry)["refused"])
	skipped, err := r.telemetry.GetMetric("otelcol_cpu_profiler.periods.skipped")
	require.NoError(t, err)
	require.Positive(t, skipped.Data.(metricdata.Sum[int64]).DataPoints[0].Value)
}

func TestReceiverShutdownWhileAConsumerBlocks(t *testing.T) {
	needHostWide(t)
	run(t, exec.Command(program(t, "busy")))
	called := make(chan struct{}, 1000)
	next := consumerOf(func(ctx context.Context, _ pprofile.Profiles) error {
		called <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	r := startWithin(t, 100*time.Millisecond, next, nil)
	<-called
	r.stop()
	r.stop()
	got := counted(t, r.telemetry)
	require.Positive(t, got["refused"])
	require.Zero(t, got["exported"])
}

// TestReceiverGoesOnBesideAFileThatDoesNotAnswer covers a file system that stops
// responding while symbols are read from it. Profiles of another program must still be
// exported. The component's status and a metric must report the blocked read. Shutdown
// must not wait for the read.
func TestReceiverGoesOnBesideAFileThatDoesNotAnswer(t *testing.T) {
	local := program(t, "busy")
	content, err := os.ReadFile(local)
	require.NoError(t, err)
	mount := hosttest.NewMount(t, map[string][]byte{"remote": content})
	// This process serves the file system, so it would wait for itself if it executed a
	// program from the mount. A shell starts the program instead.
	remote := exec.Command("sh", "-c", `"$0" & read line; kill $!`, filepath.Join(mount.Dir, "remote"))
	in, err := remote.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, remote.Start())
	t.Cleanup(func() {
		mount.Go()
		_ = in.Close()
		_ = remote.Wait()
	})
	neighbour := run(t, exec.Command(local))
	busy := func() bool {
		all, err := filepath.Glob("/proc/[0-9]*/exe")
		require.NoError(t, err)
		return slices.ContainsFunc(all, func(exe string) bool {
			if path, _ := os.Readlink(exe); path != filepath.Join(mount.Dir, "remote") {
				return false
			}
			content, _ := os.ReadFile(filepath.Join(filepath.Dir(exe), "schedstat"))
			used, _, _ := strings.Cut(string(content), " ")
			ns, _ := strconv.Atoi(used)
			return time.Duration(ns) > 200*time.Millisecond
		})
	}
	// After 200 ms of CPU time, the program has read all parts of its file that it needs.
	// Otherwise the program itself would block on the file system.
	require.Eventually(t, busy, patience, 10*time.Millisecond)
	mount.Stop()

	r := start(t, func(c *Config) {
		c.Targets = []TargetConfig{{Executable: filepath.Dir(local) + "/*"}, {Executable: mount.Dir + "/*"}}
	})
	waiting := func(e *componentstatus.Event) bool {
		return e.Status() == componentstatus.StatusRecoverableError && strings.Contains(e.Err().Error(), "do not return")
	}
	last := func() *componentstatus.Event {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.statuses) == 0 {
			return new(componentstatus.Event)
		}
		return r.statuses[len(r.statuses)-1]
	}
	require.Eventually(t, func() bool { return waiting(last()) }, patience, 10*time.Millisecond)
	require.Positive(t, r.telemetryGauge("otelcol_cpu_profiler.reads.waiting"))
	require.Positive(t, r.logs.FilterMessage("a file does not answer; going on without it").Len())
	r.reset()
	r.until("names of another program, and samples of this one", func(rows []row) bool {
		return slices.ContainsFunc(rows, func(r row) bool {
			return r.resource["process.pid"] == int64(neighbour.Process.Pid) && r.has("main.inlined")
		}) && slices.ContainsFunc(rows, func(r row) bool { return r.resource["process.executable.name"] == "remote" })
	})
	stopped := make(chan error, 1)
	go func() { stopped <- r.component.Shutdown(context.Background()) }()
	select {
	case err := <-stopped:
		require.NoError(t, err)
	case <-time.After(2 * patience):
		t.Fatal("the end waits for the file")
	}
	require.NotZero(t, mount.Asked(), "it still does not answer")
	mount.Go()
	require.Eventually(t, func() bool { return last().Status() == componentstatus.StatusOK }, patience, 10*time.Millisecond)
}

func TestReceiverWithNothingEnabledLogsThat(t *testing.T) {
	r := start(t, func(c *Config) { c.CPU.Enabled = false })
	require.Equal(t, 1, r.logs.FilterMessageSnippet("nothing is sampled").Len())
}

func TestReceiverRefusesARootThatIsNotThere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, root := range []string{filepath.Join(t.TempDir(), "hostfs"), file} {
		cfg := createDefaultConfig()
		cfg.RootPath = root
		c, err := NewFactory().(xreceiver.Factory).CreateProfiles(context.Background(), receivertest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop())
		require.NoError(t, err)
		require.ErrorContains(t, c.Start(context.Background(), componenttest.NewNopHost()), "root_path")
		require.NoError(t, c.Shutdown(context.Background()))
	}
}

func TestReceiverLogsItsConfigurationOnce(t *testing.T) {
	r := start(t, nil)
	lines := r.logs.FilterMessage("Continuous profiling configuration:").All()
	require.Len(t, lines, 1)
	require.Equal(t, zap.DebugLevel, lines[0].Level)
	require.Contains(t, fmt.Sprint(lines[0].ContextMap()["cpu_profiler"]), "export_interval:200ms")
}

// asNobody runs the test again in a new process, whose account has no privileges. In the new
// process, asNobody returns true, and the test's body must run.
func asNobody(t *testing.T) (again bool) {
	t.Helper()
	if os.Getenv("HOTPROFILE_TEST_AS_NOBODY") == "1" {
		return true
	}
	if os.Geteuid() != 0 {
		return true // a user other than root has no rights to drop
	}
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "hotprofile-nobody")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777))
	binary := filepath.Join(dir, "test")
	require.NoError(t, os.WriteFile(binary, self, 0o755))
	busy, err := os.ReadFile(program(t, "busy"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "busy"), busy, 0o755))
	cmd := exec.Command(binary, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOTPROFILE_TEST_AS_NOBODY=1", "HOTPROFILE_TEST_BUSY="+filepath.Join(dir, "busy"), "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	text, err := cmd.CombinedOutput()
	t.Logf("as nobody:\n%s", text)
	require.NoError(t, err)
	if strings.Contains(string(text), "--- SKIP") {
		t.Skip("skipped as nobody")
	}
	return false
}

func TestReceiverWithoutRightsSamplesTheUsersOwnProcesses(t *testing.T) {
	if !asNobody(t) {
		return
	}
	rights := perfevent.Probe()
	if rights.Own != nil {
		t.Skip(rights.Own)
	}
	if rights.HostWide == nil {
		t.Skip("this host lets everyone sample everything")
	}
	busy := os.Getenv("HOTPROFILE_TEST_BUSY")
	if busy == "" {
		busy = program(t, "busy")
	}
	cmd := run(t, exec.Command(busy))
	r := start(t, nil)
	r.until("samples of an own process", func(rows []row) bool {
		return slices.ContainsFunc(rows, func(r row) bool {
			return r.resource["process.pid"] == int64(cmd.Process.Pid) && r.has("main.inlined")
		})
	})
	later := run(t, exec.Command(busy))
	got := r.until("samples of one that started later", func(rows []row) bool {
		return slices.ContainsFunc(rows, func(r row) bool {
			return r.resource["process.pid"] == int64(later.Process.Pid) && r.has("main.inlined")
		})
	})
	for _, row := range got {
		require.NotEqualValues(t, os.Getpid(), row.resource["process.pid"], "the collector itself")
	}
	r.stop()
	r.conforms()
	lines := r.logs.FilterMessage("sampling started").All()
	require.Len(t, lines, 1)
	fields := lines[0].ContextMap()
	require.Contains(t, fields["what"], "processes of this user")
	not := fmt.Sprint(fields["not_sampled"])
	require.Contains(t, not, "host")
	require.Contains(t, not, "CAP_PERFMON")

	if rights.Kernel == nil {
		return
	}
	cfg := createDefaultConfig()
	cfg.KernelStacks = KernelStacksTrue
	c, err := NewFactory().(xreceiver.Factory).CreateProfiles(context.Background(), receivertest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop())
	require.NoError(t, err)
	err = c.Start(context.Background(), r)
	require.ErrorContains(t, err, "kernel_stacks")
	require.NoError(t, c.Shutdown(context.Background()))
}

// TestReceiverUnwindsByFramePointersWhileAUnitIsHot checks that unwinding with frame
// pointers continues without an error while a unit is hot.
func TestReceiverUnwindsByFramePointersWhileAUnitIsHot(t *testing.T) {
	cmd := run(t, exec.Command("sh", "-c", "while :; do :; done"))
	ext := newHotUnits(t)
	r := startTo(t, nil, func(c *Config) {
		c.Targets, c.Unwind, c.MaxOverhead = []TargetConfig{{PID: cmd.Process.Pid}}, UnwindFramePointer, 100
	}, ext)
	sampled := func(rows []row) bool { return len(rows) > 0 }
	r.until("samples before the unit is hot", sampled)
	ext.(*hotunitsextension.HotUnits).Publisher(component.MustNewID("test")).Publish([]hotunitsextension.Unit{{Name: "hot", PID: cmd.Process.Pid}})
	r.reset()
	r.until("samples while it is hot", sampled)
	r.stop()
	r.conforms()
}
