// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseExecutable(t *testing.T) {
	for name, c := range map[string]struct {
		line string
		want Mapping
		path string
		ok   bool
	}{
		"a file": {
			line: "7f814c98f000-7f814cae5000 r-xp 00026000 fe:00 326269                     /usr/lib/x86_64-linux-gnu/libc.so.6\n",
			want: Mapping{Start: 0x7f814c98f000, Limit: 0x7f814cae5000, Offset: 0x26000, Major: 0xfe, Inode: 326269},
			path: "/usr/lib/x86_64-linux-gnu/libc.so.6", ok: true,
		},
		"a file with spaces in its name": {
			line: "1000-2000 r-xp 00000000 08:01 7 /a b  c (deleted)\n",
			want: Mapping{Start: 0x1000, Limit: 0x2000, Major: 8, Minor: 1, Inode: 7},
			path: "/a b  c (deleted)", ok: true,
		},
		"the vdso":              {line: "1000-2000 r-xp 00000000 00:00 0                          [vdso]\n", want: Mapping{Start: 0x1000, Limit: 0x2000}, path: "[vdso]", ok: true},
		"anonymous memory":      {line: "1000-2000 rwxp 00000000 00:00 0 \n", want: Mapping{Start: 0x1000, Limit: 0x2000}, ok: true},
		"not executable":        {line: "1000-2000 rw-p 00000000 08:01 7 /a\n"},
		"the end of the space":  {line: "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]", want: Mapping{Start: 0xffffffffff600000, Limit: 0xffffffffff601000}, path: "[vsyscall]", ok: true},
		"backwards":             {line: "2000-1000 r-xp 00000000 08:01 7 /a\n"},
		"empty":                 {line: "\n"},
		"no address":            {line: "x-2000 r-xp 00000000 08:01 7 /a\n"},
		"no device":             {line: "1000-2000 r-xp 00000000 0801 7 /a\n"},
		"an inode out of range": {line: "1000-2000 r-xp 00000000 08:01 77777777777777777777777 /a\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := ParseExecutable([]byte(c.line))
			require.Equal(t, c.ok, ok)
			if !ok {
				return
			}
			require.Equal(t, c.path, string(got.Path))
			require.Equal(t, byte('x'), got.Perms[2])
			got.Path, got.Perms = nil, [4]byte{}
			require.Equal(t, c.want, got)
		})
	}
}

func TestParseMapping(t *testing.T) {
	m, ok := ParseMapping([]byte("1000-2000 rw-p 00000000 00:01 7     /memfd:a (deleted)\n"))
	require.True(t, ok)
	require.Equal(t, Mapping{Start: 0x1000, Limit: 0x2000, Minor: 1, Inode: 7, Perms: [4]byte([]byte("rw-p")), Path: []byte("/memfd:a (deleted)")}, m)
	for _, bad := range []string{"1000-2000 rw- 00000000 00:01 7 /a", "1000-2000 rw-pp 00000000 00:01 7 /a", "1000-2000"} {
		_, ok := ParseMapping([]byte(bad))
		require.False(t, ok, bad)
	}
}

func FuzzParseExecutable(f *testing.F) {
	f.Add([]byte("7f814c98f000-7f814cae5000 r-xp 00026000 fe:00 326269   /usr/lib/libc.so.6\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, ok := ParseExecutable(b); ok && m.Start >= m.Limit {
			t.Errorf("%+v", m)
		}
	})
}
