// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/requests"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/identifytest"
)

const (
	containerA = identifytest.ContainerA
	containerB = identifytest.ContainerB
	service    = identifytest.Service

	cpuUsage   = "cpu_usage" // the only monitor
	preTrigger = 10 * time.Second
)

var epoch = identifytest.Epoch

// rig is a router with its own units, recorder and sender. Its host, its clock and its
// readings are fake.
type rig struct {
	t         *testing.T
	router    *Router
	units     *units.Set
	recorder  *recorder.Recorder
	sender    *recorder.Sender
	host      *identifytest.Host
	sink      consumertest.ProfilesSink
	telemetry *componenttest.Telemetry
	logs      *observer.ObservedLogs
	began     time.Time
	now       time.Time
	sent      int // number of samples
	watched   []*units.Unit
	cores     map[string]float64 // cores in use, by unit
	used      map[string]float64 // CPU seconds used so far, by unit
}

// policy returns a policy that opens the gate of a unit for 30 seconds after the unit has
// used more than the given number of cores for five seconds.
func policy(name string, cores float64, types ...string) trigger.Policy {
	return trigger.Policy{
		Name: name, Duration: 30 * time.Second, Cooldown: time.Hour, Types: types,
		Conditions: []trigger.Condition{{Monitor: cpuUsage, Test: window.Test{Threshold: cores, AverageOver: 5 * time.Second}}},
	}
}

func newRig(t *testing.T, policies ...trigger.Policy) *rig {
	t.Helper()
	return newRigAt(t, epoch, trigger.Config{Policies: policies})
}

func newRigAt(t *testing.T, now time.Time, cfg trigger.Config) *rig {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	r := &rig{
		t: t, host: identifytest.NewHost(), telemetry: componenttest.NewTelemetry(), logs: logs,
		began: now, now: now, cores: map[string]float64{}, used: map[string]float64{},
	}
	clock := func() time.Time { return r.now }
	metrics, err := counters.New(r.telemetry.NewTelemetrySettings())
	require.NoError(t, err)
	cfg.Monitors = []trigger.Monitor{{Name: cpuUsage}}
	cfg.CollectionInterval, cfg.PreTrigger = time.Second, preTrigger
	engine, err := trigger.New(cfg)
	require.NoError(t, err)
	var everywhere []units.PolicyGlobs
	for _, p := range cfg.Policies {
		everywhere = append(everywhere, units.PolicyGlobs{Policy: p.Name})
	}
	selectors, err := units.NewSelectors(everywhere)
	require.NoError(t, err)
	lock := new(sync.Mutex)
	r.recorder = recorder.New(recorder.Config{PreTrigger: preTrigger, PerUnit: 1 << 20, Memory: 64 << 20, Lock: lock}, metrics, now)
	r.units = units.New(units.Config{Engine: engine, Recorder: r.recorder, Lock: lock, Selectors: selectors})
	r.router = &Router{
		Scope: identify.ScopeCgroup, Remove: attributes.NewFilter(nil), Units: r.units, Host: r.host,
		Requests: requests.New(requests.Config{Scope: identify.ScopeCgroup, See: r.units.See, Counters: metrics, Now: clock, Log: zap.NewNop()}),
		Next:     &r.sink, Counters: metrics, Now: clock, Log: zap.New(core),
	}
	r.sender = recorder.NewSender(r.recorder, zap.NewNop(), r.router.SendRecorded)
	t.Cleanup(func() {
		r.checkSum()
		require.NoError(t, r.telemetry.Shutdown(context.Background()))
	})
	return r
}

// manyContainers adds n containers to the host.
func (r *rig) manyContainers(n int) (ids []string) {
	for i := range n {
		id := fmt.Sprintf("%064x", i+1)
		r.host.Groups[id] = cgroup.Group{ID: id, ContainerID: id, Cgroup: "/docker/" + id}
		ids = append(ids, id)
	}
	return ids
}

// watch adds groups of the host to the units.
func (r *rig) watch(names ...string) {
	for _, name := range names {
		r.units.Add(identify.Identity{Name: name, Group: r.host.Groups[name]}, r.now)
	}
}

// collect advances the clock by a second, and takes a reading of each unit.
func (r *rig) collect() {
	r.now = r.now.Add(time.Second)
	r.watched = append(r.watched, r.units.TakeAdded()...)
	var readings []units.Readings
	for _, u := range r.watched {
		r.used[u.Name] += r.cores[u.Name]
		cpu := monitor.Reading{Time: r.now, Num: r.used[u.Name], Den: r.now.Sub(r.began).Seconds()}
		readings = append(readings, units.Readings{Unit: u, Time: r.now, Results: []monitor.Result{{Reading: cpu}}, Values: make([]float64, 1)})
	}
	r.units.Observe([]string{cpuUsage}, readings)
}

// evaluate evaluates the policies, and sends the records that are due.
func (r *rig) evaluate() {
	r.units.Evaluate(r.now)
	r.sender.Drain(r.t.Context())
}

// run advances the clock. It takes readings every second, and evaluates the policies every
// five seconds.
func (r *rig) run(d time.Duration) {
	for range int(d / time.Second) {
		r.collect()
		if r.now.Unix()%5 == 0 {
			r.evaluate()
		}
	}
}

// runUntil advances the clock until done returns true for the openings of a unit.
func (r *rig) runUntil(name string, most time.Duration, done func([]*trigger.Opening) bool) {
	r.t.Helper()
	for end := r.now.Add(most); !done(r.openings(name)); {
		require.True(r.t, r.now.Before(end), "nothing happened within %v", most)
		r.run(time.Second)
	}
}

// openings returns the current openings of a unit.
func (r *rig) openings(name string) []*trigger.Opening {
	r.t.Helper()
	u, ok := r.units.Lookup(name)
	require.True(r.t, ok, "%s is not watched", name)
	return u.Decision().Openings(nil)
}

func isOpen(openings []*trigger.Opening) bool { return len(openings) > 0 }

// fire makes a unit hot, so that its gate opens.
func (r *rig) fire(name string) {
	r.t.Helper()
	r.watch(name)
	r.cores[name] = 1.9
	r.runUntil(name, time.Minute, isOpen)
}

func (r *rig) send(pd pprofile.Profiles) {
	r.t.Helper()
	r.sent += CountSamples(pd)
	require.NoError(r.t, r.router.Consume(r.t.Context(), pd))
}

// received returns the last batch that the next component received, after a conformance
// check.
func (r *rig) received() pprofile.Profiles {
	r.t.Helper()
	all := r.sink.AllProfiles()
	require.NotEmpty(r.t, all, "nothing was sent")
	conformancetest.CheckFatal(r.t, all[len(all)-1], conformancetest.Options{Triggered: true, References: true})
	return all[len(all)-1]
}

// outcomes returns the numbers of samples that are not in the recorder, by outcome.
func (r *rig) outcomes() map[string]int64 {
	r.t.Helper()
	out := map[string]int64{}
	m, err := r.telemetry.GetMetric("otelcol_cpu_trigger.samples")
	if err != nil { // no sample has an outcome
		return out
	}
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		outcome, _ := p.Attributes.Value("outcome")
		out[outcome.AsString()] += p.Value
	}
	return out
}

func (r *rig) held() int64 {
	n, _ := r.recorder.Held()
	return n
}

// checkSum checks that each sample has one outcome or is in the recorder.
func (r *rig) checkSum() {
	r.t.Helper()
	sum, outcomes := r.held(), r.outcomes()
	for _, n := range outcomes {
		sum += n
	}
	require.EqualValues(r.t, r.sent, sum, "outcomes: %v", outcomes)
}

// reasonsLogged returns the reasons why profiles matched no unit, as logged.
func (r *rig) reasonsLogged() (out []any) {
	for _, l := range r.logs.FilterMessage("profiles match no unit").All() {
		out = append(out, l.ContextMap()["why"])
	}
	return out
}

// part describes one resource of a batch. The resource has one profile per type, with six
// events each.
type part struct {
	attributes map[string]any
	types      []*samples.Type // nil means samples.OnCPU
}

var offCPU = &samples.Type{Name: "off_cpu", Unit: "nanoseconds", PeriodName: "off_cpu", PeriodUnit: "nanoseconds"}

func inContainer(id string) part {
	return part{attributes: map[string]any{"container.id": id, "process.executable.name": "app", "process.linux.cgroup": "/docker/" + id}}
}

func inService() part {
	return part{attributes: map[string]any{"process.linux.cgroup": service, "host.name": "here", "process.executable.name": "checkout", "process.pid": 100}}
}

// batch builds profiles of the five seconds before end.
func batch(t testing.TB, end time.Time, parts ...part) pprofile.Profiles {
	t.Helper()
	b := samples.NewBatch(16 << 20)
	b.Start, b.End = end.Add(-5*time.Second).UnixNano(), end.UnixNano()
	for i, p := range parts {
		r := &samples.Resource{PID: i + 1}
		for _, key := range slices.Sorted(maps.Keys(p.attributes)) {
			value := p.attributes[key]
			if n, ok := value.(int); ok {
				value = int64(n)
			}
			r.Attributes = append(r.Attributes, samples.Attribute{Key: key, Value: value})
		}
		app := &samples.Mapping{Start: 0x400000, Limit: 0x500000, Path: fmt.Sprintf("/bin/app%d", i), BuildID: fmt.Sprintf("cc%02x", i)}
		work := &samples.Location{Type: samples.FrameGo, Mapping: app, Address: 0x400100, Leaf: true, Resolved: true, Lines: []samples.Line{{Function: fmt.Sprintf("work%d", i), File: "a.go", Line: 12}}}
		if p.types == nil {
			p.types = []*samples.Type{samples.OnCPU}
		}
		for _, typ := range p.types {
			key := samples.Key{Resource: r, Type: typ, Period: 10_309_278, Stack: &samples.Stack{Locations: []*samples.Location{work}}}
			for n := range 6 {
				require.True(t, b.Add(key, b.Start+int64(n+1)*int64(time.Millisecond)))
			}
		}
	}
	var out []pprofile.Profiles
	for pd := range otlpprofiles.NewBuilder(otlpprofiles.Options{ScopeName: "test"}).Build(b) {
		out = append(out, pd)
	}
	require.Len(t, out, 1)
	return out[0]
}

// decoded is a profile with its type and its attributes.
type decoded struct {
	pprofile.Profile
	sampleType           string
	resource, attributes map[string]any
}

// decode returns the profiles of batches.
func decode(batches ...pprofile.Profiles) (out []decoded) {
	for _, pd := range batches {
		d := dictionary.NewReader(pd.Dictionary())
		for of := range dictionary.All(pd) {
			p := decoded{Profile: of.Profile, sampleType: d.ProfileType(of.Profile).Sample, resource: of.Resource.Resource().Attributes().AsRaw(), attributes: map[string]any{}}
			for key, value := range d.Attributes(of.Profile.AttributeIndices()) {
				p.attributes[key] = value.AsRaw()
			}
			out = append(out, p)
		}
	}
	return out
}
