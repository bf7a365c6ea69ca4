// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"errors"
	"fmt"
	"path"
	"runtime"
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
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/urls"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/manual"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/requests"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// Config is the configuration of cpu_trigger. The default policies open the gate of a unit
// for 30 seconds, at most once every 4 hours. They compare averages over 30 seconds. A gate
// opens if the unit uses over 80 % of its CPU, or is throttled in over 25 % of its quota
// periods. It also opens if one of the unit's threads uses over 90 % of a core.
type Config struct {
	// RootPath is the mount point of the host's root file system. /proc and the cgroup tree
	// are read below it. Default /.
	RootPath string `mapstructure:"root_path"`
	// Scope selects whether a unit is a cgroup (cgroup) or a process (process). The cgroup
	// is a container or a service. Default cgroup.
	Scope identify.Scope `mapstructure:"scope"`
	// CollectionInterval is the interval at which monitors are read. Default 1s.
	CollectionInterval time.Duration `mapstructure:"collection_interval"`
	// EvaluationInterval is the interval at which policies are evaluated. The default is 5s.
	EvaluationInterval time.Duration `mapstructure:"evaluation_interval"`
	// Unmatched selects whether profiles without a unit are dropped (drop) or passed on
	// (pass). The default is drop.
	Unmatched Unmatched `mapstructure:"unmatched"`
	// KeepProcessAttributes lists the process attributes that exported profiles keep on
	// their resource. By default the list is empty, and all process attributes are removed.
	KeepProcessAttributes []string `mapstructure:"keep_process_attributes"`
	// ResourceAttributes lists trigger attributes that are also set on the resource, such
	// as hotprofile.trigger.monitor. The policy and the kind are always set. Backends show
	// resource attributes, and create a series for each value. By default the list is
	// empty.
	ResourceAttributes []string `mapstructure:"resource_attributes"`
	// MinAge is the minimum age of a unit's first process. Policies do not open the gate
	// of a younger unit. This prevents triggers during warm-ups and roll-outs. Zero
	// disables the check. Default 1m.
	MinAge time.Duration `mapstructure:"min_age"`
	// CooldownBy selects whether a cooldown applies to one unit (unit) or to all units of a
	// service (service). With service, the cooldown also survives the restart of a
	// container. Default unit.
	CooldownBy CooldownBy `mapstructure:"cooldown_by"`
	// Storage is the id of a storage extension that keeps cooldowns and hourly budgets across
	// restarts. By default Storage is not set, and cooldowns and budgets are lost at a restart.
	Storage *component.ID `mapstructure:"storage"`
	// PreTrigger is the length of the period before an opening. Profiles from this period
	// are also sent. With zero, no profiles are recorded. Default 10s.
	PreTrigger time.Duration `mapstructure:"pre_trigger"`
	// PreTriggerMemory limits the memory of all profiles that are recorded for PreTrigger.
	// One unit may use an eighth of this memory, but at least 64KiB. The default is 32MiB.
	PreTriggerMemory bytesize.Size `mapstructure:"pre_trigger_memory"`
	// Policies lists the policies, which open gates independently of each other. A
	// configured list replaces the default policies cpu, throttled and thread.
	Policies []PolicyConfig `mapstructure:"policies"`
	// PoliciesFrom names a file or a server that provides the list of policies. The list is
	// read repeatedly, and replaces Policies without a restart. By default it is not set.
	PoliciesFrom PoliciesFromConfig `mapstructure:"policies_from"`
	// Manual is the HTTP server that opens and closes gates by hand and by alert. By
	// default the server has no endpoint and is off.
	Manual configoptional.Optional[manual.Config] `mapstructure:"manual"`
	// Peers configures whether the connections of units are read.
	Peers PeersConfig `mapstructure:"peers"`
	// Budgets limits all policies together. By default MaxConcurrentUnits is 10, and the
	// other limits are 0, which means no limit.
	Budgets budget.Limits `mapstructure:"budgets"`

	// instance is shared by all pipelines with the same component id, because the collector
	// passes one configuration to these pipelines.
	instance *instance

	// prevents unkeyed literal initialization
	_ struct{}
}

// PoliciesFromConfig configures a source of policies at run time. Only one
// of File and HTTP may be set.
type PoliciesFromConfig struct {
	// File is the path of a YAML file with the list. If Policies is empty, the component
	// does not start without a valid file.
	File string `mapstructure:"file"`
	// HTTP configures the client that fetches the list. Its endpoint is the URL of the
	// list. Its timeout is 10s by default.
	HTTP configoptional.Optional[confighttp.ClientConfig] `mapstructure:"http"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// PeersConfig configures whether the connections between units and their peers are read.
type PeersConfig struct {
	// Enabled makes the processor read the connections of hot units, and of units to which
	// a policy with a TCP monitor applies. The connections are read at each collection
	// interval. Default true.
	Enabled bool `mapstructure:"enabled"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// PolicyConfig configures when a gate opens, and for how long.
type PolicyConfig struct {
	// Name is the policy's name in log lines, attributes and metrics. The default is policy-1
	// for the first policy, policy-2 for the second policy, and so on.
	Name string `mapstructure:"name"`
	// Enabled reports whether the policy is evaluated and opens gates. The default is true.
	Enabled bool `mapstructure:"enabled"`
	// Match restricts the policy to units that match all of its globs. A key is a resource
	// attribute of the unit's profiles, or cgroup. By default it is empty, and every unit
	// matches.
	Match map[string]string `mapstructure:"match"`
	// Exclude excludes units that match any of its globs. By default it is empty, and no
	// unit is excluded.
	Exclude map[string]string `mapstructure:"exclude"`
	// AnyOf lists the conditions. A gate opens if at least one condition holds.
	AnyOf []ItemConfig `mapstructure:"any_of"`
	// ProfileTypes lists the types of profiles that pass: cpu, wall, off_cpu, runqueue,
	// alloc_objects, alloc_space, net_sent, net_received, tcp_connects,
	// tcp_connect_failures, or type/unit. By default the list is empty, and all types pass.
	ProfileTypes []string `mapstructure:"profile_types"`
	// Duration is the time for which the gate stays open. Default 30s.
	Duration time.Duration `mapstructure:"duration"`
	// Cooldown is the time for which the gate stays shut after closing. With zero, the gate
	// may reopen immediately. Default 4h.
	Cooldown time.Duration `mapstructure:"cooldown"`
	// DryRun makes the policy a dry run. A dry run decides, logs and counts, but sends no
	// profiles. The default is false.
	DryRun bool `mapstructure:"dry_run"`
	// Baseline also opens the gate while the unit is not hot, so that hot profiles can be
	// compared with normal profiles. By default it is off.
	Baseline BaselineConfig `mapstructure:"baseline"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// ItemConfig is one condition. It holds if the mean over a span is above the threshold, or
// if enough readings within a period are above the threshold.
type ItemConfig struct {
	// Condition contains the name of the monitor. For request monitors and for the monitor
	// named "metric", it also contains the parameters.
	requests.Condition `mapstructure:",squash"`
	// Events lists the events that memory_events counts: high, max, oom, oom_kill. By
	// default the list is empty, and memory_events counts oom and oom_kill.
	Events []string `mapstructure:"events"`
	// Threshold is the value that the monitor must exceed, in the monitor's unit.
	Threshold *float64 `mapstructure:"threshold"`
	// AverageOver is the time span of the mean. If Period and Count are set, it is zero.
	// Otherwise the default is 30s.
	AverageOver time.Duration `mapstructure:"average_over"`
	// Period and Count make the condition hold if at least Count readings in the last
	// Period are above the threshold. Both are zero if AverageOver is set.
	Period time.Duration `mapstructure:"period"`
	Count  int           `mapstructure:"count"`
	// ReleaseBelow closes the gate early when the mean falls below this value. With Count,
	// the gate closes early when at least Count of the readings in Period are below this
	// value. ReleaseBelow must not exceed the threshold. By default it is not set, and the
	// gate stays open for Duration.
	ReleaseBelow *float64 `mapstructure:"release_below"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// BaselineConfig opens the gate for Duration once per Every while the unit is not hot. If
// only Duration is set, the default of Every is 1h. If only Every is set, the default of
// Duration is 10s. If Every is zero, there are no baselines.
type BaselineConfig trigger.Baseline

// Unmatched selects whether profiles that match no unit are dropped or passed on.
type Unmatched string

// These are the values of unmatched.
const (
	UnmatchedDrop Unmatched = "drop"
	UnmatchedPass Unmatched = "pass"
)

// CooldownBy selects whether a cooldown applies to a unit or to a service.
type CooldownBy string

// These are the values of cooldown_by.
const (
	CooldownByUnit    CooldownBy = "unit"
	CooldownByService CooldownBy = "service"
)

// Validate checks these limits. A value beyond a limit is almost certainly a mistake.
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
	maxPoliciesTimeout    = time.Minute
)

// unitTTL is the time after which a unit that is no longer seen is removed.
const unitTTL = 10 * time.Minute

// goneKeys maps each removed configuration key to a description of its replacement.
var goneKeys = map[string]string{
	"cpu_weight_formula":          "the formula is found from the records of the container runtime",
	"debug_units":                 "the debug log shows the ten units that are nearest to a threshold",
	"history":                     "readings are kept for the longest window of a policy",
	"max_switches_per_second":     "cpu_bottleneck is unavailable above 200000 context switches per second",
	"policies_from::interval":     "policies are read every 10 seconds",
	"pre_trigger_memory_per_unit": "a unit may use an eighth of pre_trigger_memory",
	"unit_ttl":                    "a unit is remembered for 10 minutes after it was last seen",
}

// defaultMinRequests and defaultPercentile are the defaults of conditions on requests.
const (
	defaultMinRequests = 20
	defaultPercentile  = 95
)

// defaultWindow is the default AverageOver of a condition that configures no window.
const defaultWindow = 30 * time.Second

const onWindows = runtime.GOOS == "windows"

// scopes returns the scopes that this operating system supports. The first
// scope is the default.
func scopes() []identify.Scope {
	if onWindows {
		return []identify.Scope{identify.ScopeProcess}
	}
	return []identify.Scope{identify.ScopeCgroup, identify.ScopeProcess}
}

func createDefaultConfig() *Config {
	policy := func(name, monitor string, threshold float64) PolicyConfig {
		p := defaultPolicy()
		p.Name = name
		p.AnyOf = []ItemConfig{{Condition: requests.Condition{Monitor: monitor}, Threshold: &threshold, AverageOver: defaultWindow}}
		return p
	}
	cfg := &Config{
		RootPath:           "/",
		Scope:              scopes()[0],
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
		PoliciesFrom: PoliciesFromConfig{HTTP: configoptional.Default(defaultPoliciesClient())},
		Manual:       configoptional.Default(manual.DefaultConfig()),
		Peers:        PeersConfig{Enabled: true},
		Budgets:      budget.Limits{MaxConcurrentUnits: 10},

		instance: &instance{signals: map[string]bool{}},
	}
	cfg.Policies = slices.DeleteFunc(cfg.Policies, func(p PolicyConfig) bool { return !cfg.inScope(p.AnyOf[0].Monitor) })
	return cfg
}

func defaultPoliciesClient() confighttp.ClientConfig {
	client := confighttp.NewDefaultClientConfig()
	client.Timeout = 10 * time.Second
	return client
}

func defaultPolicy() PolicyConfig {
	return PolicyConfig{Enabled: true, Duration: 30 * time.Second, Cooldown: 4 * time.Hour}
}

// Unmarshal rejects unknown keys, and durations without a unit. It gives each policy without a
// name its default name. If policies_from is set and policies is not set, it removes the
// default policies.
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

// namePolicies sets the default name of each policy without a name.
func namePolicies(policies []PolicyConfig) {
	for i := range policies {
		if p := &policies[i]; p.Name == "" {
			p.Name = fmt.Sprintf("policy-%d", i+1)
		}
	}
}

// Unmarshal resets the policy to the defaults first. Otherwise the policy would inherit the
// values of the default policy at the same index in the list.
func (p *PolicyConfig) Unmarshal(conf *confmap.Conf) error {
	*p = defaultPolicy()
	return conf.Unmarshal(p)
}

// Unmarshal sets the defaults of a condition, such as its window. Thresholds may also be
// written as "80" or 80%.
func (i *ItemConfig) Unmarshal(conf *confmap.Conf) error {
	set := map[string]any{}
	for _, key := range []string{"threshold", "release_below"} {
		text, _ := conf.Get(key).(string)
		if v, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(text), "%"), 64); err == nil {
			set[key] = v
		}
	}
	switch statuses := conf.Get("statuses").(type) { // YAML decodes 503 as a number and 5xx as a string
	case []any:
		for n := range statuses {
			statuses[n] = fmt.Sprint(statuses[n])
		}
		set["statuses"] = statuses
	case int:
		set["statuses"] = fmt.Sprint(statuses)
	}
	if err := conf.Merge(confmap.NewFromStringMap(set)); err != nil {
		return err
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
	err := conf.Unmarshal(i)
	i.Span, i.Counted = max(i.AverageOver, i.Period), i.Count > 0
	return err
}

// Unmarshal uses the default for a missing key if the other key is set.
func (b *BaselineConfig) Unmarshal(conf *confmap.Conf) error {
	if len(conf.AllKeys()) > 0 {
		*b = BaselineConfig{Every: time.Hour, Duration: 10 * time.Second}
	}
	return conf.Unmarshal(b)
}

// Validate returns all faults. Each fault contains its key and the allowed values.
func (cfg *Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if !path.IsAbs(cfg.RootPath) {
		fault("root_path: %q is not an absolute path, such as / or /hostfs", cfg.RootPath)
	}
	errs = append(errs,
		configlog.OneOf("scope", scopes(), cfg.Scope),
		configlog.OneOf("unmatched", []Unmatched{UnmatchedDrop, UnmatchedPass}, cfg.Unmatched),
		configlog.EachOneOf("keep_process_attributes", attributes.OfProcess, cfg.KeepProcessAttributes),
		configlog.EachOneOf("resource_attributes", attributes.OfReason, cfg.ResourceAttributes),
		configlog.OneOf("cooldown_by", []CooldownBy{CooldownByUnit, CooldownByService}, cfg.CooldownBy),
		configlog.Between("collection_interval", cfg.CollectionInterval, minInterval, maxCollectionInterval),
		configlog.Between("evaluation_interval", cfg.EvaluationInterval, minInterval, maxEvaluationInterval),
		configlog.Between("min_age", cfg.MinAge, 0, maxMinAge),
		configlog.Between("pre_trigger", cfg.PreTrigger, 0, maxPreTrigger))
	if got := cfg.PreTriggerMemory; got < minPreTriggerMemory || got > maxPreTriggerMemory {
		fault("pre_trigger_memory: %v is not between %v and %v; pre_trigger: 0s turns the recorder off", got, minPreTriggerMemory, maxPreTriggerMemory)
	}
	if server := cfg.Manual.Get(); server != nil {
		errs = append(errs, manual.Validate(server))
	}
	errs = append(errs, cfg.PoliciesFrom.validate())
	if len(cfg.Policies) == 0 && !cfg.PoliciesFrom.isSet() {
		fault("policies: must have at least one; leave the key out for the default ones")
	}
	return errors.Join(append(errs, cfg.validatePolicies()...)...)
}

// validatePolicies returns the errors in the policies and in the keys that affect them.
func (cfg *Config) validatePolicies() (errs []error) {
	for i, p := range cfg.Policies {
		errs = append(errs, cfg.validatePolicy(fmt.Sprintf("policies[%d]", i), p)...)
	}
	if err := cfg.validateCore(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// isSet reports whether policies are read at run time.
func (c *PoliciesFromConfig) isSet() bool { return c.File != "" || c.HTTP.HasValue() }

func (c *PoliciesFromConfig) validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("policies_from."+format, args...)) }
	if c.File != "" && c.HTTP.HasValue() {
		fault("file: policies are read from a file or a server: set file or http, not both")
	}
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

// validateCore reports the faults that the decision core finds.
func (cfg *Config) validateCore() error {
	core := cfg.trigger(cfg.Policies)
	if core.CollectionInterval < minInterval || core.CollectionInterval > maxCollectionInterval {
		core.CollectionInterval = createDefaultConfig().CollectionInterval // this fault is already reported, and must not cause further faults
	}
	// A fault must contain the monitor names that the user may configure, so the
	// monitors have no parameters.
	names := requests.Monitors()
	for _, k := range monitor.Kinds() {
		if !k.Hidden {
			names = append(names, k.Name)
		}
	}
	core.Monitors = nil
	for _, name := range slices.Sorted(slices.Values(names)) {
		core.Monitors = append(core.Monitors, trigger.Monitor{Name: name})
	}
	for i, p := range cfg.Policies {
		for n, item := range p.AnyOf {
			core.Policies[i].Conditions[n].Monitor = item.Monitor
		}
	}
	return core.Validate()
}

// validatePolicy reports the faults that the decision core cannot find, because the core
// does not know attributes and scopes.
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
		errs = append(errs, configlog.EachOneOf(at+".events", cgroup.MemoryEventNames(), item.Events))
		errs = append(errs, item.Validate(at)...)
		switch {
		case cfg.inScope(item.Monitor):
		case onWindows:
			fault("%s.monitor: %s needs Linux; Windows has cpu_usage, cpu_utilization, host_cpu_utilization, memory_utilization and thread_count", at, item.Monitor)
		default:
			fault("%s.monitor: %s does not go with scope: %s", at, item.Monitor, cfg.Scope)
		}
	}
	return errs
}

// profileNames lists the profile types that can be configured without a unit.
const profileNames = "cpu, wall, off_cpu, runqueue, alloc_objects, alloc_space, net_sent, net_received, tcp_connects, tcp_connect_failures"

// validateProfileType checks an entry of profile_types. A
// valid entry is a name, or a type with its unit.
func validateProfileType(s string) error {
	switch name, unit, ok := strings.Cut(s, "/"); {
	case ok && (name == "" || unit == "" || strings.Contains(unit, "/")):
		return fmt.Errorf("%q is not a type and a unit, as samples/count", s)
	case !ok && !slices.Contains(strings.Split(profileNames, ", "), s):
		return fmt.Errorf("%q is not one of %s, or a type and a unit as samples/count", s, profileNames)
	}
	return nil
}
