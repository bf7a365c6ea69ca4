// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
)

// Config is what `cpu_trigger:` takes. The empty one opens the gate of a unit
// for 30 seconds, at most every 4 hours, when it used more than 80 % of its CPU
// on the average over 30 seconds.
type Config struct {
	// RootPath is where the host's root is mounted: /proc and the cgroup tree
	// are read below it. Default /.
	RootPath string `mapstructure:"root_path"`
	// Scope says what a unit is: cgroup (a container, else a service) or
	// process. Default cgroup.
	Scope Scope `mapstructure:"scope"`
	// CollectionInterval is the time between two readings of a unit's monitors.
	// Default 1s.
	CollectionInterval time.Duration `mapstructure:"collection_interval"`
	// EvaluationInterval is how often policies are evaluated. Default 5s.
	EvaluationInterval time.Duration `mapstructure:"evaluation_interval"`
	// History is the span of readings that is kept. Zero, the default: the
	// longest window of any policy that uses the monitor.
	History time.Duration `mapstructure:"history"`
	// Unmatched says what happens to profiles of no known unit: drop or pass.
	// Default drop.
	Unmatched Unmatched `mapstructure:"unmatched"`
	// UnitTTL is how long a unit that is no longer seen is remembered. Default
	// 10m.
	UnitTTL time.Duration `mapstructure:"unit_ttl"`
	// Policies open gates, each by itself. Default: the policy cpu.
	Policies []PolicyConfig `mapstructure:"policies"`
	// DebugUnits are globs of units whose readings the debug log shows. Empty,
	// the default: the ten nearest to a threshold.
	DebugUnits []string `mapstructure:"debug_units"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// PolicyConfig says when a gate opens and for how long.
type PolicyConfig struct {
	// Name is what log lines, attributes and metrics call the policy. Default:
	// policy-1 for the first, and so on.
	Name string `mapstructure:"name"`
	// Enabled policies open gates. Default true.
	Enabled bool `mapstructure:"enabled"`
	// AnyOf are the conditions: one that holds is enough.
	AnyOf []ItemConfig `mapstructure:"any_of"`
	// ProfileTypes are what is let out: cpu, wall, off_cpu, runqueue,
	// alloc_objects, alloc_space, or type/unit. Empty, the default: all.
	ProfileTypes []string `mapstructure:"profile_types"`
	// Duration is how long the gate stays open. Default 30s.
	Duration time.Duration `mapstructure:"duration"`
	// Cooldown is how long the gate then stays shut. Zero: it may open again at
	// once. Default 4h.
	Cooldown time.Duration `mapstructure:"cooldown"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// ItemConfig is one condition: the mean over a span is above the threshold, or
// enough of the readings of a period are.
type ItemConfig struct {
	// Monitor is what is read, as cpu_utilization.
	Monitor string `mapstructure:"monitor"`
	// Threshold is in the monitor's unit; the condition holds strictly above it.
	Threshold *float64 `mapstructure:"threshold"`
	// AverageOver is the span of the mean. Zero: Period and Count are set.
	AverageOver time.Duration `mapstructure:"average_over"`
	// Period and Count: at least Count of the readings in the last Period are
	// above. Zero: AverageOver is set.
	Period time.Duration `mapstructure:"period"`
	Count  int           `mapstructure:"count"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// Scope is what a unit is.
type Scope string

// The scopes.
const (
	ScopeCgroup  Scope = "cgroup"
	ScopeProcess Scope = "process"
)

// Unmatched is what happens to profiles of no known unit.
type Unmatched string

// The values of unmatched.
const (
	UnmatchedDrop Unmatched = "drop"
	UnmatchedPass Unmatched = "pass"
)

// The bounds of what Validate allows: beyond them a value is a slip of the pen.
const (
	minInterval           = 100 * time.Millisecond
	maxCollectionInterval = time.Minute
	maxEvaluationInterval = 10 * time.Minute
	minUnitTTL            = time.Second
	maxUnitTTL            = 7 * 24 * time.Hour
	maxDuration           = 24 * time.Hour
	maxCooldown           = 30 * 24 * time.Hour
)

func createDefaultConfig() *Config {
	threshold := 80.0
	cpu := defaultPolicy()
	cpu.Name = "cpu"
	cpu.AnyOf = []ItemConfig{{Monitor: monitor.CPUUtilization, Threshold: &threshold, AverageOver: 30 * time.Second}}
	return &Config{
		RootPath:           "/",
		Scope:              ScopeCgroup,
		CollectionInterval: time.Second,
		EvaluationInterval: 5 * time.Second,
		Unmatched:          UnmatchedDrop,
		UnitTTL:            10 * time.Minute,
		Policies:           []PolicyConfig{cpu},
	}
}

func defaultPolicy() PolicyConfig {
	return PolicyConfig{Enabled: true, Duration: 30 * time.Second, Cooldown: 4 * time.Hour}
}

// Unmarshal gives each policy a name of its own where it has none.
func (cfg *Config) Unmarshal(conf *confmap.Conf) error {
	if err := conf.Unmarshal(cfg); err != nil {
		return err
	}
	for i := range cfg.Policies {
		if p := &cfg.Policies[i]; p.Name == "" {
			p.Name = fmt.Sprintf("policy-%d", i+1)
		}
	}
	return nil
}

// Unmarshal starts every policy from the defaults of one, not from the default
// policy that the list replaces.
func (p *PolicyConfig) Unmarshal(conf *confmap.Conf) error {
	*p = defaultPolicy()
	return conf.Unmarshal(p)
}

// Validate reports every fault, each with its key and what is allowed.
func (cfg *Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if !path.IsAbs(cfg.RootPath) {
		fault("root_path: %q is not an absolute path, such as / or /hostfs", cfg.RootPath)
	}
	if cfg.Scope != ScopeCgroup && cfg.Scope != ScopeProcess {
		fault("scope: %q is not one of cgroup, process", cfg.Scope)
	}
	if cfg.Unmatched != UnmatchedDrop && cfg.Unmatched != UnmatchedPass {
		fault("unmatched: %q is not one of drop, pass", cfg.Unmatched)
	}
	between := func(key string, got, least, most time.Duration) {
		if got < least || got > most {
			fault("%s: %v is not between %v and %v", key, got, least, most)
		}
	}
	between("collection_interval", cfg.CollectionInterval, minInterval, maxCollectionInterval)
	between("evaluation_interval", cfg.EvaluationInterval, minInterval, maxEvaluationInterval)
	between("unit_ttl", cfg.UnitTTL, minUnitTTL, maxUnitTTL)
	for i, glob := range cfg.DebugUnits {
		if glob == "" || !doublestar.ValidatePattern(glob) {
			fault("debug_units[%d]: %q is not a glob: *, ** and ? match, [a-z] and {a,b} choose", i, glob)
		}
	}
	if len(cfg.Policies) == 0 {
		fault("policies: must have at least one; leave the key out for the default one")
	}
	for i, p := range cfg.Policies {
		at := fmt.Sprintf("policies[%d]", i)
		if p.Duration > maxDuration {
			fault("%s.duration: %v is not allowed: must be at most %v", at, p.Duration, maxDuration)
		}
		if p.Cooldown > maxCooldown {
			fault("%s.cooldown: %v is not allowed: must be at most %v", at, p.Cooldown, maxCooldown)
		}
		for j, t := range p.ProfileTypes {
			if _, err := parseProfileType(t); err != nil {
				fault("%s.profile_types[%d]: %w", at, j, err)
			}
		}
		for j, item := range p.AnyOf {
			at := fmt.Sprintf("%s.any_of[%d]", at, j)
			if item.Threshold == nil {
				fault("%s.threshold: must be set", at)
			}
			if kind, ok := monitor.KindOf(item.Monitor); ok && kind.Scopes&cfg.monitorScope() == 0 {
				fault("%s.monitor: %s does not go with scope: %s", at, item.Monitor, cfg.Scope)
			}
		}
	}
	core := cfg.trigger(cfg.Policies)
	if core.CollectionInterval < minInterval || core.CollectionInterval > maxCollectionInterval {
		core.CollectionInterval = createDefaultConfig().CollectionInterval // that is said; what follows from it is not
	}
	if err := core.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (cfg *Config) monitorScope() monitor.Scope {
	if cfg.Scope == ScopeProcess {
		return monitor.ProcessScope
	}
	return monitor.CgroupScope
}

// trigger is what the decision core is to know of the configuration.
func (cfg *Config) trigger(policies []PolicyConfig) trigger.Config {
	out := trigger.Config{
		CollectionInterval: cfg.CollectionInterval,
		History:            cfg.History,
	}
	for _, k := range monitor.Kinds() {
		out.Monitors = append(out.Monitors, trigger.Monitor{Name: k.Name, Scale: k.Scale})
	}
	for _, p := range policies {
		policy := trigger.Policy{Name: p.Name, Duration: p.Duration, Cooldown: p.Cooldown}
		for _, i := range p.AnyOf {
			item := trigger.Item{Monitor: i.Monitor, AverageOver: i.AverageOver, Period: i.Period, Count: i.Count}
			if i.Threshold != nil {
				item.Threshold = *i.Threshold
			}
			policy.Items = append(policy.Items, item)
		}
		out.Policies = append(out.Policies, policy)
	}
	return out
}

// enabled are the policies that open gates.
func (cfg *Config) enabled() []PolicyConfig {
	var out []PolicyConfig
	for _, p := range cfg.Policies {
		if p.Enabled {
			out = append(out, p)
		}
	}
	return out
}

// monitors are the names of those that an enabled policy uses, sorted as
// monitor.Kinds is.
func (cfg *Config) monitors() []string {
	used := map[string]bool{}
	for _, p := range cfg.enabled() {
		for _, i := range p.AnyOf {
			used[i.Monitor] = true
		}
	}
	var out []string
	for _, k := range monitor.Kinds() {
		if used[k.Name] {
			out = append(out, k.Name)
		}
	}
	return out
}

// effective is the whole configuration with its defaults, as a log field.
func (cfg *Config) effective() (map[string]any, error) {
	conf := confmap.New()
	if err := conf.Marshal(cfg); err != nil {
		return nil, fmt.Errorf("write the configuration as a map: %w", err)
	}
	out := conf.ToStringMap()
	if cfg.History == 0 {
		var longest time.Duration
		for _, p := range cfg.enabled() {
			for _, i := range p.AnyOf {
				longest = max(longest, i.AverageOver, i.Period)
			}
		}
		out["history"] = longest
	}
	return readable(out).(map[string]any), nil
}

// readable writes durations as the configuration does, all the way down.
func readable(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = readable(v[key])
		}
	case []any:
		for i := range v {
			v[i] = readable(v[i])
		}
	case time.Duration:
		return v.String()
	}
	return v
}

// profileType is one entry of profile_types: a name, or a type with its unit.
type profileType struct{ name, unit string }

// profileNames are the names that stand for a profile type without its unit.
const profileNames = "cpu, wall, off_cpu, runqueue, alloc_objects, alloc_space"

func parseProfileType(s string) (profileType, error) {
	if name, unit, ok := strings.Cut(s, "/"); ok {
		if name == "" || unit == "" || strings.Contains(unit, "/") {
			return profileType{}, fmt.Errorf("%q is not a type and a unit, as samples/count", s)
		}
		return profileType{name: name, unit: unit}, nil
	}
	for name := range strings.SplitSeq(profileNames, ", ") {
		if name == s {
			return profileType{name: name}, nil
		}
	}
	return profileType{}, fmt.Errorf("%q is not one of %s, or a type and a unit as samples/count", s, profileNames)
}
