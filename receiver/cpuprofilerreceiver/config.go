// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/languages"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/allocs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/dotnet"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/network"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/offcpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/oncpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/pprof"
)

// Config is the configuration of `cpu_profiler`. An empty configuration samples the whole
// host.
type Config struct {
	// RootPath is the folder where the host's root is mounted. /proc and the cgroup tree are
	// read below it. The default is /.
	RootPath string `mapstructure:"root_path"`
	// Targets selects the processes to sample. If it is empty, the whole host is sampled.
	Targets []processes.Target `mapstructure:"targets"`
	// DiscoveryInterval is the interval at which globs are matched again and missing
	// rights are checked again. The default is 5s.
	DiscoveryInterval time.Duration `mapstructure:"discovery_interval"`
	// RateConfig contains the keys frequency and max_overhead of the sampler of running
	// threads.
	oncpu.RateConfig `mapstructure:",squash"`
	// MaxPerfEvents is the maximum number of perf event descriptors. At most half of
	// RLIMIT_NOFILE is used, even if MaxPerfEvents is larger. The default is 4096.
	MaxPerfEvents int `mapstructure:"max_perf_events"`
	// KernelStacks is auto, true or false. With auto, kernel stacks are sampled if the
	// receiver has the permission. With true, the receiver does not start without this
	// permission. The default is auto.
	KernelStacks KernelStacks `mapstructure:"kernel_stacks"`
	// Unwind is auto, frame_pointer or dwarf. With auto, as much of each stack is copied
	// as needed. With frame_pointer, the kernel unwinds the stacks. With dwarf, 16 KiB of
	// each stack are copied. The default is auto.
	Unwind Unwind `mapstructure:"unwind"`
	// ThreadAttributes lists the attributes that distinguish threads. The allowed attributes
	// are thread.name and thread.id. The default is [thread.name]. If the list is empty,
	// threads are not distinguished.
	ThreadAttributes []string `mapstructure:"thread_attributes"`
	// Languages lists the languages whose functions appear in the stacks of hot units. The
	// default is all: java, node, php and python.
	Languages []string `mapstructure:"languages"`
	// GoroutineLabels lists the labels of goroutines that become attributes of samples of
	// hot units. If the list is empty, labels are not read. The default is [http.route,
	// rpc.method].
	GoroutineLabels []string `mapstructure:"goroutine_labels"`
	// MaxMemory is the maximum memory for processes, files and names. At most one half of
	// MaxMemory is in use, because the other half is left for garbage. The default is 128MiB.
	MaxMemory bytesize.Size `mapstructure:"max_memory"`
	// CPU samples running threads.
	CPU oncpu.Config `mapstructure:"cpu"`
	// OffCPU samples threads that do not run. It is absent by default.
	OffCPU configoptional.Optional[offcpu.Config] `mapstructure:"off_cpu"`
	// Allocations samples allocations of Go programs. It is absent by default.
	Allocations configoptional.Optional[allocs.Config] `mapstructure:"allocations"`
	// Network samples calls on sockets. It is absent by default.
	Network configoptional.Optional[network.Config] `mapstructure:"network"`
	// Dotnet receives the buffers of .NET services. It is absent by default.
	Dotnet configoptional.Optional[dotnet.Config] `mapstructure:"dotnet"`
	// PprofEndpoints lists the endpoints to pull profiles of net/http/pprof from.
	PprofEndpoints []pprof.Config `mapstructure:"pprof_endpoints"`
	// BufferSize is the size of each of the two buffers. The size of the buffers of
	// allocations is a sixteenth of BufferSize. The default is 4MiB.
	BufferSize bytesize.Size `mapstructure:"buffer_size"`
	// ExportInterval is the time between two exports. The default is 5s.
	ExportInterval time.Duration `mapstructure:"export_interval"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// maxLabelKey is the maximum length of a key in goroutine_labels, in bytes.
const maxLabelKey = 255

// ownKeys are the keys that are not allowed in goroutine_labels. Samples already contain
// these values in other attributes, and contain the ids of traces and spans in links.
var ownKeys = []string{attr.ThreadName, attr.ThreadID, attr.Transport, samples.LabelTraceID, samples.LabelSpanID}

// KernelStacks selects whether the kernel part of stacks is sampled.
type KernelStacks = perftargets.KernelStacks

// These are the values of kernel_stacks.
const (
	KernelStacksAuto  = perftargets.KernelAuto
	KernelStacksTrue  = perftargets.KernelDemanded
	KernelStacksFalse = perftargets.KernelNever
)

// Unwind selects how the user part of stacks is unwound.
type Unwind string

// These are the values of unwind.
const (
	UnwindAuto         Unwind = "auto"
	UnwindFramePointer Unwind = "frame_pointer"
	UnwindDwarf        Unwind = "dwarf"
)

func createDefaultConfig() *Config {
	return &Config{
		RootPath:          "/",
		DiscoveryInterval: 5 * time.Second,
		RateConfig:        oncpu.DefaultRate(),
		MaxPerfEvents:     4096,
		KernelStacks:      KernelStacksAuto,
		Unwind:            UnwindAuto,
		ThreadAttributes:  []string{attr.ThreadName},
		Languages:         languages.Names(),
		GoroutineLabels:   []string{"http.route", "rpc.method"},
		MaxMemory:         128 * bytesize.MiB,
		CPU:               oncpu.DefaultConfig(),
		OffCPU:            configoptional.Default(offcpu.DefaultConfig()),
		Allocations:       configoptional.Default(allocs.DefaultConfig()),
		Network:           configoptional.Default(network.DefaultConfig()),
		Dotnet:            configoptional.Default(dotnet.DefaultConfig()),
		BufferSize:        4 * bytesize.MiB,
		ExportInterval:    5 * time.Second,
	}
}

// goneKeys maps the keys of earlier versions to descriptions of the
// behaviour that replaces the keys.
var goneKeys = map[string]string{
	"allocations::buffer_size":      "its buffers have a sixteenth of buffer_size",
	"dotnet::max_request_body_size": "a body may have 1 MiB, which is five times the profiler's largest buffer",
	"export_timeout":                "the next component has 5 seconds for one batch; an exporter with a sending_queue accepts at once",
	"pprof_endpoints::max_size":     "a profile may have 16 MiB",
	"pprof_endpoints::timeout":      "a pull may take 10 seconds longer than duration",
	"stack_bytes":                   "copies of stacks grow as programs need",
}

// Unmarshal accepts true and false for kernel_stacks, although YAML treats them as
// booleans and not as strings. It refuses a fractional frequency, which would be truncated
// silently, and a block of languages, which earlier versions had. It turns off the sampler
// of running threads if the configuration contains only .NET services or pprof endpoints.
func (cfg *Config) Unmarshal(conf *confmap.Conf) error {
	if err := cmp.Or(configlog.Gone(conf, goneKeys), configlog.Check(conf, *cfg)); err != nil {
		return err
	}
	if old, ok := conf.Get("languages").(map[string]any); ok {
		shown := slices.DeleteFunc(languages.Names(), func(name string) bool { return old[name] == false })
		return fmt.Errorf("languages: a list of names replaces this block, write languages: [%s]", strings.Join(shown, ", "))
	}
	if b, ok := conf.Get("kernel_stacks").(bool); ok {
		err := conf.Merge(confmap.NewFromStringMap(map[string]any{"kernel_stacks": strconv.FormatBool(b)}))
		if err != nil {
			return err
		}
	}
	if f, ok := conf.Get("frequency").(float64); ok && f != math.Trunc(f) {
		return fmt.Errorf("frequency: %v is not a whole number between 1 and %d", f, oncpu.MaxFrequency)
	}
	perfEvents, others := conf.IsSet("targets"), false
	for _, f := range samplers(cfg) {
		perfEvents = perfEvents || f.PerfEvents && conf.IsSet(f.Key)
		others = others || !f.PerfEvents && conf.IsSet(f.Key)
	}
	if others && !perfEvents {
		cfg.CPU.Enabled = false
	}
	return conf.Unmarshal(cfg)
}

// Validate returns all errors, each with its key and the allowed values.
func (cfg *Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if !path.IsAbs(cfg.RootPath) {
		fault("root_path: %q is not an absolute path, such as / or /hostfs", cfg.RootPath)
	}
	if n := len(cfg.GoroutineLabels); n > otlpprofiles.MaxLabels {
		fault("goroutine_labels: %d labels are more than %d", n, otlpprofiles.MaxLabels)
	}
	for i, key := range cfg.GoroutineLabels {
		switch {
		case key == "", len(key) > maxLabelKey, strings.Contains(key, "\x00"):
			fault("goroutine_labels: %q is not a key of 1 to %d bytes", key, maxLabelKey)
		case slices.Contains(cfg.GoroutineLabels[:i], key), slices.Contains(ownKeys, key), strings.HasPrefix(key, attr.Prefix):
			fault("goroutine_labels: samples have %q already", key)
		}
	}
	for i, t := range cfg.Targets {
		if err := t.Check(); err != nil {
			fault("targets[%d]: %w", i, err)
		}
	}
	return errors.Join(append(errs,
		configlog.Between("discovery_interval", cfg.DiscoveryInterval, 100*time.Millisecond, time.Hour),
		cfg.Check(),
		configlog.Between("max_perf_events", cfg.MaxPerfEvents, 8, 1<<20),
		configlog.OneOf("kernel_stacks", []KernelStacks{KernelStacksAuto, KernelStacksTrue, KernelStacksFalse}, cfg.KernelStacks),
		configlog.OneOf("unwind", []Unwind{UnwindAuto, UnwindFramePointer, UnwindDwarf}, cfg.Unwind),
		configlog.EachOneOf("languages", languages.Names(), cfg.Languages),
		configlog.EachOneOf("thread_attributes", []string{attr.ThreadName, attr.ThreadID}, cfg.ThreadAttributes),
		configlog.Between("max_memory", cfg.MaxMemory, 16*bytesize.MiB, 64*bytesize.GiB),
		configlog.Between("buffer_size", cfg.BufferSize, buffer.MinSize, buffer.MaxSize),
		// Backends refuse profiles that are older than one hour.
		configlog.Between("export_interval", cfg.ExportInterval, 100*time.Millisecond, 10*time.Minute))...)
}

// TargetConfig is an entry of targets.
type TargetConfig = processes.Target
