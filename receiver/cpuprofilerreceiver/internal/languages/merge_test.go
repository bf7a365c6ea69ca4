// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// TestMerge writes stacks as strings. Lower-case letters are native frames, and E is the
// interpreter loop. Upper-case letters are walked frames, with a dot after each call of
// the loop.
func TestMerge(t *testing.T) {
	for name, test := range map[string]struct {
		native, walked string
		truncated      bool // whether the native stack is truncated
		cut, changed   bool // whether the walk was cut, and whether frames changed during the walk
		want           string
		whole          bool
	}{
		"all in one call":         {native: "aEbc", walked: "ZYX.", want: "aZYXbc", whole: true},
		"through C":               {native: "aEbcEd", walked: "Z.YX.", want: "aZbcYXd", whole: true},
		"it called more since":    {native: "aEb", walked: "Z.YX.", want: "aYXb", whole: true},
		"it returned since":       {native: "aEbEc", walked: "YX.", want: "aEbYXc", whole: true},
		"freed while it was read": {native: "aEbEc", walked: "Z.", changed: true, want: "aEbEc", whole: true},
		"a call without frames":   {native: "EbEc", walked: ".YX.", want: "bYXc", whole: true},
		"a cut native stack":      {native: "aEbE", walked: "Z.Y.X.W.", truncated: true, want: "aZbYXW", whole: true},
		"both cut":                {native: "aEbE", walked: "Z.Y.X.W.", truncated: true, cut: true, want: "aZbYXW"},
		"with a perf map":         {native: "aEj", walked: "Z.Y.X.", truncated: true, want: "aZYX", whole: true},
		"cut before the loop":     {native: "ab", walked: "Z.", truncated: true, want: "abZ", whole: true},
		"no loop":                 {native: "ab", walked: "Z.", want: "ab", whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := *layouts["3.12"]
			w, of := newTestWalker(t, &l, nil)
			code := of.Mapped()[0].Start // an address in a file
			loopAt := code + 512
			l.Loop = []interpreter.Range{{Start: loopAt, Limit: loopAt + 16}}
			for _, c := range test.walked {
				if c == '.' {
					w.ends = append(w.ends, len(w.frames))
				} else {
					w.frames = append(w.frames, synthetic|uint64(c-'A'+1))
				}
			}
			w.cut, w.changed = test.cut, test.changed
			var s perfevent.Sample
			for _, c := range test.native {
				switch c {
				case 'E':
					s.User = append(s.User, loopAt+8)
				case 'j': // an address that is not in a file
					s.User = append(s.User, 10)
				default:
					s.User = append(s.User, code|uint64(c-'a'+1))
				}
			}
			whole := w.Merge(of, &s, !test.truncated)
			var got strings.Builder
			for _, a := range s.User {
				switch {
				case a >= synthetic:
					got.WriteRune('A' + rune(a&1023) - 1)
				case a == loopAt+8:
					got.WriteRune('E')
				default:
					got.WriteRune('a' + rune(a&1023) - 1)
				}
			}
			require.Equal(t, test.want, got.String())
			require.Equal(t, test.whole, whole)
			require.Equal(t, !whole, s.Truncated)
		})
	}
}
