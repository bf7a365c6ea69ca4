// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// These constants identify the main unit of the demo. The unit has openings of all kinds,
// profiles, refusals and trends.
const (
	CheckoutHost = "node-1.example"
	CheckoutName = "4f1c0c6b8a2e7d935c1e0f7b6a5d4c3b2a1908f7e6d5c4b3a29180706f5e4d3c"
	// HotOpening is an opening with profiles. BaselineOpening is
	// the baseline of the same unit.
	HotOpening      = "5f0e9a4e6a3b1c22"
	BaselineOpening = "b1e61e5a77c0ffee"
)

// CheckoutID identifies the unit called CheckoutName.
var CheckoutID = ID(CheckoutHost, CheckoutName)

// Demo returns a store with two days of data from a web shop. The service checkout
// exceeded its threshold 25 minutes ago, and its gate closed half a minute later. Now
// checkout is being profiled again.
func Demo(now time.Time) *Memory {
	now = now.UTC().Truncate(time.Second)
	m := &Memory{
		AllTrends:   map[store.UnitID][]store.Trend{},
		AllProfiles: map[string]map[store.ProfileKey]*profile.Profile{},
		UsageNow: store.Usage{
			Bytes: 41 << 20, MaxBytes: 300 << 20, MaxAge: 48 * time.Hour,
			Oldest: now.Add(-48 * time.Hour), Dropped: map[string]int64{},
		},
	}
	m.checkout(now)
	for _, u := range []struct {
		host, name string
		resource   map[string]string
		cpu, limit float64
		throttled  float64
		state      string
		refused    map[string]int
	}{
		{
			CheckoutHost, "9a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b",
			pod("shop", "cart", "cart-6f7d9c5b4-x2x8w", "go"), 61.2, 80, 3, "watching",
			map[string]int{"cooldown": 3},
		},
		{
			"node-2.example", "0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b9a7b6c5d4e3f2a1b",
			pod("shop", "payments", "payments-7c6b5d4f8-9k2lm", "dotnet"), 84.9, 80, 31, "watching",
			map[string]int{"budget": 2, "min_age": 1},
		},
		{
			"node-2.example", "1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b9a7b6c5d4e3f2a",
			pod("ml", "recommend", "recommend-0", "python"), 22.4, 80, 0, "cooling_down", nil,
		},
		{
			CheckoutHost, "/system.slice/nginx.service",
			map[string]string{attr.ExecutableName: "nginx"},
			12.1, 80, math.NaN(), "watching", nil,
		},
		{CheckoutHost, "/system.slice/postgresql.service", map[string]string{}, 41, 80, math.NaN(), "watching", nil},
		{
			"node-2.example", "/system.slice/cron.service",
			map[string]string{attr.ServiceName: "unknown_service:cron"},
			math.NaN(), 80, math.NaN(), "watching", nil,
		},
	} {
		if u.resource == nil {
			u.resource = map[string]string{}
		}
		u.resource[attr.HostName] = u.host
		unit := store.Unit{
			ID: ID(u.host, u.name), Host: u.host, Name: u.name, Resource: u.resource,
			First: now.Add(-47 * time.Hour), Last: now.Add(-4 * time.Second),
		}
		s := store.UnitSummary{Unit: unit, States: map[string]string{"cpu": u.state, "throttled": "watching"}, Refusals: u.refused}
		s.Readings = append(s.Readings, store.Reading{
			Condition: store.Condition{Policy: "cpu", Monitor: "cpu_utilization", Window: "30s average"},
			At:        unit.Last, Value: u.cpu, Threshold: u.limit,
		})
		if !math.IsNaN(u.throttled) {
			s.Readings = append(s.Readings, store.Reading{
				Condition: store.Condition{Policy: "throttled", Monitor: "cpu_throttling", Window: "30s average"},
				At:        unit.Last, Value: u.throttled, Threshold: 25,
			})
		}
		for i, r := range s.Readings {
			m.AllTrends[unit.ID] = append(m.AllTrends[unit.ID], trend(r, now, float64(i)+u.cpu, nil))
		}
		at := now.Add(-9 * time.Minute)
		for _, why := range []string{"budget", "cooldown", "min_age"} {
			for range u.refused[why] {
				r := store.Refusal{
					At: at, Unit: unit, Policy: "cpu", Kind: "hot", Monitor: "cpu_utilization", Window: "30s average",
					Value: 86.3, Threshold: 80, Why: why,
				}
				if why == "budget" {
					r.Budget = "max_concurrent_units"
				}
				m.AllRefusals = append(m.AllRefusals, r)
				at = at.Add(-73 * time.Minute)
			}
		}
		if u.state == "cooling_down" {
			o := hot("recommend00000001", unit, now.Add(-3*time.Hour), 91.7)
			o.Closed, o.Why, o.NothingExported = o.Until, "duration", "no profiles arrived"
			s.Openings, s.Newest = 1, o
			m.AllOpenings = append(m.AllOpenings, o)
		}
		m.AllUnits = append(m.AllUnits, s)
	}
	m.policies(now)
	m.instances(now)
	return m
}

func pod(namespace, service, name, language string) map[string]string {
	return map[string]string{
		attr.ServiceName: service, attr.ServiceVersion: "1.14.2", attr.NamespaceName: namespace, attr.PodName: name,
		attr.ContainerName: service, attr.SDKLanguage: language,
	}
}

func hot(id string, unit store.Unit, at time.Time, value float64) store.Opening {
	return store.Opening{
		ID: id, Unit: unit, Policy: "cpu", Kind: "hot", Monitor: "cpu_utilization", Window: "30s average",
		Value: value, Threshold: 80, Triggered: at, Until: at.Add(30 * time.Second),
	}
}

// checkout adds the main unit of the demo.
func (m *Memory) checkout(now time.Time) {
	resource := pod("shop", "checkout", "checkout-5d9f8b7c6-jq4kz", "go")
	resource[attr.HostName], resource[attr.ContainerID] = CheckoutHost, CheckoutName
	resource[attr.DeploymentEnvironment] = "production"
	unit := store.Unit{
		ID: CheckoutID, Host: CheckoutHost, Name: CheckoutName, Resource: resource,
		First: now.Add(-48 * time.Hour), Last: now.Add(-4 * time.Second),
	}

	running := hot("77aa31c0de5f0001", unit, now.Add(-12*time.Second), 93.5)
	closed := hot(HotOpening, unit, now.Add(-25*time.Minute), 97.2)
	closed.Closed, closed.Why, closed.Samples, closed.Bytes = closed.Until, "duration", 11_862, 1_482_311
	closed.TraceID, closed.SpanID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	closed.Traces = []string{"0af7651916cd43dd8448eb211c80319c", "javascript:alert(1)", "4bf92f3577b34da6a3ce929d0e0e4736"}
	closed.Requests = []store.Request{
		{TraceID: "0af7651916cd43dd8448eb211c80319c", Route: "/cart/{id}", Failed: true, Duration: 812.4, CPU: 604, Waits: map[string]float64{"lock": 110, "disk": 25}},
		{TraceID: "javascript:alert(1)", Route: "<b>", Duration: 400, CPU: 900},
	}
	throttled := hot("c0ffee0000000002", unit, now.Add(-26*time.Hour), 41)
	throttled.Policy, throttled.Monitor, throttled.Threshold = "throttled", "cpu_throttling", 25
	throttled.Closed, throttled.Why, throttled.Samples, throttled.Bytes = throttled.Triggered.Add(11*time.Second), "released", 2_114, 301_233
	byHand := hot("d00d000000000003", unit, now.Add(-5*time.Hour), 0)
	byHand.Policy, byHand.Kind, byHand.Monitor, byHand.Window, byHand.Threshold = "manual", "manual", "manual", "", 0
	byHand.Closed, byHand.Why, byHand.Samples, byHand.Bytes = byHand.Until, "duration", 604, 90_112
	missed := hot("0ff0000000000004", unit, now.Add(-31*time.Hour), 88.8) // its gate.closed event was lost
	baseline := hot(BaselineOpening, unit, now.Add(-50*time.Minute), 34)
	baseline.Kind, baseline.Until = "baseline", baseline.Triggered.Add(10*time.Second)
	baseline.Closed, baseline.Why, baseline.Samples, baseline.Bytes = baseline.Until, "duration", 1_377, 210_900

	add := func(o *store.Opening, scale int64, phases ...string) {
		profiles := map[store.ProfileKey]*profile.Profile{}
		for _, key := range []store.ProfileKey{
			{Type: "cpu", Scope: "hotprofile"},
			{Type: "off_cpu", Scope: "hotprofile"},
			{Type: "alloc_space", Scope: "hotprofile"},
			{Type: "goroutine", Origin: "pprof", Scope: "hotprofile", Moment: o.Triggered.UnixNano()},
		} {
			p := checkoutProfile(key, o.Triggered, scale, o.Kind == "baseline", phases)
			profiles[key] = p
			info := store.ProfileInfo{
				ProfileKey: key, Unit: p.SampleType[0].Unit, Samples: int64(len(p.Sample)), Bytes: 24_310,
				Start: o.Triggered.Add(-10 * time.Second), End: o.Until, Phases: phases,
			}
			if key.Type == "off_cpu" {
				info.Truncated = 12
			}
			o.Profiles = append(o.Profiles, info)
		}
		m.AllProfiles[o.ID] = profiles
	}
	add(&running, 4, "before")
	add(&closed, 10, "before", "both", "after")
	add(&baseline, 3, "baseline")
	m.AllOpenings = append(m.AllOpenings, running, closed, throttled, byHand, missed, baseline)

	s := store.UnitSummary{
		Unit: unit,
		Readings: []store.Reading{
			{Condition: store.Condition{Policy: "cpu", Monitor: "cpu_utilization", Window: "30s average"}, At: unit.Last, Value: 93.5, Threshold: 80},
			{Condition: store.Condition{Policy: "errors", Monitor: "http_error_rate", Window: "1m average"}, At: unit.Last, Value: math.NaN(), Threshold: 5},
			{Condition: store.Condition{Policy: "slow", Monitor: "http_response_time", Window: "1m average"}, At: unit.Last, Value: 184, Threshold: 500},
			{Condition: store.Condition{Policy: "throttled", Monitor: "cpu_throttling", Window: "30s average"}, At: unit.Last, Value: 18.1, Threshold: 25},
		},
		States:   map[string]string{"cpu": "profiling", "errors": "watching", "slow": "watching", "throttled": "cooling_down"},
		Openings: 5, Newest: running,
		Refusals: map[string]int{"cooldown": 2, "dry run": 1},
	}
	m.AllUnits = append(m.AllUnits, s)
	m.AllPeers = map[store.UnitID][]store.Peer{CheckoutID: checkoutPeers(closed.Triggered, closed.Closed)}
	hotSpells := []store.Opening{running, closed, throttled, missed}
	for i, r := range s.Readings {
		m.AllTrends[unit.ID] = append(m.AllTrends[unit.ID], trend(r, now, float64(i), hotSpells))
	}
	for i, r := range []store.Refusal{
		{Policy: "cpu", Monitor: "cpu_utilization", Value: 91, Threshold: 80, Why: "cooldown"},
		{Policy: "cpu", Monitor: "cpu_utilization", Value: 83.1, Threshold: 80, Why: "cooldown"},
		{Policy: "slow", Monitor: "http_response_time", Value: 1_204, Threshold: 500, Why: "dry run"},
	} {
		r.At, r.Unit, r.Kind, r.Window = now.Add(-time.Duration(i*i+1)*19*time.Minute), unit, "hot", "30s average"
		m.AllRefusals = append(m.AllRefusals, r)
	}
}

// trend returns 48 hours of a reading in steps of 20 seconds. The trend has a gap, ends
// near the reading's value, and exceeds the threshold whenever the reading opened a gate.
func trend(r store.Reading, now time.Time, phase float64, hot []store.Opening) store.Trend {
	const step = 20 * time.Second
	t := store.Trend{Condition: r.Condition}
	base := r.Value
	if math.IsNaN(base) {
		base = 0
	}
	base = math.Min(base, 0.7*r.Threshold)
	for at := now.Add(-48 * time.Hour); !at.After(now); at = at.Add(step) {
		x := float64(at.Unix())
		v := base * (0.75 + 0.2*math.Sin(x/5400+phase) + 0.08*math.Sin(x/311+phase) + 0.05*math.Sin(x/47+3*phase))
		for _, o := range hot {
			if o.Monitor != r.Monitor {
				continue
			}
			if d := at.Sub(o.Triggered).Seconds(); d > -60 && d < 90 {
				v = math.Max(v, o.Value*math.Min(1, (d+60)/60)*math.Min(1, (90-d)/50))
			}
		}
		p := store.Point{At: at, Min: 0.93 * v, Mean: v, Max: 1.05 * v, Threshold: r.Threshold}
		if ago := now.Sub(at); ago > 7*time.Hour && ago < 7*time.Hour+20*time.Minute || math.IsNaN(r.Value) {
			p.Min, p.Mean, p.Max = math.NaN(), math.NaN(), math.NaN()
		}
		t.Points = append(t.Points, p)
	}
	return t
}

// checkoutProfile returns a profile in which the sha256 functions below (*Cart).Seal are
// hot.
func checkoutProfile(key store.ProfileKey, at time.Time, scale int64, cool bool, phases []string) *profile.Profile {
	unit, per := "nanoseconds", int64(10_300_000)
	stacks := []struct {
		thread string
		value  int64
		stack  string // begins with the root
	}{
		{"checkout", 41, "main.main;net/http.(*conn).serve;main.(*Server).checkout;shop/cart.(*Cart).Seal;crypto/sha256.Sum256;crypto/sha256.block"},
		{"checkout", 9, "main.main;net/http.(*conn).serve;main.(*Server).checkout;encoding/json.Marshal;encoding/json.(*encodeState).marshal;reflect.Value.Field"},
		{"checkout", 6, "main.main;net/http.(*conn).serve;net/http.(*conn).readRequest;bufio.(*Reader).fill;syscall.Read;[kernel] tcp_recvmsg"},
		{"gc", 12, "runtime.gcBgMarkWorker;runtime.gcDrain;runtime.scanobject"},
		{"gc", 4, "runtime.gcBgMarkWorker;runtime.gcDrain;runtime.greyobject"},
		{"logger", 3, "main.main;log/slog.(*Logger).Info;os.(*File).Write;syscall.Write;[kernel] vfs_write"},
	}
	switch key.Type {
	case "alloc_space":
		unit, per = "bytes", 524_288
	case "goroutine":
		unit, per = "count", 1
	}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: key.Type, Unit: unit}},
		PeriodType: &profile.ValueType{Type: key.Type, Unit: unit}, Period: per,
		TimeNanos: at.Add(-10 * time.Second).UnixNano(), DurationNanos: int64(40 * time.Second),
	}
	mapping := &profile.Mapping{ID: 1, Start: 0x400000, Limit: 0xa00000, File: "/app/checkout", HasFunctions: true}
	p.Mapping = []*profile.Mapping{mapping}
	locations := map[string]*profile.Location{}
	location := func(name string) *profile.Location {
		if l, ok := locations[name]; ok {
			return l
		}
		f := &profile.Function{
			ID: uint64(len(p.Function) + 1), Name: name, SystemName: name,
			Filename: "/src/" + strings.ReplaceAll(strings.SplitN(name, ".", 2)[0], "[kernel] ", "linux/") + ".go",
		}
		p.Function = append(p.Function, f)
		l := &profile.Location{
			ID: uint64(len(p.Location) + 1), Mapping: mapping, Address: 0x400000 + uint64(len(p.Location))*64,
			Line: []profile.Line{{Function: f, Line: int64(20 + len(p.Location))}},
		}
		p.Location = append(p.Location, l)
		locations[name] = l
		return l
	}
	for i, s := range stacks {
		value := s.value
		if cool && i == 0 {
			value = 8
		}
		for j, phase := range phases {
			frames := strings.Split(s.stack, ";")
			sample := &profile.Sample{
				Value:    []int64{value * scale * per * int64(j+1)},
				Label:    map[string][]string{attr.TriggerPhase: {phase}, attr.ThreadName: {s.thread}},
				NumLabel: map[string][]int64{attr.ThreadID: {int64(4200 + i)}},
			}
			for k := len(frames) - 1; k >= 0; k-- {
				sample.Location = append(sample.Location, location(frames[k]))
			}
			p.Sample = append(p.Sample, sample)
		}
	}
	return p
}

func (m *Memory) policies(now time.Time) {
	condition := func(policy, monitor, window string, thresholds ...float64) store.PolicyCondition {
		return store.PolicyCondition{Condition: store.Condition{Policy: policy, Monitor: monitor, Window: window}, Thresholds: thresholds}
	}
	m.AllPolicies = []store.PolicySummary{
		{
			Name: "cpu", Conditions: []store.PolicyCondition{condition("cpu", "cpu_utilization", "30s average", 80)},
			Opened: map[string]int{"hot": 4, "baseline": 1}, Refused: map[string]int{"cooldown": 5, "budget": 2, "min_age": 1},
			Units: map[string]int{"watching": 5, "profiling": 1, "cooling_down": 1}, Newest: now.Add(-12 * time.Second),
		},
		{Name: "errors", Conditions: []store.PolicyCondition{condition("errors", "http_error_rate", "1m average", 5)}, Units: map[string]int{"watching": 1}},
		{Name: "manual", Opened: map[string]int{"manual": 1}, Newest: now.Add(-5 * time.Hour)},
		{
			Name: "slow", Conditions: []store.PolicyCondition{condition("slow", "http_response_time", "1m average", 500, 750)},
			Refused: map[string]int{"dry run": 1}, Units: map[string]int{"watching": 1},
		},
		{
			Name: "throttled", Conditions: []store.PolicyCondition{condition("throttled", "cpu_throttling", "30s average", 25)},
			Opened: map[string]int{"hot": 1}, Units: map[string]int{"watching": 6, "cooling_down": 1}, Newest: now.Add(-26 * time.Hour),
		},
	}
	m.AllChanges = []store.PolicyChange{{
		At: now.Add(-20 * time.Hour), Host: CheckoutHost, From: "/etc/hotprofile/policies.yaml", Version: "3f2a9c10be77",
		Added: []string{"slow"}, Changed: []string{"cpu"},
	}}
}

func (m *Memory) instances(now time.Time) {
	metric := func(name, unit string, value float64, attributes map[string]string) store.Metric {
		return store.Metric{Name: name, Unit: unit, Attributes: attributes, At: now.Add(-5 * time.Second), Value: value, Monotonic: true, PerSecond: value / 86_400}
	}
	for i, host := range []string{CheckoutHost, "node-2.example"} {
		m.AllInstances = append(m.AllInstances, store.Instance{
			ID: fmt.Sprintf("8f14e45f-ceea-467f-9575-%012d", i), Host: host, Service: "otelcol-hotprofile", Version: "0.9.0",
			First: now.Add(-47 * time.Hour), Last: now.Add(-5 * time.Second),
			Metrics: []store.Metric{
				metric("cpu_profiler.samples", "{sample}", 1_204_331, map[string]string{"sampler": "oncpu", "outcome": "exported"}),
				metric("cpu_profiler.samples", "{sample}", 41, map[string]string{"sampler": "oncpu", "outcome": "lost"}),
				metric("cpu_trigger.openings", "{opening}", 5, map[string]string{"policy": "cpu"}),
			},
			Logs: []store.Log{
				{At: now.Add(-3 * time.Hour), Severity: "WARN", Body: "samples lost", Component: "cpu_profiler", Attributes: map[string]string{"lost": "41"}},
				{At: now.Add(-47 * time.Hour), Severity: "INFO", Body: "sampling started", Component: "cpu_profiler", Attributes: map[string]string{"sampler": "oncpu", "frequency": "97"}},
			},
		})
	}
}

// Many returns a store with n units. Each host has 40 units, and each unit has four
// readings. 100 of the units have 500 openings in total.
func Many(now time.Time, n int) *Memory {
	now = now.UTC().Truncate(time.Second)
	m := &Memory{
		AllTrends: map[store.UnitID][]store.Trend{},
		UsageNow:  store.Usage{Bytes: 180 << 20, MaxBytes: 300 << 20, MaxAge: 48 * time.Hour, Oldest: now.Add(-48 * time.Hour)},
	}
	conditions := []store.Reading{
		{Condition: store.Condition{Policy: "cpu", Monitor: "cpu_utilization", Window: "30s average"}, Threshold: 80},
		{Condition: store.Condition{Policy: "memory", Monitor: "memory_utilization", Window: "30s average"}, Threshold: 90},
		{Condition: store.Condition{Policy: "slow", Monitor: "http_response_time", Window: "1m average"}, Threshold: 500},
		{Condition: store.Condition{Policy: "throttled", Monitor: "cpu_throttling", Window: "30s average"}, Threshold: 25},
	}
	for i := range n {
		host, name := fmt.Sprintf("node-%d.example", i/40), strings.Repeat(fmt.Sprintf("%08x", i*7919), 8)
		service := fmt.Sprintf("service-%d", i/3)
		u := store.UnitSummary{
			Unit: store.Unit{
				ID: ID(host, name), Host: host, Name: name, Resource: pod("shop", service, fmt.Sprintf("%s-5d9f8b7c6-%05x", service, i), "go"),
				First: now.Add(-48 * time.Hour), Last: now.Add(-time.Duration(i%10) * time.Second),
			},
			States: map[string]string{"cpu": "watching", "memory": "watching", "slow": "watching", "throttled": "watching"},
		}
		for j, r := range conditions {
			r.At, r.Value = u.Last, r.Threshold*float64((i*31+j*17)%100)/99
			u.Readings = append(u.Readings, r)
		}
		if i%10 == 3 {
			for k := range 5 {
				o := hot(fmt.Sprintf("%08x%08x", i, k), u.Unit, now.Add(-time.Duration(i%977+1+k*500)*time.Minute), 93.5)
				o.Closed, o.Why, o.Samples, o.Bytes = o.Until, "duration", 2_000, 250_000
				if u.Openings++; u.Newest.Triggered.Before(o.Triggered) {
					u.Newest = o
				}
				m.AllOpenings = append(m.AllOpenings, o)
			}
			u.States["cpu"] = "cooling_down"
			u.Refusals = map[string]int{"cooldown": i % 7}
		}
		m.AllUnits = append(m.AllUnits, u)
		if i == 3 {
			for j, r := range u.Readings {
				m.AllTrends[u.ID] = append(m.AllTrends[u.ID], trend(r, now, float64(j), nil))
			}
		}
	}
	return m
}
