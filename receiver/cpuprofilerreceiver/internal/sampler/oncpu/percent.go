// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Percent is a share in percent, written as 2% or as a plain number.
type Percent float64

const (
	minOverhead Percent = 0.01
	maxOverhead Percent = 100
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
