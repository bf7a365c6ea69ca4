// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofconv

import (
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

func TestHottest(t *testing.T) {
	sample := func(name string, value int64) *profile.Sample {
		f := &profile.Function{Name: name}
		return &profile.Sample{Value: []int64{value}, Location: []*profile.Location{{Line: []profile.Line{{Function: f}}}}}
	}
	long := strings.Repeat("é", maxShown)
	p := &profile.Profile{Sample: []*profile.Sample{sample("a", 1), sample(long, 3), sample("b", 2), sample("b", 4)}}
	require.Equal(t, []Share{{"b", 60}, {long[:maxShown] + "…", 30}}, Hottest(p, 2))
	long = "x" + long
	p.Sample = []*profile.Sample{sample(long, 1)}
	require.Equal(t, []Share{{long[:maxShown-1] + "…", 100}}, Hottest(p, 5), "no half of a letter")
}
