// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"testing"
)

func FuzzLayout(f *testing.F) {
	f.Add("go1.26.1", []byte{0x49, 0x3b, 0x66, 0x10, 0x76, 9, 0x55, 0x48})
	f.Add("devel go1.27", []byte{0x49, 0x3b, 0x66, 0x10, 0x0f, 0x86, 0, 0, 0, 0, 0x55})
	f.Fuzz(func(t *testing.T, version string, code []byte) {
		if n, ok := release(version); ok && n < 0 {
			t.Fatalf("release %d of %q", n, version)
		}
		if in := afterStackCheck(code); in != 0 && (in >= uint64(len(code)) || code[in] != 0x55) {
			t.Fatalf("%d bytes into % x", in, code)
		}
	})
}
