// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"math"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/collect"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/manual"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/requests"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// manual returns the configuration of the server that opens gates by hand. It returns nil
// if the server is off.
func (cfg *Config) manual() *manual.Config {
	if server := cfg.Manual.Get(); server != nil && server.HTTP.NetAddr.Endpoint != "" {
		return server
	}
	return nil
}

// manualDuration returns the default duration of openings by hand and by alert. It is the
// duration of the first enabled policy.
func (cfg *Config) manualDuration() time.Duration {
	for _, p := range cfg.enabled() {
		return p.Duration
	}
	return defaultPolicy().Duration
}

// inScope reports whether a monitor is available in the configured scope. It returns true
// for an unknown monitor, because an unknown monitor is reported as another fault.
func (cfg *Config) inScope(name string) bool {
	scope := monitor.CgroupScope
	switch {
	case onWindows:
		scope = monitor.WindowsScope
	case cfg.Scope == identify.ScopeProcess:
		scope = monitor.ProcessScope
	}
	kind, ok := monitor.KindOf(name)
	return !ok || kind.Scopes&scope != 0
}

// trigger returns the configuration of the decision core.
func (cfg *Config) trigger(policies []PolicyConfig) trigger.Config {
	out := trigger.Config{
		CollectionInterval: cfg.CollectionInterval,
		PreTrigger:         cfg.PreTrigger,
		MinAge:             cfg.MinAge,
		CooldownByService:  cfg.CooldownBy == CooldownByService,
		Budgets:            cfg.Budgets,
	}
	for _, k := range kinds(policies) {
		out.Monitors = append(out.Monitors, trigger.Monitor{
			Name: k.Name, Kind: window.Kind{Scale: k.Scale, Gauge: k.Gauge, Sparse: k.Sparse, Whole: k.Whole}, Guard: k.Guard, GuardAtLeast: k.GuardAtLeast,
		})
	}
	for _, p := range policies {
		policy := trigger.Policy{Name: p.Name, Duration: p.Duration, Cooldown: p.Cooldown, DryRun: p.DryRun, Types: p.ProfileTypes}
		if p.Baseline.Every > 0 {
			policy.Baseline = trigger.Baseline(p.Baseline)
		}
		for _, i := range p.AnyOf {
			test := window.Test{AverageOver: i.AverageOver, Period: i.Period, Count: i.Count, ReleaseBelow: i.ReleaseBelow}
			if i.Threshold != nil {
				test.Threshold = *i.Threshold
			}
			policy.Conditions = append(policy.Conditions, trigger.Condition{Monitor: i.monitor(), Test: test})
		}
		out.Policies = append(out.Policies, policy)
	}
	return out
}

// monitor returns the name of the monitor, including its parameters.
func (i ItemConfig) monitor() string {
	if i.Monitor == monitor.MemoryEvents {
		return monitor.MemoryEventsOf(i.Events)
	}
	if requests.Is(i.Monitor) {
		return i.Key()
	}
	return i.Monitor
}

// items returns the conditions of enabled policies.
func (cfg *Config) items() (out []ItemConfig) {
	for _, p := range cfg.enabled() {
		out = append(out, p.AnyOf...)
	}
	return out
}

// conditions returns the conditions of enabled policies on request monitors.
func (cfg *Config) conditions() (out []requests.Condition) {
	for _, i := range cfg.items() {
		if requests.Is(i.Monitor) {
			out = append(out, i.Condition)
		}
	}
	return out
}

// kinds returns all monitors without parameters, followed by the monitors with parameters
// that policies use. Request monitors come last.
func kinds(policies []PolicyConfig) []monitor.Kind {
	out := monitor.Kinds()
	var ofRequests []monitor.Kind
	seen := map[string]bool{monitor.MemoryEvents: true}
	for _, p := range policies {
		for _, i := range p.AnyOf {
			name := i.monitor()
			switch {
			case seen[name]:
			case requests.Is(i.Monitor):
				ofRequests = append(ofRequests, monitor.Kind{
					Name: name, Scale: 1, Gauge: i.Gauge(), Whole: !i.Gauge(), Scopes: monitor.CgroupScope | monitor.ProcessScope,
				})
			case i.Monitor == monitor.MemoryEvents:
				k, _ := monitor.KindOf(name)
				out = append(out, k)
			}
			seen[name] = true
		}
	}
	return append(out, ofRequests...)
}

func (cfg *Config) enabled() []PolicyConfig {
	return slices.DeleteFunc(slices.Clone(cfg.Policies), func(p PolicyConfig) bool { return !p.Enabled })
}

// warmFrom is the fraction of a threshold at which a unit becomes warm. User and system
// CPU times are read only for warm units. warmGaugeFrom is the fraction for gauges, which
// may stay at one value for days.
const (
	warmFrom      = 0.5
	warmGaugeFrom = 0.9
)

// readings returns the monitors to read for each unit, in the order of kinds. These are
// the monitors that enabled policies use, and the guards of these monitors. If policies
// use only request monitors, cpu_usage is also read. Host-wide monitors do not make a
// unit warm.
func (cfg *Config) readings() collect.Monitors {
	out := collect.Monitors{Least: map[string]float64{}}
	for _, i := range cfg.items() {
		if least, ok := out.Least[i.monitor()]; !ok || *i.Threshold < least {
			out.Least[i.monitor()] = *i.Threshold
		}
	}
	all, warm, ofHost := kinds(cfg.enabled()), map[string]float64{}, false
	for _, k := range all {
		threshold, used := out.Least[k.Name]
		ofHost = ofHost || used && !requests.Is(requests.Name(k.Name))
		switch {
		case !used:
		case k.Guard != "":
			warm[k.Name], warm[k.Guard] = math.Inf(1), warmFrom*k.GuardAtLeast
		case k.Gauge:
			warm[k.Name] = warmGaugeFrom * threshold
		default:
			warm[k.Name] = max(warmFrom*threshold, math.SmallestNonzeroFloat64)
		}
	}
	if !ofHost {
		warm[monitor.CPUUsage] = math.Inf(1) // at least one host monitor must be read to detect that a unit is gone
	}
	for _, k := range all {
		at, read := warm[k.Name]
		if !read {
			continue
		}
		out.Names, out.Warm = append(out.Names, k.Name), append(out.Warm, at)
		if !requests.Is(requests.Name(k.Name)) {
			out.Host = len(out.Names)
		}
	}
	return out
}

// globs returns the match and exclude globs of all enabled policies.
func (cfg *Config) globs() (out []units.PolicyGlobs) {
	for _, p := range cfg.enabled() {
		out = append(out, units.PolicyGlobs{Policy: p.Name, Match: p.Match, Exclude: p.Exclude})
	}
	return out
}
