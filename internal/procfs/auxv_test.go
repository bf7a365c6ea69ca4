// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

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

func TestParseAuxv(t *testing.T) {
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
