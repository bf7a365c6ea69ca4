// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package globs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGlobsThatTakeLongAreRefused(t *testing.T) {
	for glob, want := range map[string]string{
		"/shop-*/**":                           "",
		"{a,b}{c,{d,e}}":                       "",
		strings.Repeat("{a,b}", 8):             "",
		strings.Repeat("[{,]", 20):             "",
		strings.Repeat(`\{a,b\}`, 20):          "",
		"":                                     "is not a glob",
		"{a":                                   "is not a glob",
		strings.Repeat("{a*,*a}", 24) + "b":    "more than 256 combinations",
		strings.Repeat("{a,{b,c}}", 6):         "more than 256 combinations",
		"{" + strings.Repeat("a,", 257) + "b}": "more than 256 combinations",
		strings.Repeat("a", 1025):              "too long",
	} {
		err := Check(glob)
		if want == "" {
			require.NoError(t, err, glob)
			continue
		}
		require.ErrorContains(t, err, want, glob)
	}
}

// TestGlobsAtTheBoundAreMatched checks that a valid glob is matched in a bounded number
// of steps, for any text.
func TestGlobsAtTheBoundAreMatched(t *testing.T) {
	glob := strings.Repeat("{a*,*a}", 8) + "b"
	require.NoError(t, Check(glob))
	require.Error(t, Check("{a*,*a}"+glob), "one more doubles the steps")
	require.False(t, Match(glob, strings.Repeat("a", 4096)))
	require.True(t, Match(glob, strings.Repeat("a", 4096)+"b"))
	require.True(t, Match("a[", "a["), "the same text")
}
