// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"errors"
	"time"

	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Config is the off_cpu block of the configuration.
type Config struct {
	// When is hot or always. With hot, only the units that cpu_trigger marks as hot are
	// sampled, which needs a hot_units extension. If this extension is configured, the
	// default is hot. Otherwise, the default is always. While attached, the sampler slows
	// down the profiled programs by a few microseconds per context switch.
	When sampler.When `mapstructure:"when"`
	// MinDuration is the minimum length of a sampled wait, from 0 to 1m. The default is 1ms.
	MinDuration time.Duration `mapstructure:"min_duration"`
	// MaxEventsPerSecond is the maximum number of sampled stacks per second, from 1 to
	// 1000000. Above this rate, the sampler samples the stacks of only some context
	// switches and scales the values. If there are more than 20 times as many switches,
	// sampling pauses for a while. The default is 10000.
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
