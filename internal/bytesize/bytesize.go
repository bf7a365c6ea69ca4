// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package bytesize defines a type for sizes of memory or disk in configurations.
// Examples are 256MiB, 4 MiB, 200KiB, 1GB, and a plain number of bytes.
package bytesize

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// Size is a number of bytes.
type Size int64

// These are the binary units.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

// UnmarshalText parses a number with an optional unit in upper or lower case. There may be
// a space between the number and the unit. On an error UnmarshalText does not change s.
func (s *Size) UnmarshalText(text []byte) error {
	n, err := humanize.ParseBytes(strings.TrimSpace(string(text)))
	if err != nil || n > math.MaxInt64 {
		return fmt.Errorf("size %q: want a number of bytes up to %d, or one with a unit such as 256MiB or 1GB", text, int64(math.MaxInt64))
	}
	*s = Size(n)
	return nil
}

// MarshalText returns the size in a form that UnmarshalText parses to the same size.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String returns the exact size in the largest binary unit that divides it.
func (s Size) String() string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for s != 0 && s%KiB == 0 && i+1 < len(units) {
		s, i = s/KiB, i+1
	}
	return strconv.FormatInt(int64(s), 10) + units[i]
}
