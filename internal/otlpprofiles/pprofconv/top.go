// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofconv

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/hotprofile/hotprofile/internal/truncate"
)

// Share is a function and its percentage of a profile's self time.
type Share struct {
	Function string
	Percent  float64
}

// maxShown is the maximum length of a displayed name, in bytes.
const maxShown = 512

// Hottest returns the n functions with the most self time, like `pprof -top`. The self
// time of a function is the sum of the samples in which it is the innermost function.
// Very long names are truncated, because the result is used in log messages.
func Hottest(p *profile.Profile, n int) []Share {
	self := make(map[string]int64)
	total := int64(0)
	for _, s := range p.Sample {
		v := s.Value[len(s.Value)-1]
		total += v
		self[leaf(s)] += v
	}
	shares := make([]Share, 0, len(self))
	for f, v := range self {
		if total > 0 {
			shares = append(shares, Share{f, 100 * float64(v) / float64(total)})
		}
	}
	slices.SortFunc(shares, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Percent, a.Percent), strings.Compare(a.Function, b.Function))
	})
	shares = shares[:min(n, len(shares))]
	for i, s := range shares {
		shares[i].Function = truncate.Short(s.Function, maxShown)
	}
	return shares
}

// leaf returns the name of a sample's innermost function. If the function is unknown,
// leaf returns the name of the file that contains the code.
func leaf(s *profile.Sample) string {
	if len(s.Location) == 0 {
		return "[no stack]"
	}
	l := s.Location[0]
	if len(l.Line) > 0 && l.Line[0].Function.Name != "" {
		return l.Line[0].Function.Name
	}
	if l.Mapping != nil && l.Mapping.File != "" {
		return "[" + path.Base(strings.Trim(l.Mapping.File, "[]")) + "]"
	}
	return unknownFile
}
