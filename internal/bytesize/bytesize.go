// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package bytesize has the type of configuration values that are sizes of memory or
// disk: 256MiB, 4 MiB, 200KiB, 1GB, or a number of bytes.
package bytesize

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Size is a number of bytes.
type Size int64

// The binary units.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

type suffix struct {
	name string
	size Size
}

// suffixes are the known ones, the binary ones first, from the largest. String uses
// the first that divides the size.
var suffixes = [...]suffix{
	{"TiB", TiB},
	{"GiB", GiB},
	{"MiB", MiB},
	{"KiB", KiB},
	{"B", 1},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"KB", 1e3},
}

// UnmarshalText parses an integer with an optional unit, in any case, with or without a
// space between them. On an error it does not change s.
func (s *Size) UnmarshalText(text []byte) error {
	in := strings.TrimSpace(string(text))
	digits := strings.TrimRight(in, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	name := strings.TrimSpace(in[len(digits):])
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return fmt.Errorf("size %q: want a whole number of bytes, or one with a unit such as 256MiB", text)
	}
	scale := Size(1)
	if name != "" {
		i := slices.IndexFunc(suffixes[:], func(s suffix) bool { return strings.EqualFold(name, s.name) })
		if i < 0 {
			return fmt.Errorf("size %q: unknown unit %q, want one of B, KB, KiB, MB, MiB, GB, GiB, TB, TiB", text, name)
		}
		scale = suffixes[i].size
	}
	if n > math.MaxInt64/uint64(scale) {
		return fmt.Errorf("size %q: larger than %d bytes", text, int64(math.MaxInt64))
	}
	*s = Size(n) * scale
	return nil
}

// MarshalText returns a text that UnmarshalText parses to the same size.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String returns the exact size, in the largest binary unit that divides it.
func (s Size) String() string {
	if s > 0 {
		for _, x := range suffixes[:5] {
			if s%x.size == 0 {
				return strconv.FormatInt(int64(s/x.size), 10) + x.name
			}
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}
