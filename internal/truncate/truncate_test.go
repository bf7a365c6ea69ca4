// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package truncate

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{
		{"", 0, ""},
		{"abc", 4, "abc"},
		{"abc", 3, "abc"},
		{"abc", 2, "ab"},
		{"abc", 0, ""},
		{"é", 0, ""},
		{"é", 1, ""},
		{"aé", 2, "a"},
		{"aéb", 3, "aé"},
		{"日本", 5, "日"},
		{"日本", 3, "日"},
		{"a😀", 4, "a"},
		{"a😀b", 5, "a😀"},
		{strings.Repeat("\xa9", 8), 6, strings.Repeat("\xa9", 6)},
		{strings.Repeat("\xa9", 8), 1, "\xa9"},
		{"a\xff\xff\xff", 2, "a\xff"},
	} {
		require.Equal(t, c.want, Cut(c.s, c.n), "%q at %d", c.s, c.n)
	}
	s := "aé日😀" + strings.Repeat("ü", 10)
	for n := range len(s) {
		got := Cut(s, n)
		require.True(t, strings.HasPrefix(s, got) && utf8.ValidString(got), "%q at %d", got, n)
		require.Greater(t, len(got), n-utf8.UTFMax)
		require.LessOrEqual(t, len(got), n)
	}
}

func TestShort(t *testing.T) {
	require.Equal(t, "abc", Short("abc", 3))
	require.Equal(t, "ab…", Short("abc", 2))
	require.Equal(t, "a…", Short("aéb", 2))
}
