// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/hotprofile/hotprofile/internal/configlog"
)

// Config is the cpu block of the configuration.
type Config struct {
	// Enabled turns the sampler on. The default is true. If `dotnet` or `pprof_endpoints` is
	// set, and `cpu`, `targets`, `off_cpu`, `allocations` and `network` are not set, the
	// default is false.
	Enabled bool `mapstructure:"enabled"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// RateConfig configures the sampling frequency for running threads. Its keys are at the top
// level of the receiver's configuration.
type RateConfig struct {
	// Frequency is the number of samples per second of CPU time, 1 to 999. The default is
	// 97. This number is prime, so sampling does not run in lockstep with timers.
	Frequency int `mapstructure:"frequency"`
	// MaxOverhead limits the CPU time for reading samples of running threads and resolving
	// their names. It is a percentage of one core per sampled CPU, 0.01% to 100%. Above the
	// limit, the frequency is halved step by step, and it is raised again later. The default
	// is 2%. 0 means no limit.
	MaxOverhead Percent `mapstructure:"max_overhead"`
}

// MaxFrequency is the highest frequency.
const MaxFrequency = 999

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{Enabled: true} }

// DefaultRate returns the defaults.
func DefaultRate() RateConfig { return RateConfig{Frequency: 97, MaxOverhead: 2} }

// Check returns all errors, each with its key. It is not called Validate, because the
// collector would then prefix the keys with another key.
func (cfg *RateConfig) Check() error {
	var overhead error
	// This form of the condition also rejects NaN.
	if o := cfg.MaxOverhead; o != 0 && !(o >= minOverhead && o <= maxOverhead) {
		overhead = fmt.Errorf("max_overhead: %v is neither between %v and %v nor 0, which means no bound", o, minOverhead, maxOverhead)
	}
	return errors.Join(configlog.Between("frequency", cfg.Frequency, 1, MaxFrequency), overhead)
}

// Percent is a percentage, written as 2% or as a plain number.
type Percent float64

const (
	minOverhead Percent = 0.01
	maxOverhead Percent = 100
)

// UnmarshalText reads a number with or without a percent sign. After an error, the old
// value is unchanged.
func (p *Percent) UnmarshalText(text []byte) error {
	number := strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(string(text)), "%"))
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Errorf("percentage %q: want a number of percent, such as 2%%", text)
	}
	*p = Percent(v)
	return nil
}

// MarshalText returns a text that UnmarshalText reads as the same percentage.
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String returns the percentage in the form 2%.
func (p Percent) String() string { return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%" }
