// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLinesOfPython compares lines with the lines that each version's dis module
// reported. testdata/record_lines.py recorded these lines.
func TestLinesOfPython(t *testing.T) {
	for minor := 8; minor <= 13; minor++ {
		t.Run(strconv.Itoa(minor), func(t *testing.T) {
			f, err := os.Open(fmt.Sprintf("testdata/lines-3.%d.txt", minor))
			require.NoError(t, err)
			defer f.Close()
			instructions := 0
			for s := bufio.NewScanner(f); s.Scan(); {
				fields := strings.Fields(s.Text())
				require.Len(t, fields, 4)
				first, err := strconv.ParseInt(fields[1], 10, 64)
				require.NoError(t, err)
				table, _ := hex.DecodeString(fields[2]) // "-" is an empty table
				for i, want := range strings.Split(fields[3], ",") {
					require.Equal(t, want, strconv.FormatInt(pythonLine(minor, table, first, int64(2*i)), 10), "%s, instruction %d", fields[0], i)
					instructions++
				}
				require.Equal(t, first, pythonLine(minor, table, first, -2))
			}
			require.Greater(t, instructions, 1000)
		})
	}
}

func FuzzLinesOfPython(f *testing.F) {
	f.Add(11, []byte{0x80, 0, 0xf0, 0x41, 2}, int64(1), int64(4))
	f.Add(10, []byte{2, 0x80, 4, 1}, int64(1), int64(4))
	f.Fuzz(func(_ *testing.T, minor int, table []byte, first, offset int64) {
		pythonLine(minor, table, first, offset)
	})
}
