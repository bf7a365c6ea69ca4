// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/collect"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/manual"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/routing"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/identifytest"
)

const (
	containerA = identifytest.ContainerA
	containerB = identifytest.ContainerB
	service    = identifytest.Service
)

var epoch = identifytest.Epoch

func attributeMap(t testing.TB, m map[string]any) pcommon.Map {
	t.Helper()
	out := pcommon.NewMap()
	require.NoError(t, out.FromRaw(m))
	return out
}

// rig is a processor with a fake clock, a fake host and fake readings. The processor's
// goroutines do not run, because the test calls each step itself.
type rig struct {
	t         *testing.T
	p         *cpuTrigger
	c         *collect.Collector
	host      *identifytest.Host
	source    *fakeSource
	sink      *consumertest.ProfilesSink
	refuse    error
	logs      *observer.ObservedLogs
	telemetry *componenttest.Telemetry
	sent      int
	now       time.Time
}

// evenly generates ids that are all different and are the same in every run.
type evenly struct{ n uint64 }

func (e *evenly) Read(b []byte) (int, error) {
	e.n++
	binary.BigEndian.PutUint64(b[len(b)-8:], e.n)
	return len(b), nil
}

func newRig(t *testing.T, yaml string) *rig {
	t.Helper()
	cfg, err := load(t, yaml)
	require.NoError(t, err)
	core, logs := observer.New(zapcore.DebugLevel)
	r := &rig{t: t, host: identifytest.NewHost(), sink: &consumertest.ProfilesSink{}, logs: logs, telemetry: componenttest.NewTelemetry(), now: epoch}
	set := processor.Settings{ID: processortest.NewNopSettings(metadata.Type).ID, TelemetrySettings: r.telemetry.NewTelemetrySettings()}
	set.Logger = zap.New(core)
	next, err := xconsumer.NewProfiles(func(ctx context.Context, pd pprofile.Profiles) error {
		if r.refuse != nil {
			return r.refuse
		}
		return r.sink.ConsumeProfiles(ctx, pd)
	})
	require.NoError(t, err)
	clock := func() time.Time { return r.now }
	r.p, err = newProcessorAt(set, cfg, next, clock, &evenly{})
	require.NoError(t, err)
	r.p.router.Host = r.host
	r.source = &fakeSource{cores: map[string]float64{}, used: map[string]float64{}, errs: map[string]error{}, values: map[string]map[string]float64{}, unfit: map[string]map[string]error{}, startedAt: map[string]time.Time{}, restarted: map[string]bool{}}
	r.c = r.p.newCollector(nil, r.source)
	r.p.collector = r.c
	r.c.UserTimes = func(*units.Unit) collect.ReadTimes { return nil }
	t.Cleanup(func() {
		r.checkSum()
		require.NoError(t, r.p.Shutdown(t.Context()))
		require.NoError(t, r.telemetry.Shutdown(context.Background()))
	})
	return r
}

// fakeSource returns readings that the test sets. Each unit has two cores.
type fakeSource struct {
	cores map[string]float64 // cores in use, by unit
	used  map[string]float64 // CPU seconds used so far, by unit
	errs  map[string]error
	// values holds the readings of the other monitors, by unit and monitor. Monitors
	// without a value are unavailable. unfit holds the faults of monitors, by unit and
	// monitor.
	values map[string]map[string]float64
	unfit  map[string]map[string]error
	// startedAt holds the start times of units. Units that are not in the map started an
	// hour before epoch.
	startedAt map[string]time.Time
	restarted map[string]bool // units whose counters restart at the next reading
	open      int
	least     map[string]float64
}

func (s *fakeSource) Started(u *units.Unit) (time.Time, error) {
	if at, ok := s.startedAt[u.Name]; ok {
		return at, nil
	}
	return epoch.Add(-time.Hour), nil
}

// set sets the value that a unit's monitor reads.
func (s *fakeSource) set(unit, monitor string, value float64) {
	if s.values[unit] == nil {
		s.values[unit] = map[string]float64{}
	}
	s.values[unit][monitor] = value
}

// restart makes a unit's counters restart at the next reading.
func (s *fakeSource) restart(unit string) { s.restarted[unit] = true }

// fail makes a unit's monitor fail with err. If err is nil, the monitor works again.
func (s *fakeSource) fail(unit, monitor string, err error) {
	if s.unfit[unit] == nil {
		s.unfit[unit] = map[string]error{}
	}
	s.unfit[unit][monitor] = err
}

func (s *fakeSource) Watch(u *units.Unit, monitors []string) (collect.Watcher, error) {
	if err := s.errs[u.Name]; err != nil {
		return nil, err
	}
	s.open++
	return &fakeWatcher{source: s, name: u.Name, monitors: monitors}, nil
}

func (s *fakeSource) SetLeast(least map[string]float64) { s.least = least }

func (*fakeSource) Close() {}

type fakeWatcher struct {
	source      *fakeSource
	name        string
	monitors    []string
	first, last time.Time
	used        float64
	sums        map[string]float64 // value × time of the other monitors
}

func (w *fakeWatcher) Read(now time.Time, out []monitor.Result) {
	if w.first.IsZero() {
		w.first, w.last = now, now
	}
	span := now.Sub(w.last).Seconds()
	w.used += w.source.cores[w.name] * span
	w.last = now
	for i, m := range w.monitors {
		r, err := w.reading(m, now, span), w.source.errs[w.name]
		if err == nil {
			err = w.source.unfit[w.name][m]
		}
		if _, ok := w.source.values[w.name][m]; err == nil && !ok && m != monitor.CPUUtilization && m != monitor.CPUUsage {
			err = unset
			if m == monitor.CPUBusiestThread {
				err = monitor.NotBusy
			}
		}
		out[i] = monitor.Result{Reading: r, Restarted: w.source.restarted[w.name], Err: err}
	}
	delete(w.source.restarted, w.name)
}

// unset is the error that a monitor without a value returns.
const unset cgroup.Unavailable = "the test gave it no value"

func (w *fakeWatcher) reading(m string, now time.Time, span float64) monitor.Reading {
	elapsed := now.Sub(w.first).Seconds()
	switch m {
	case monitor.CPUUtilization:
		return monitor.Reading{Time: now, Num: w.used, Den: 2 * elapsed}
	case monitor.CPUUsage:
		return monitor.Reading{Time: now, Num: w.used, Den: elapsed}
	}
	value, kind := w.source.values[w.name][m], monitor.Kind{Scale: 1}
	if k, ok := monitor.KindOf(m); ok {
		kind = k
	}
	if kind.Gauge {
		return monitor.Reading{Time: now, Num: value / kind.Scale, Den: value * 1e6} // bytes in use, for memory with a limit of 100 MB
	}
	if w.sums == nil {
		w.sums = map[string]float64{}
	}
	w.sums[m] += value / kind.Scale * span
	return monitor.Reading{Time: now, Num: w.sums[m], Den: elapsed}
}

func (*fakeWatcher) Capacity() cgroup.Capacity {
	return cgroup.Capacity{Cores: 2, By: cgroup.ByQuota, Path: "/x"}
}

func (w *fakeWatcher) From(i int) string {
	if w.source.unfit[w.name][w.monitors[i]] != nil {
		return ""
	}
	return "/sys/fs/cgroup/" + w.monitors[i]
}

func (w *fakeWatcher) SetMonitors(monitors []string) error {
	w.monitors = monitors
	return nil
}

func (w *fakeWatcher) Close() { w.source.open-- }

// run advances the clock. It takes readings every second and
// evaluates the policies every five seconds.
func (r *rig) run(d time.Duration) {
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(time.Second)
		r.c.Collect()
		if r.now.Unix()%5 == 0 {
			r.p.evaluate()
			r.drain()
		}
	}
}

// drain sends the recorder's records that are due.
func (r *rig) drain() {
	r.p.sender.Drain(r.t.Context())
}

// runUntil advances the clock until a message is logged.
func (r *rig) runUntil(message string, most time.Duration) time.Duration {
	r.t.Helper()
	start, before := r.now, len(r.log(message))
	for r.now.Sub(start) < most {
		r.run(time.Second)
		if len(r.log(message)) > before {
			return r.now.Sub(start)
		}
	}
	r.t.Fatalf("no %q within %v", message, most)
	return 0
}

func (r *rig) log(message string) []observer.LoggedEntry { return r.logs.FilterMessage(message).All() }

// watch adds units to the watched units.
func (r *rig) watch(names ...string) {
	for _, n := range names {
		r.p.units.Add(identify.Identity{Name: n, Group: r.host.Groups[n]}, r.now)
	}
}

// fire makes a unit hot, so that its gate opens.
func (r *rig) fire(name string) {
	r.t.Helper()
	r.watch(name)
	r.source.cores[name] = 1.9
	r.runUntil("gate opened", time.Minute)
}

func (r *rig) send(pd pprofile.Profiles) error {
	r.sent += routing.CountSamples(pd)
	return r.p.ConsumeProfiles(r.t.Context(), pd)
}

// received returns the last batch that the next component received, after a
// conformance check.
func (r *rig) received() pprofile.Profiles {
	r.t.Helper()
	all := r.sink.AllProfiles()
	require.NotEmpty(r.t, all, "nothing was emitted")
	conformancetest.CheckFatal(r.t, all[len(all)-1], conformancetest.Options{Triggered: true, References: true})
	return all[len(all)-1]
}

// metric returns the values of a counter, by the values of its attributes.
func (r *rig) metric(name string) map[string]int64 {
	r.t.Helper()
	out := map[string]int64{}
	m, err := r.telemetry.GetMetric(name)
	if err != nil {
		return out
	}
	points := func(ps []metricdata.DataPoint[int64]) {
		for _, p := range ps {
			var values []string
			for _, kv := range p.Attributes.ToSlice() {
				values = append(values, kv.Value.AsString())
			}
			sort.Strings(values)
			out[strings.Join(values, " ")] += p.Value
		}
	}
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		points(d.DataPoints)
	case metricdata.Gauge[int64]:
		points(d.DataPoints)
	}
	return out
}

func (r *rig) samples() map[string]int64 { return r.metric("otelcol_cpu_trigger.samples") }

// checkSum checks that each received sample is either counted under one outcome or held
// by the recorder.
func (r *rig) checkSum() {
	r.t.Helper()
	sum, outcomes := r.metric("otelcol_cpu_trigger.recorder.samples")[""], r.samples()
	for _, n := range outcomes {
		sum += n
	}
	require.EqualValues(r.t, r.sent, sum, "what came in is the sum of the outcomes %v and what the recorder holds", outcomes)
}

// part describes one resource of a batch. The resource has one profile per type.
type part struct {
	attributes map[string]any
	types      []*samples.Type
	events     int // 0 means 6
	leaves     int // different leaf addresses, and so different stacks; at least 3
}

func inContainer(id string) part {
	return part{attributes: map[string]any{"container.id": id, "process.executable.name": "app", "process.linux.cgroup": "/docker/" + id}}
}

func inService() part {
	return part{attributes: map[string]any{"process.linux.cgroup": service, "host.name": "here", "process.executable.name": "checkout", "process.pid": 100}}
}

var offCPU = &samples.Type{Name: "off_cpu", Unit: "nanoseconds", PeriodName: "off_cpu", PeriodUnit: "nanoseconds"}

// batch builds profiles of the five seconds before end. Each part has a mapping of its
// own, and all parts share another mapping.
func batch(t testing.TB, end time.Time, parts ...part) pprofile.Profiles {
	t.Helper()
	b := samples.NewBatch(16 << 20)
	b.Start, b.End = end.Add(-5*time.Second).UnixNano(), end.UnixNano()
	libc := &samples.Mapping{Start: 0x1000, Limit: 0x2000, Path: "/lib/libc.so.6", BuildID: "aabb"}
	shared := &samples.Location{Type: samples.FrameNative, Mapping: libc, Address: 0x1100, Resolved: true, Lines: []samples.Line{{Function: "start_thread", File: "pthread.c", Line: 7}}}
	for i, p := range parts {
		r := &samples.Resource{PID: i + 1}
		for k, v := range p.attributes {
			if n, ok := v.(int); ok {
				v = int64(n)
			}
			r.Attributes = append(r.Attributes, samples.Attribute{Key: k, Value: v})
		}
		sort.Slice(r.Attributes, func(i, j int) bool { return r.Attributes[i].Key < r.Attributes[j].Key })
		own := &samples.Mapping{Start: 0x400000, Limit: 0x500000, Path: fmt.Sprintf("/bin/app%d", i), BuildID: fmt.Sprintf("cc%02x", i)}
		if p.types == nil {
			p.types = []*samples.Type{samples.OnCPU}
		}
		if p.events == 0 {
			p.events = 6
		}
		leaves := max(p.leaves, 3)
		for _, typ := range p.types {
			for n := range p.events {
				leaf := &samples.Location{Type: samples.FrameGo, Mapping: own, Address: 0x400100 + uint64(n%leaves), Leaf: true, Resolved: true, Lines: []samples.Line{
					{Function: fmt.Sprintf("inlined%d", i), File: "a.go", Line: int64(n % leaves)}, {Function: fmt.Sprintf("work%d.%d", i, n%leaves), File: "a.go", Line: 12},
				}}
				stack := &samples.Stack{Locations: []*samples.Location{leaf, shared}, Truncated: n%2 == 0}
				require.True(t, b.Add(samples.Key{
					Resource: r, Type: typ, Stack: stack, Period: 10_309_278, Thread: samples.Thread{Name: fmt.Sprintf("thread%d.%d", i, n%2)},
				}, b.Start+int64(n+1)*int64(time.Millisecond)))
			}
		}
	}
	var out []pprofile.Profiles
	for pd := range otlpprofiles.NewBuilder(otlpprofiles.Options{ScopeName: "test", Rand: &evenly{}}).Build(b) {
		out = append(out, pd)
	}
	require.Len(t, out, 1)
	return out[0]
}

// allProfiles returns the profiles of a batch with their resources.
func allProfiles(pd pprofile.Profiles) (out []letOut) {
	for _, rp := range pd.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				l := letOut{Profile: p, resource: rp.Resource().Attributes().AsRaw(), attributes: map[string]any{}}
				l.sampleType = pd.Dictionary().StringTable().At(int(p.SampleType().TypeStrindex()))
				for _, i := range p.AttributeIndices().All() {
					a := pd.Dictionary().AttributeTable().At(int(i))
					l.attributes[pd.Dictionary().StringTable().At(int(a.KeyStrindex()))] = a.Value().AsRaw()
				}
				for _, s := range p.Samples().All() {
					st := pd.Dictionary().StackTable().At(int(s.StackIndex()))
					var names []string
					for _, li := range st.LocationIndices().All() {
						for _, line := range pd.Dictionary().LocationTable().At(int(li)).Lines().All() {
							f := pd.Dictionary().FunctionTable().At(int(line.FunctionIndex()))
							names = append(names, pd.Dictionary().StringTable().At(int(f.NameStrindex())))
						}
					}
					l.stacks = append(l.stacks, strings.Join(names, ";"))
				}
				out = append(out, l)
			}
		}
	}
	return out
}

type letOut struct {
	pprofile.Profile
	sampleType           string
	resource, attributes map[string]any
	stacks               []string
}

func marshalled(t *testing.T, pd pprofile.Profiles) []byte {
	t.Helper()
	b, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(pd)
	require.NoError(t, err)
	return bytes.TrimSpace(b)
}

func (r *rig) unit(name string) *units.Unit {
	r.t.Helper()
	u, ok := r.p.units.Lookup(name)
	require.True(r.t, ok, "%s is not watched", name)
	return u
}

// decision returns the decision of a unit. The caller must ensure that no other goroutine
// uses the decision at the same time.
func (r *rig) decision(name string) *trigger.Decision { return r.unit(name).Decision() }

func (r *rig) userShare(name string) float64 { return r.unit(name).UserShare() }

func (p *cpuTrigger) openByHand(_ context.Context, name string, d time.Duration) (manual.Opened, error) {
	found, why := p.gates().Find(manual.Named{Name: name})
	if why != "" {
		return manual.Opened{}, &manual.NoSuchUnitError{Unit: name, Why: why}
	}
	opened, _, err := p.gates().Open(found[0], trigger.Alert{}, d)
	return opened, err
}

// closeByHand closes the opening that was opened by hand.
func (p *cpuTrigger) closeByHand(_ context.Context, name string) (manual.Closed, error) {
	found, why := p.gates().Find(manual.Named{Name: name})
	if why != "" {
		return manual.Closed{}, &manual.NoSuchUnitError{Unit: name, Why: why}
	}
	return p.gates().Close(found[0].Name, "")
}
