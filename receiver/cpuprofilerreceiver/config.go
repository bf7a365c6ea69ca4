// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"errors"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Config is what `cpu_profiler:` takes. The empty one samples the whole host.
type Config struct {
	// RootPath is where the host's root is mounted: /proc and the cgroup tree
	// are read below it. Default /.
	RootPath string `mapstructure:"root_path"`
	// Targets are what to sample; empty means the whole host.
	Targets []TargetConfig `mapstructure:"targets"`
	// DiscoveryInterval is how often globs are matched again and missing rights
	// tried again. Default 5s.
	DiscoveryInterval time.Duration `mapstructure:"discovery_interval"`
	// Frequency is samples per second of CPU time, 1 to 999. Default 97.
	Frequency int `mapstructure:"frequency"`
	// MaxOverhead bounds the CPU time of reading samples of running threads and of
	// giving them names, in percent of one core per CPU that is sampled, 0.01% to
	// 100%: above it the frequency is halved step by step, and recovers. Default 2%;
	// 0 means no bound.
	MaxOverhead Percent `mapstructure:"max_overhead"`
	// MaxPerfEvents is the most perf event descriptors; half of RLIMIT_NOFILE is
	// never exceeded either. Default 4096.
	MaxPerfEvents int `mapstructure:"max_perf_events"`
	// KernelStacks is auto (when permitted), true (refuse to start without the
	// right) or false. Default auto.
	KernelStacks KernelStacks `mapstructure:"kernel_stacks"`
	// Unwind is auto (by copies where a process of a target or a hot unit has no
	// frame pointers), frame_pointer (by the kernel) or dwarf (by copies). Default
	// auto.
	Unwind Unwind `mapstructure:"unwind"`
	// StackBytes is how much is copied of each stack with dwarf, a multiple of 8
	// from 1024 to 65528; of waits at most 16 MiB a second. Default 16384.
	StackBytes int `mapstructure:"stack_bytes"`
	// ThreadAttributes are the attributes that samples of different threads are
	// told apart by: thread.name, thread.id. Default [thread.name]; empty means
	// that threads are not told apart.
	ThreadAttributes []string `mapstructure:"thread_attributes"`
	// CPU is about samples of running threads.
	CPU CPUConfig `mapstructure:"cpu"`
	// OffCPU is about threads that do not run; absent: they are not sampled.
	OffCPU configoptional.Optional[OffCPUConfig] `mapstructure:"off_cpu"`
	// Allocations is about who allocates in Go programs; absent: that is not
	// sampled.
	Allocations configoptional.Optional[AllocationsConfig] `mapstructure:"allocations"`
	// Dotnet is the server that takes the buffers of .NET services; absent: none.
	Dotnet configoptional.Optional[DotnetConfig] `mapstructure:"dotnet"`
	// PprofEndpoints are endpoints in the manner of net/http/pprof to pull profiles
	// from.
	PprofEndpoints []PprofEndpointConfig `mapstructure:"pprof_endpoints"`
	// BufferSize is the size of each of the two buffers. Default 4MiB.
	BufferSize bytesize.Size `mapstructure:"buffer_size"`
	// ExportInterval is how often the samples are handed over. Default 5s.
	ExportInterval time.Duration `mapstructure:"export_interval"`
	// ExportTimeout is the deadline of one hand-over to the next component.
	// Default 5s.
	ExportTimeout time.Duration `mapstructure:"export_timeout"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// CPUConfig is about samples of running threads.
type CPUConfig struct {
	// Enabled is whether they are taken. Default true; false where `dotnet` or
	// `pprof_endpoints` is named and none of `cpu`, `targets`, `off_cpu` and `allocations` is.
	Enabled bool `mapstructure:"enabled"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// TargetConfig is one thing to sample. Exactly one key is set.
type TargetConfig struct {
	// PID is a process, as the collector's own pid namespace numbers it.
	PID int `mapstructure:"pid"`
	// Executable is a glob over the processes' own executables.
	Executable string `mapstructure:"executable"`
	// Cgroup is a glob over paths below the cgroup root; everything under what
	// it matches is sampled too.
	Cgroup string `mapstructure:"cgroup"`
	// ContainerID is a container's id or a prefix of it, 12 characters or more.
	ContainerID string `mapstructure:"container_id"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// KernelStacks says whether the kernel's part of stacks is sampled.
type KernelStacks string

// The values of kernel_stacks.
const (
	KernelStacksAuto  KernelStacks = "auto"
	KernelStacksTrue  KernelStacks = "true"
	KernelStacksFalse KernelStacks = "false"
)

// The bounds of what Validate allows. The interval's is well below the hour
// after which backends refuse a profile as too old, the buffer's lower one well
// above the deepest stack.
const (
	maxFrequency         = 999
	minPerfEvents        = 8
	maxPerfEvents        = 1 << 20
	minDiscoveryInterval = 100 * time.Millisecond
	maxDiscoveryInterval = time.Hour
	minBufferSize        = 64 * bytesize.KiB
	maxBufferSize        = bytesize.GiB
	minExportInterval    = 100 * time.Millisecond
	maxExportInterval    = 10 * time.Minute
	minExportTimeout     = time.Millisecond
	maxExportTimeout     = 10 * time.Minute
)

func createDefaultConfig() *Config {
	return &Config{
		RootPath:          "/",
		DiscoveryInterval: 5 * time.Second,
		Frequency:         97,
		MaxOverhead:       2,
		MaxPerfEvents:     4096,
		KernelStacks:      KernelStacksAuto,
		Unwind:            UnwindAuto,
		StackBytes:        16384,
		ThreadAttributes:  []string{attr.ThreadName},
		CPU:               CPUConfig{Enabled: true},
		OffCPU:            configoptional.Default(defaultOffCPU()),
		Allocations:       configoptional.Default(defaultAllocations()),
		Dotnet:            configoptional.Default(defaultDotnet()),
		BufferSize:        4 * bytesize.MiB,
		ExportInterval:    5 * time.Second,
		ExportTimeout:     5 * time.Second,
	}
}

// Unmarshal lets kernel_stacks be written as YAML wants it written: its `true`
// and `false` arrive as booleans, which a string does not take. It refuses a
// fraction of a frequency, which would lose its digits without a word. And it
// takes a configuration that names .NET services or pprof endpoints alone at its
// word.
func (cfg *Config) Unmarshal(conf *confmap.Conf) error {
	if b, ok := conf.Get("kernel_stacks").(bool); ok {
		err := conf.Merge(confmap.NewFromStringMap(map[string]any{"kernel_stacks": strconv.FormatBool(b)}))
		if err != nil {
			return err
		}
	}
	if f, ok := conf.Get("frequency").(float64); ok && f != math.Trunc(f) {
		return fmt.Errorf("frequency: %v is not a whole number between 1 and %d", f, maxFrequency)
	}
	if (conf.IsSet("dotnet") || conf.IsSet("pprof_endpoints")) && !conf.IsSet("cpu") && !conf.IsSet("targets") && !conf.IsSet("off_cpu") && !conf.IsSet("allocations") {
		cfg.CPU.Enabled = false
	}
	return conf.Unmarshal(cfg)
}

// Validate reports every fault, each with its key and what is allowed.
func (cfg *Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if !path.IsAbs(cfg.RootPath) {
		fault("root_path: %q is not an absolute path, such as / or /hostfs", cfg.RootPath)
	}
	for i, t := range cfg.Targets {
		if err := t.validate(); err != nil {
			fault("targets[%d]: %w", i, err)
		}
	}
	between := func(key string, got, least, most any, ok bool) {
		if !ok {
			fault("%s: %v is not between %v and %v", key, got, least, most)
		}
	}
	between("discovery_interval", cfg.DiscoveryInterval, minDiscoveryInterval, maxDiscoveryInterval,
		cfg.DiscoveryInterval >= minDiscoveryInterval && cfg.DiscoveryInterval <= maxDiscoveryInterval)
	between("frequency", cfg.Frequency, 1, maxFrequency,
		cfg.Frequency >= 1 && cfg.Frequency <= maxFrequency)
	between("max_perf_events", cfg.MaxPerfEvents, minPerfEvents, maxPerfEvents,
		cfg.MaxPerfEvents >= minPerfEvents && cfg.MaxPerfEvents <= maxPerfEvents)
	switch cfg.KernelStacks {
	case KernelStacksAuto, KernelStacksTrue, KernelStacksFalse:
	default:
		fault("kernel_stacks: %q is not one of auto, true, false", cfg.KernelStacks)
	}
	errs = append(errs, cfg.validateUnwind(), cfg.validateOverhead())
	for i, a := range cfg.ThreadAttributes {
		if a != attr.ThreadName && a != attr.ThreadID {
			fault("thread_attributes[%d]: %q is not one of %s, %s", i, a, attr.ThreadName, attr.ThreadID)
		}
	}
	between("buffer_size", cfg.BufferSize, minBufferSize, maxBufferSize,
		cfg.BufferSize >= minBufferSize && cfg.BufferSize <= maxBufferSize)
	between("export_interval", cfg.ExportInterval, minExportInterval, maxExportInterval,
		cfg.ExportInterval >= minExportInterval && cfg.ExportInterval <= maxExportInterval)
	between("export_timeout", cfg.ExportTimeout, minExportTimeout, maxExportTimeout,
		cfg.ExportTimeout >= minExportTimeout && cfg.ExportTimeout <= maxExportTimeout)
	return errors.Join(errs...)
}

func (t TargetConfig) validate() error {
	var set []string
	for _, k := range []struct {
		key string
		set bool
	}{
		{"pid", t.PID != 0},
		{"executable", t.Executable != ""},
		{"cgroup", t.Cgroup != ""},
		{"container_id", t.ContainerID != ""},
	} {
		if k.set {
			set = append(set, k.key)
		}
	}
	if len(set) != 1 {
		got := "none"
		if len(set) > 0 {
			got = strings.Join(set, " and ")
		}
		return fmt.Errorf("needs exactly one of pid (above 0), executable, cgroup, container_id; %s is set", got)
	}
	return t.target().Validate()
}

func (t TargetConfig) target() processes.Target {
	return processes.Target{PID: t.PID, Executable: t.Executable, Cgroup: t.Cgroup, ContainerID: t.ContainerID}
}
