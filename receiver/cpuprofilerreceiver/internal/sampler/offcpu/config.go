// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"errors"
	"time"

	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Config is the block off_cpu of the configuration.
type Config struct {
	// When is hot (only the units that cpu_trigger marks as hot, which needs a hot_units
	// extension) or always. The default is hot with that extension, and always without it.
	// While attached, the sampler slows down the profiled programs by a few microseconds
	// per context switch.
	When sampler.When `mapstructure:"when"`
	// MinDuration is the minimum length of a sampled wait, 0 to 1m. Default 1ms.
	MinDuration time.Duration `mapstructure:"min_duration"`
	// MaxEventsPerSecond bounds the sampled stacks, 1 to 1000000. Above this rate, the
	// sampler samples the stack of one of several context switches and scales the values.
	// Above 20 times as many switches, sampling pauses for a while. Default 10000.
	MaxEventsPerSecond int `mapstructure:"max_events_per_second"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{MinDuration: time.Millisecond, MaxEventsPerSecond: 10000}
}

// Validate returns all errors. The collector adds the name of the block.
func (cfg *Config) Validate() error {
	return errors.Join(
		cfg.When.Check(),
		configlog.Between("min_duration", cfg.MinDuration, 0, time.Minute),
		configlog.Between("max_events_per_second", cfg.MaxEventsPerSecond, 1, 1_000_000),
	)
}
