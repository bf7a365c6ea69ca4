// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"errors"

	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Config is the configuration block "allocations". The sampler needs CAP_SYS_ADMIN, or
// CAP_PERFMON on kernels that accept it for uprobes.
type Config struct {
	// When is hot or always. With hot, only the units that cpu_trigger marks as hot are
	// sampled, which needs a hot_units extension. If this extension is configured, the
	// default is hot. Otherwise, the default is always. While attached, the sampler slows
	// down the profiled programs, and other programs with the same file, by a few
	// microseconds per 512 KiB allocated.
	When sampler.When `mapstructure:"when"`
	// MaxSamplesPerMinute is the number of samples that are kept per process, 0 to
	// 1000000. The kept samples are chosen at random, and their values are scaled. The
	// default is 200. If MaxSamplesPerMinute is 0, all samples are kept.
	MaxSamplesPerMinute int `mapstructure:"max_samples_per_minute"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// MaxMaxSamplesPerMinute is the largest max_samples_per_minute.
const MaxMaxSamplesPerMinute = 1_000_000

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{MaxSamplesPerMinute: 200}
}

// Validate returns all errors. The collector adds the name of the block.
func (cfg *Config) Validate() error {
	return errors.Join(
		cfg.When.Check(),
		configlog.Between("max_samples_per_minute", cfg.MaxSamplesPerMinute, 0, MaxMaxSamplesPerMinute),
	)
}
