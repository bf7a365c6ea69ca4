// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func words(all ...uint64) (b []byte) {
	for _, w := range all {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	return b
}

func TestEntryPointIsReadFromWhatTheKernelToldAProgram(t *testing.T) {
	for name, c := range map[string]struct {
		auxv []byte
		want uint64
		ok   bool
	}{
		"among others":     {words(33, 1, 9, 0x401000, 0, 0), 0x401000, true},
		"after the end":    {words(33, 1, 0, 0, 9, 0x401000), 0, false},
		"without one":      {words(33, 1, 0, 0), 0, false},
		"cut off":          {words(33, 1, 9), 0, false},
		"cut off in words": {words(33, 1, 9, 0x401000)[:30], 0, false},
		"empty":            {nil, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := parseAuxv(c.auxv)
			require.Equal(t, c.ok, ok)
			require.Equal(t, c.want, got)
		})
	}
}

func FuzzParseAuxv(f *testing.F) {
	f.Add(words(33, 1, 9, 0x401000, 0, 0))
	f.Add(words(9, 1)[:15])
	f.Fuzz(func(t *testing.T, b []byte) {
		if entry, ok := parseAuxv(b); !ok && entry != 0 {
			t.Fatalf("%#x though there is none", entry)
		}
	})
}

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
