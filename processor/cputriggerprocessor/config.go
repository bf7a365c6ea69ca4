// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/urls"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/manual"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/requests"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// Config is the configuration of cpu_trigger. The default policies open the gate of a unit
// for 30 seconds, at most every 4 hours. They read averages over 30 seconds. A gate opens
// when the unit used more than 80 % of its CPU, or was throttled in more than 25 % of the
// periods of its CPU quota. It also opens when one of the unit's threads used more than
// 90 % of a core.
type Config struct {
	// RootPath is the path at which the host's root is mounted. /proc and the cgroup tree
	// are read below it. Default /.
	RootPath string `mapstructure:"root_path"`
	// Scope is the kind of units: cgroup (a container, else a service) or process. Default
	// cgroup.
	Scope identify.Scope `mapstructure:"scope"`
	// CollectionInterval is the time between two readings of a unit's monitors.
	// Default 1s.
	CollectionInterval time.Duration `mapstructure:"collection_interval"`
	// EvaluationInterval is the time between two evaluations of the policies. Default 5s.
	EvaluationInterval time.Duration `mapstructure:"evaluation_interval"`
	// Unmatched selects whether profiles that match no unit are dropped (drop) or pass.
	// Default drop.
	Unmatched Unmatched `mapstructure:"unmatched"`
	// KeepProcessAttributes lists resource attributes of a process that stay on exported
	// profiles. By default the list is empty, and all of them are removed.
	KeepProcessAttributes []string `mapstructure:"keep_process_attributes"`
	// ResourceAttributes lists attributes of a trigger's reason that are also set on the
	// resource, beside its policy and kind, such as hotprofile.trigger.monitor. Every
	// backend shows resource attributes, and makes a series of each value. By default the
	// list is empty.
	ResourceAttributes []string `mapstructure:"resource_attributes"`
	// MinAge is the minimum age of a unit's first process before a policy opens its gate.
	// It excludes warm-ups and roll-outs. Zero disables the minimum. Default 1m.
	MinAge time.Duration `mapstructure:"min_age"`
	// CooldownBy is unit or service. With service, a cooldown applies to all units of the
	// service, and also to a restarted container. Default unit.
	CooldownBy CooldownBy `mapstructure:"cooldown_by"`
	// Storage is the id of a storage extension that keeps cooldowns and hourly budgets
	// across restarts. Without it, the default, they are lost at a restart.
	Storage *component.ID `mapstructure:"storage"`
	// PreTrigger is the time before an opening. Profiles that ended in it are sent too.
	// Zero disables it. Default 10s.
	PreTrigger time.Duration `mapstructure:"pre_trigger"`
	// PreTriggerMemory bounds the total memory of the profiles that are recorded for
	// PreTrigger. A unit may use an eighth of it, and at least 64KiB. Default 32MiB.
	PreTriggerMemory bytesize.Size `mapstructure:"pre_trigger_memory"`
	// Policies open gates, each independently of the others. A list replaces the default
	// policies cpu, throttled and thread.
	Policies []PolicyConfig `mapstructure:"policies"`
	// PoliciesFrom names a file or server with a list of policies. The list is read
	// repeatedly, and replaces Policies without a restart. Without it, the default,
	// Policies do not change.
	PoliciesFrom PoliciesFromConfig `mapstructure:"policies_from"`
	// Manual is the HTTP server that opens and closes gates by hand and by alert. By
	// default it has no endpoint and is off.
	Manual configoptional.Optional[manual.Config] `mapstructure:"manual"`
	// Peers configures the reading of units' connections.
	Peers PeersConfig `mapstructure:"peers"`
	// Budgets bound all policies together.
	Budgets BudgetsConfig `mapstructure:"budgets"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// PoliciesFromConfig configures the source of policies that are read while the component
// runs. One of File and HTTP is set.
type PoliciesFromConfig struct {
	// File is the path of a YAML file with the list. If Policies is empty, the component
	// does not start until the file is there and valid.
	File string `mapstructure:"file"`
	// HTTP is the client that gets the list from its endpoint, a URL. The default of its
	// timeout is 10s.
	HTTP configoptional.Optional[confighttp.ClientConfig] `mapstructure:"http"`
	// Interval is the time from the end of one read to the start of the next, from 1s to
	// 1h. Default 30s.
	Interval time.Duration `mapstructure:"interval"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// PeersConfig configures the reading of units' connections, with their peers.
type PeersConfig struct {
	// Enabled turns the reading on. At each collection interval it covers hot units, and
	// units to which a policy with a TCP monitor applies. Default true.
	Enabled bool `mapstructure:"enabled"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// PolicyConfig configures when a gate opens, and for how long.
type PolicyConfig struct {
	// Name is the policy's name in log lines, attributes and metrics. Default policy-1 for
	// the first policy, and so on.
	Name string `mapstructure:"name"`
	// Enabled policies open gates. Disabled policies are not evaluated. Default true.
	Enabled bool `mapstructure:"enabled"`
	// Match restricts the policy to units that match all of its globs. A key is a resource
	// attribute of the unit's profiles, or cgroup. By default it is empty, and every unit
	// matches.
	Match map[string]string `mapstructure:"match"`
	// Exclude excludes units that match any of its globs. By default it is empty.
	Exclude map[string]string `mapstructure:"exclude"`
	// AnyOf are the conditions. A gate opens if one of them holds.
	AnyOf []ItemConfig `mapstructure:"any_of"`
	// ProfileTypes are the types of profiles that pass: cpu, wall, off_cpu, runqueue,
	// alloc_objects, alloc_space, net_sent, net_received, tcp_connects,
	// tcp_connect_failures, or type/unit. By default it is empty, and all types pass.
	ProfileTypes []string `mapstructure:"profile_types"`
	// Duration is the time that the gate stays open. Default 30s.
	Duration time.Duration `mapstructure:"duration"`
	// Cooldown is the time for which the gate stays shut after it closed. With zero the
	// gate may open again at once. Default 4h.
	Cooldown time.Duration `mapstructure:"cooldown"`
	// DryRun policies decide, log and count. They send no profiles. Default false.
	DryRun bool `mapstructure:"dry_run"`
	// Baseline also sends profiles of cool times, for comparison with profiles of hot
	// times. By default it is off.
	Baseline BaselineConfig `mapstructure:"baseline"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// ItemConfig is one condition. It holds if the mean over a span is above the threshold, or
// if enough readings of a period are above it.
type ItemConfig struct {
	// Monitor is the name of the monitor, such as cpu_utilization.
	Monitor string `mapstructure:"monitor"`
	// Events are the events that memory_events counts: high, max, oom, oom_kill. By default
	// it is empty, and oom and oom_kill count.
	Events []string `mapstructure:"events"`
	// Percentile is the percentile of a response time, or of a metric. Default 95.
	Percentile float64 `mapstructure:"percentile"`
	// MinRequests is the minimum number of requests in the window for an error rate or a
	// response time. Default 20.
	MinRequests int `mapstructure:"min_requests"`
	// URI and Method restrict monitors of requests. By default both are empty, and all
	// requests count.
	URI    URIConfig `mapstructure:"uri"`
	Method []string  `mapstructure:"method"`
	// Statuses are the statuses that an error rate counts as failed, such as 5xx or 404, or
	// UNAVAILABLE of RPC. By default it is empty. 5xx and the gRPC codes of server faults
	// then count as failed.
	Statuses []any `mapstructure:"statuses"`
	// Name, Attributes and Statistic (last, rate, mean or percentile) configure the monitor
	// metric. Default of Statistic: percentile if Percentile is set, else last.
	Name       string            `mapstructure:"name"`
	Attributes map[string]string `mapstructure:"attributes"`
	Statistic  string            `mapstructure:"statistic"`
	// Threshold is in the monitor's unit. The condition holds strictly above it.
	Threshold *float64 `mapstructure:"threshold"`
	// AverageOver is the span of the mean. It is zero if Period and Count are set. Default
	// 30s if neither of them is set.
	AverageOver time.Duration `mapstructure:"average_over"`
	// Period and Count make the condition hold if at least Count readings in the last
	// Period are above the threshold. They are zero if AverageOver is set.
	Period time.Duration `mapstructure:"period"`
	Count  int           `mapstructure:"count"`
	// ReleaseBelow closes the gate early once the mean, or Count of the readings, is below
	// it. It is at most the threshold. Without it, the default, the gate stays open for its
	// duration.
	ReleaseBelow *float64 `mapstructure:"release_below"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// URIConfig matches requests by route or path. One match is enough.
type URIConfig struct {
	// List has globs. * matches within a segment, ** across segments.
	List []string `mapstructure:"list"`
	// Regex is a regular expression. It may match a part of the route or path.
	Regex string `mapstructure:"regex"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// BaselineConfig opens the gate for Duration once per Every while the unit is not hot. If
// only one of them is set, the other gets its default.
type BaselineConfig struct {
	// Every is the time from one window to the next. Zero disables the windows. Default 1h
	// if Duration is set.
	Every time.Duration `mapstructure:"every"`
	// Duration is the length of the window. Default 10s if Every is set.
	Duration time.Duration `mapstructure:"duration"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// BudgetsConfig bounds all policies together. Zero means no bound.
type BudgetsConfig struct {
	// MaxConcurrentUnits is the maximum number of units with an open gate. Default 10.
	MaxConcurrentUnits int `mapstructure:"max_concurrent_units"`
	// MaxTriggersPerHour is the maximum number of openings within any hour. Default 0.
	MaxTriggersPerHour int `mapstructure:"max_triggers_per_hour"`
	// MaxTriggersPerServicePerHour is the maximum number of openings within any hour for
	// the units of one service. Default 0.
	MaxTriggersPerServicePerHour int `mapstructure:"max_triggers_per_service_per_hour"`
	// MaxBytesPerHour is the maximum marshalled size of the profiles that are sent within
	// any hour. Default 0.
	MaxBytesPerHour bytesize.Size `mapstructure:"max_bytes_per_hour"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// Unmatched selects whether profiles that match no unit are dropped or pass.
type Unmatched string

// The values of unmatched.
const (
	UnmatchedDrop Unmatched = "drop"
	UnmatchedPass Unmatched = "pass"
)

// CooldownBy is the scope of a cooldown.
type CooldownBy string

// The values of cooldown_by.
const (
	CooldownByUnit    CooldownBy = "unit"
	CooldownByService CooldownBy = "service"
)

// The bounds of Validate. A value beyond them is almost certainly a mistake.
const (
	minInterval           = 100 * time.Millisecond
	maxCollectionInterval = time.Minute
	maxEvaluationInterval = 10 * time.Minute
	maxMinAge             = 24 * time.Hour
	maxDuration           = 24 * time.Hour
	maxCooldown           = 30 * 24 * time.Hour
	maxPreTrigger         = 10 * time.Minute
	minPreTriggerMemory   = 64 * bytesize.KiB
	maxPreTriggerMemory   = bytesize.TiB
	minBaselineEvery      = time.Minute
	maxBaselineEvery      = 7 * 24 * time.Hour
	minPoliciesInterval   = time.Second
	maxPoliciesInterval   = time.Hour
	maxPoliciesTimeout    = time.Minute
)

// unitTTL is the time for which a unit that is no longer seen is kept.
const unitTTL = 10 * time.Minute

// goneKeys has the keys of earlier versions. The value describes the behaviour that
// replaced the key.
var goneKeys = map[string]string{
	"cpu_weight_formula":          "the formula is found from the records of the container runtime",
	"debug_units":                 "the debug log shows the ten units that are nearest to a threshold",
	"history":                     "readings are kept for the longest window of a policy",
	"max_switches_per_second":     "cpu_bottleneck is unavailable above 200000 context switches per second",
	"pre_trigger_memory_per_unit": "a unit may use an eighth of pre_trigger_memory",
	"unit_ttl":                    "a unit is remembered for 10 minutes after it was last seen",
}

// defaultMinRequests and defaultPercentile are the defaults of conditions on requests.
const (
	defaultMinRequests = 20
	defaultPercentile  = 95
)

// defaultWindow is the AverageOver of a condition without a window.
const defaultWindow = 30 * time.Second

func createDefaultConfig() *Config {
	policy := func(name, monitor string, threshold float64) PolicyConfig {
		p := defaultPolicy()
		p.Name = name
		p.AnyOf = []ItemConfig{{Monitor: monitor, Threshold: &threshold, AverageOver: defaultWindow}}
		return p
	}
	return &Config{
		RootPath:           "/",
		Scope:              identify.ScopeCgroup,
		CollectionInterval: time.Second,
		EvaluationInterval: 5 * time.Second,
		Unmatched:          UnmatchedDrop,
		MinAge:             time.Minute,
		CooldownBy:         CooldownByUnit,

		PreTrigger:       10 * time.Second,
		PreTriggerMemory: 32 * bytesize.MiB,

		Policies: []PolicyConfig{
			policy("cpu", monitor.CPUUtilization, 80),
			policy("throttled", monitor.CPUThrottling, 25),
			policy("thread", monitor.CPUBusiestThread, 90),
		},
		PoliciesFrom: PoliciesFromConfig{
			HTTP:     configoptional.Default(defaultPoliciesClient()),
			Interval: 30 * time.Second,
		},
		Manual:  configoptional.Default(manual.DefaultConfig()),
		Peers:   PeersConfig{Enabled: true},
		Budgets: BudgetsConfig{MaxConcurrentUnits: 10},
	}
}

func defaultPoliciesClient() confighttp.ClientConfig {
	client := confighttp.NewDefaultClientConfig()
	client.Timeout = 10 * time.Second
	return client
}

func defaultPolicy() PolicyConfig {
	return PolicyConfig{Enabled: true, Duration: 30 * time.Second, Cooldown: 4 * time.Hour}
}

// Unmarshal refuses unknown keys, and durations without a unit. It names the policies
// without a name. With policies_from there are no default policies.
func (cfg *Config) Unmarshal(conf *confmap.Conf) error {
	if err := configlog.Gone(conf, goneKeys); err != nil {
		return err
	}
	if conf.IsSet("policies_from") && !conf.IsSet("policies") {
		cfg.Policies = nil
	}
	if err := configlog.Unmarshal(conf, cfg); err != nil {
		return err
	}
	namePolicies(cfg.Policies)
	if conf.IsSet("policies_from") && !cfg.PoliciesFrom.isSet() {
		return errors.New("policies_from: set file or http")
	}
	return nil
}

// namePolicies gives names to the policies without one.
func namePolicies(policies []PolicyConfig) {
	for i := range policies {
		if p := &policies[i]; p.Name == "" {
			p.Name = fmt.Sprintf("policy-%d", i+1)
		}
	}
}

// Unmarshal starts from the defaults of a policy. Otherwise it would start from the default
// policy at the same index of the list.
func (p *PolicyConfig) Unmarshal(conf *confmap.Conf) error {
	*p = defaultPolicy()
	return conf.Unmarshal(p)
}

// Unmarshal sets the defaults of a condition, such as its window. Thresholds may be written
// as "80" and 80%.
func (i *ItemConfig) Unmarshal(conf *confmap.Conf) error {
	for _, key := range []string{"threshold", "release_below"} {
		text, _ := conf.Get(key).(string)
		if v, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(text), "%"), 64); err == nil {
			if err := conf.Merge(confmap.NewFromStringMap(map[string]any{key: v})); err != nil {
				return err
			}
		}
	}
	if !conf.IsSet("average_over") && !conf.IsSet("period") && !conf.IsSet("count") {
		i.AverageOver = defaultWindow
	}
	name, _ := conf.Get("monitor").(string)
	if requests.IsOfTimes(name) {
		i.MinRequests = defaultMinRequests
	}
	if name == requests.Metric && !conf.IsSet("statistic") {
		i.Statistic = requests.Last
		if conf.IsSet("percentile") {
			i.Statistic = requests.Percentile
		}
	}
	if statistic, _ := conf.Get("statistic").(string); requests.HasPercentile(name, statistic) {
		i.Percentile = defaultPercentile
	}
	return conf.Unmarshal(i)
}

// Unmarshal sets the default of the missing key if the other key is set.
func (b *BaselineConfig) Unmarshal(conf *confmap.Conf) error {
	if len(conf.AllKeys()) > 0 {
		*b = BaselineConfig{Every: time.Hour, Duration: 10 * time.Second}
	}
	return conf.Unmarshal(b)
}

// Validate reports every fault, with its key and the allowed values.
func (cfg *Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if !path.IsAbs(cfg.RootPath) {
		fault("root_path: %q is not an absolute path, such as / or /hostfs", cfg.RootPath)
	}
	if cfg.Scope != identify.ScopeCgroup && cfg.Scope != identify.ScopeProcess {
		fault("scope: %q is not one of cgroup, process", cfg.Scope)
	}
	if cfg.Unmatched != UnmatchedDrop && cfg.Unmatched != UnmatchedPass {
		fault("unmatched: %q is not one of drop, pass", cfg.Unmatched)
	}
	for i, name := range cfg.KeepProcessAttributes {
		if !slices.Contains(attributes.OfProcess, name) {
			fault("keep_process_attributes[%d]: %q is not one of %s", i, name, strings.Join(attributes.OfProcess, ", "))
		}
	}
	for i, name := range cfg.ResourceAttributes {
		if !slices.Contains(attributes.OfReason, name) {
			fault("resource_attributes[%d]: %q is not one of %s", i, name, strings.Join(attributes.OfReason, ", "))
		}
	}
	if cfg.CooldownBy != CooldownByUnit && cfg.CooldownBy != CooldownByService {
		fault("cooldown_by: %q is not one of unit, service", cfg.CooldownBy)
	}
	errs = append(errs, cfg.validateBounds()...)
	if server := cfg.Manual.Get(); server != nil {
		errs = append(errs, manual.Validate(server))
	}
	errs = append(errs, cfg.PoliciesFrom.validate())
	if len(cfg.Policies) == 0 && !cfg.PoliciesFrom.isSet() {
		fault("policies: must have at least one; leave the key out for the default ones")
	}
	return errors.Join(append(errs, cfg.validatePolicies()...)...)
}

// validatePolicies reports the faults of the policies and of the keys that they depend on.
func (cfg *Config) validatePolicies() (errs []error) {
	for i, p := range cfg.Policies {
		errs = append(errs, cfg.validatePolicy(fmt.Sprintf("policies[%d]", i), p)...)
	}
	if err := cfg.validateCore(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// isSet reports whether policies are read while the component runs.
func (c *PoliciesFromConfig) isSet() bool { return c.File != "" || c.HTTP.HasValue() }

func (c *PoliciesFromConfig) validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("policies_from."+format, args...)) }
	if c.File != "" && c.HTTP.HasValue() {
		fault("file: policies are read from a file or a server: set file or http, not both")
	}
	errs = append(errs, configlog.Between("policies_from.interval", c.Interval, minPoliciesInterval, maxPoliciesInterval))
	if client := c.HTTP.Get(); client != nil {
		if _, err := urls.Parse(client.Endpoint, "https://policies.example.com/node.yaml"); err != nil {
			fault("http.endpoint: %w", err)
		}
		if t := client.Timeout; t <= 0 || t > maxPoliciesTimeout {
			fault("http.timeout: %v is not above 0 and up to %v", t, maxPoliciesTimeout)
		}
	}
	return errors.Join(errs...)
}

func (cfg *Config) validateBounds() (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	errs = append(errs, configlog.Between("collection_interval", cfg.CollectionInterval, minInterval, maxCollectionInterval))
	errs = append(errs, configlog.Between("evaluation_interval", cfg.EvaluationInterval, minInterval, maxEvaluationInterval))
	errs = append(errs, configlog.Between("min_age", cfg.MinAge, 0, maxMinAge))
	errs = append(errs, configlog.Between("pre_trigger", cfg.PreTrigger, 0, maxPreTrigger))
	if got := cfg.PreTriggerMemory; got < minPreTriggerMemory || got > maxPreTriggerMemory {
		fault("pre_trigger_memory: %v is not between %v and %v; pre_trigger: 0s turns the recorder off", got, minPreTriggerMemory, maxPreTriggerMemory)
	}
	return errs
}

// validateCore reports the faults that the decision core finds.
func (cfg *Config) validateCore() error {
	core := cfg.trigger(cfg.Policies)
	if core.CollectionInterval < minInterval || core.CollectionInterval > maxCollectionInterval {
		core.CollectionInterval = createDefaultConfig().CollectionInterval // its fault is reported above; do not report the faults that follow from it
	}
	core.Monitors = slices.DeleteFunc(core.Monitors, func(m trigger.Monitor) bool {
		kind, _ := monitor.KindOf(m.Name)
		return kind.Hidden // policies cannot name it
	})
	// Faults name monitors as they are configured, so without parameters.
	for _, name := range requests.Monitors() {
		core.Monitors = append(core.Monitors, trigger.Monitor{Name: name})
	}
	for i := range core.Monitors {
		core.Monitors[i].Name = requests.Name(core.Monitors[i].Name)
	}
	core.Monitors = slices.CompactFunc(slices.SortedFunc(slices.Values(core.Monitors), func(a, b trigger.Monitor) int { return strings.Compare(a.Name, b.Name) }),
		func(a, b trigger.Monitor) bool { return a.Name == b.Name })
	for i, p := range cfg.Policies {
		for n, item := range p.AnyOf {
			core.Policies[i].Conditions[n].Monitor = item.Monitor
		}
	}
	return core.Validate()
}

// validatePolicy reports the faults that the decision core cannot find, because it does not
// know attributes and scopes.
func (cfg *Config) validatePolicy(at string, p PolicyConfig) (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if p.Duration > maxDuration {
		fault("%s.duration: %v is not allowed: must be at most %v", at, p.Duration, maxDuration)
	}
	if p.Cooldown > maxCooldown {
		fault("%s.cooldown: %v is not allowed: must be at most %v", at, p.Cooldown, maxCooldown)
	}
	if b := p.Baseline; b.Every != 0 && (b.Every < minBaselineEvery || b.Every > maxBaselineEvery) {
		fault("%s.baseline.every: %v is not between %v and %v; 0s turns it off", at, b.Every, minBaselineEvery, maxBaselineEvery)
	}
	for i, t := range p.ProfileTypes {
		if err := validateProfileType(t); err != nil {
			fault("%s.profile_types[%d]: %w", at, i, err)
		}
	}
	if err := units.ValidateGlobs(p.Match); err != nil {
		fault("%s.match.%w", at, err)
	}
	if err := units.ValidateGlobs(p.Exclude); err != nil {
		fault("%s.exclude.%w", at, err)
	}
	for i, item := range p.AnyOf {
		at := fmt.Sprintf("%s.any_of[%d]", at, i)
		if item.Threshold == nil {
			fault("%s.threshold: must be set", at)
		}
		if len(item.Events) > 0 && item.Monitor != monitor.MemoryEvents {
			fault("%s.events: goes only with monitor: %s", at, monitor.MemoryEvents)
		}
		for i, event := range item.Events {
			if !slices.Contains(cgroup.MemoryEventNames(), event) {
				fault("%s.events[%d]: %q is not one of %s", at, i, event, strings.Join(cgroup.MemoryEventNames(), ", "))
			}
		}
		errs = append(errs, item.condition().Validate(at)...)
		if !cfg.inScope(item.Monitor) {
			fault("%s.monitor: %s does not go with scope: %s", at, item.Monitor, cfg.Scope)
		}
	}
	return errs
}

// profileNames are the profile types that are named without a unit.
const profileNames = "cpu, wall, off_cpu, runqueue, alloc_objects, alloc_space, net_sent, net_received, tcp_connects, tcp_connect_failures"

// validateProfileType checks one entry of profile_types. It is a name, or a type with its
// unit.
func validateProfileType(s string) error {
	switch name, unit, ok := strings.Cut(s, "/"); {
	case ok && (name == "" || unit == "" || strings.Contains(unit, "/")):
		return fmt.Errorf("%q is not a type and a unit, as samples/count", s)
	case !ok && !slices.Contains(strings.Split(profileNames, ", "), s):
		return fmt.Errorf("%q is not one of %s, or a type and a unit as samples/count", s, profileNames)
	}
	return nil
}
