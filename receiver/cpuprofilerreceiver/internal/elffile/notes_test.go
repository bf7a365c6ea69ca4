// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package elffile

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseNotes(t *testing.T) {
	note := func(name string, kind uint32, desc string) []byte {
		b := binary.LittleEndian.AppendUint32(nil, uint32(len(name)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(desc)))
		b = binary.LittleEndian.AppendUint32(b, kind)
		for _, s := range []string{name, desc} {
			b = append(b, s...)
			for len(b)%4 != 0 {
				b = append(b, 0)
			}
		}
		return b
	}
	gnu, golang := note("GNU\x00", 3, "\x01\x02\xab"), note("Go\x00\x00", 4, "abc/def")
	tests := map[string]struct {
		notes       []byte
		gnu, golang string
	}{
		"both":                     {append(bytes.Clone(gnu), golang...), "0102ab", "abc/def"},
		"after another":            {append(note("Linux\x00", 257, "12345"), gnu...), "0102ab", ""},
		"the first counts":         {append(bytes.Clone(gnu), note("GNU\x00", 3, "\x07")...), "0102ab", ""},
		"truncated":                {gnu[:len(gnu)-2], "", ""},
		"a size that overflows":    {append(note("GNU\x00", 3, "")[:4], 0xff, 0xff, 0xff, 0xff, 3, 0, 0, 0, 'G', 'N', 'U', 0), "", ""},
		"longer than any build id": {note("GNU\x00", 3, string(make([]byte, maxBuildID+1))), "", ""},
		"none":                     {nil, "", ""},
	}
	for name, test := range tests {
		g, l := ParseNotes(test.notes)
		require.Equal(t, test.gnu, g, name)
		require.Equal(t, test.golang, l, name)
	}
}
