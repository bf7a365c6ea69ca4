// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"

	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Config is the network block of the configuration. The sampler needs CAP_PERFMON and
// tracefs.
type Config struct {
	// When is hot or always. With hot, only the units that cpu_trigger marks as hot are
	// sampled, which needs a hot_units extension. If this extension is configured, the
	// default is hot. Otherwise, the default is always. While attached, the sampler slows
	// down the profiled programs by 0.1 µs per call on a socket.
	When sampler.When `mapstructure:"when"`
	// MaxEventsPerSecond is the maximum number of sampled calls per second, from 1 to
	// 1000000. Above this rate, one of several calls is sampled, and values are scaled.
	// Large calls are sampled more often. The default is 10000.
	MaxEventsPerSecond int `mapstructure:"max_events_per_second"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{MaxEventsPerSecond: 10000} }

// Validate returns all errors. The collector adds the name of the block.
func (cfg *Config) Validate() error {
	return errors.Join(cfg.When.Check(), configlog.Between("max_events_per_second", cfg.MaxEventsPerSecond, 1, 1_000_000))
}
