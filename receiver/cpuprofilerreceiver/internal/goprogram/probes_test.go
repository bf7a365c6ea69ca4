// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package goprogram

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReleaseIsReadFromTheLinkersNote(t *testing.T) {
	for version, want := range map[string]int{
		"go1.22":                        22,
		"go1.22.12":                     22,
		"go1.26.8":                      26,
		"go1.26rc1":                     26,
		"go1.24.3 X:nocoverageredesign": 24,
		"go1.24.3-fips":                 24,
		"go1.103.1":                     103,
		"devel go1.27-0123abc":          -1,
		"go1.":                          -1,
		"go1.2x":                        -1,
		"go2.22":                        -1,
		"go1.99999999999999999999":      -1,
		"":                              -1,
	} {
		got, ok := Release(version)
		if !ok {
			got = -1
		}
		require.Equal(t, want, got, version)
	}
}

func FuzzLayout(f *testing.F) {
	f.Add("go1.26.1", []byte{0x49, 0x3b, 0x66, 0x10, 0x76, 9, 0x55, 0x48})
	f.Add("devel go1.27", []byte{0x49, 0x3b, 0x66, 0x10, 0x0f, 0x86, 0, 0, 0, 0, 0x55})
	f.Fuzz(func(t *testing.T, version string, code []byte) {
		if n, ok := Release(version); ok && n < 0 {
			t.Fatalf("release %d of %q", n, version)
		}
		if in := afterStackCheck(code); in != 0 && (in >= uint64(len(code)) || code[in] != 0x55) {
			t.Fatalf("%d bytes into % x", in, code)
		}
	})
}
