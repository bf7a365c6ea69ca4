// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/offcpu"
)

// OffCPUConfig is about threads that do not run: where they block and for how
// long, and how long they wait for a CPU.
type OffCPUConfig struct {
	// When is hot (only the units that cpu_trigger says are hot, which needs a
	// hot_units extension) or always. Default hot with that extension, else always.
	// While attached it costs the profiled programs a few microseconds at each
	// switch of a thread.
	When When `mapstructure:"when"`
	// MinDuration is the length from which on waits are shown, 0 to 1m. Default
	// 1ms.
	MinDuration time.Duration `mapstructure:"min_duration"`
	// MaxEventsPerSecond bounds the stacks, 1 to 1000000: above it the stack of one
	// of several switches is sampled, and values are scaled. Above 20 times as many
	// switches nothing is read for a while. Default 10000.
	MaxEventsPerSecond int `mapstructure:"max_events_per_second"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// When says on what a sampler that costs more than others runs.
type When string

// The values of when.
const (
	WhenHot    When = "hot"
	WhenAlways When = "always"
)

const (
	maxMinDuration        = time.Minute
	maxMaxEventsPerSecond = 1_000_000
)

func defaultOffCPU() OffCPUConfig {
	return OffCPUConfig{MinDuration: time.Millisecond, MaxEventsPerSecond: 10000}
}

// Validate reports every fault; the collector names the block.
func (cfg *OffCPUConfig) Validate() error {
	var errs []error
	errs = append(errs, cfg.When.validate())
	if cfg.MinDuration < 0 || cfg.MinDuration > maxMinDuration {
		errs = append(errs, fmt.Errorf("min_duration: %v is not between 0 and %v", cfg.MinDuration, maxMinDuration))
	}
	if cfg.MaxEventsPerSecond < 1 || cfg.MaxEventsPerSecond > maxMaxEventsPerSecond {
		errs = append(errs, fmt.Errorf("max_events_per_second: %d is not between 1 and %d", cfg.MaxEventsPerSecond, maxMaxEventsPerSecond))
	}
	return errors.Join(errs...)
}

func (w When) validate() error {
	if w != "" && w != WhenHot && w != WhenAlways {
		return fmt.Errorf("when: %q is not one of %s, %s", w, WhenHot, WhenAlways)
	}
	return nil
}

// newOffCPU joins the sampler's parts; hot is nil where there is no such
// extension.
func (p *profiler) newOffCPU(at place, sink offcpu.Sink, hot hotunitsextension.HotUnits) (*offcpu.Sampler, func(), error) {
	cfg := p.cfg.OffCPU.Get()
	known, targets, err := p.known(at)
	if err != nil {
		return nil, nil, err
	}
	// Its own stacks, beside those of running threads, have half of their memory.
	known.Limits.StackBytes = 16 << 20
	finder, err := attach.NewTargetFinder(known, targets, ownPID())
	if err != nil {
		return nil, nil, err
	}
	config := offcpu.Config{
		Finder:             finder,
		Table:              processes.NewTable(known),
		Sink:               sink,
		MinDuration:        cfg.MinDuration,
		MaxEventsPerSecond: cfg.MaxEventsPerSecond,
		MaxEvents:          p.cfg.MaxPerfEvents,
		DiscoveryInterval:  p.cfg.DiscoveryInterval,
		Kernel:             p.kernelStacks(),
		Stacks:             p.newStacks(samples.OffCPU.Sampler),
		ThreadName:         slices.Contains(p.cfg.ThreadAttributes, attr.ThreadName),
		ThreadID:           slices.Contains(p.cfg.ThreadAttributes, attr.ThreadID),
		When:               "always",
		Logger:             p.logger,
		Now:                systemClock{}.Monotonic,
		Probe:              perfevent.Probe,
		Still:              offcpu.NewStill(at.root),
	}
	stop := func() {}
	isHot, why, err := cfg.When.resolve(hot)
	if err != nil {
		return nil, nil, fmt.Errorf("off_cpu: %w", err)
	}
	config.When = why
	if isHot {
		config.Finder = &hotFinder{hot: hot, tree: at.tree, known: known, targets: finder}
		config.Changed, stop = hot.Watch()
	}
	return offcpu.New(config), stop, nil
}

// resolve says whether a sampler runs on hot units alone, and why.
func (w When) resolve(hot hotunitsextension.HotUnits) (isHot bool, why string, err error) {
	switch {
	case w == WhenHot && hot == nil:
		return false, "", errors.New("when: hot needs a hot_units extension: name one in extensions and in service.extensions, or write when: always")
	case w == WhenAlways:
		return false, "always", nil
	case w == "" && hot == nil:
		return false, "always, as there is no hot_units extension", nil
	case w == "":
		return true, "hot, as there is a hot_units extension", nil
	default:
		return true, "hot", nil
	}
}

// hotUnits is the extension that a host has, nil if it has none.
func hotUnits(host component.Host, log *zap.Logger) hotunitsextension.HotUnits {
	if host == nil {
		return nil
	}
	return hotunitsextension.Find(host, log)
}
