// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Percent is a share in percent, written as 2% or as the bare number.
type Percent float64

const (
	minOverhead Percent = 0.01
	maxOverhead Percent = 100
	// minOverheadWindow is how long the cost is added up at least before it is
	// judged, however often is exported.
	minOverheadWindow = 5 * time.Second
)

// UnmarshalText reads a number with or without a percent sign. It keeps the old
// value on an error.
func (p *Percent) UnmarshalText(text []byte) error {
	number := strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(string(text)), "%"))
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Errorf("percentage %q: want a number of percent, such as 2%%", text)
	}
	*p = Percent(v)
	return nil
}

// MarshalText gives the form that UnmarshalText reads to the same share.
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String is as in 2%.
func (p Percent) String() string { return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%" }

func (cfg *Config) validateOverhead() error {
	// Not a number is between nothing.
	if o := cfg.MaxOverhead; o != 0 && !(o >= minOverhead && o <= maxOverhead) {
		return fmt.Errorf("max_overhead: %v is neither between %v and %v nor 0, which means no bound", o, minOverhead, maxOverhead)
	}
	return nil
}
