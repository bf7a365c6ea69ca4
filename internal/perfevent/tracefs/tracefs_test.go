// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package tracefs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// format is the format file of a tracepoint in Linux 6.18. An array and a pointer were added.
const format = `name: sock_send_length
ID: 2284
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:void * sk;	offset:8;	size:8;	signed:0;
	field:__u16 family;	offset:16;	size:2;	signed:0;
	field:int ret;	offset:20;	size:4;	signed:1;
	field:__u8 saddr[4];	offset:24;	size:4;	signed:0;
	field:char *name;	offset:28;	size:8;	signed:0;

print fmt: "length = %d", REC->ret
`

// fixture creates a tracefs in a folder below the returned root.
func fixture(t *testing.T, folder string, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	events := filepath.Join(root, folder, "events")
	require.NoError(t, os.MkdirAll(events, 0o755))
	for name, content := range files {
		path := filepath.Join(events, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return root
}

func TestTracepointIsReadWhereverTracefsIsMounted(t *testing.T) {
	for _, folder := range folders {
		root := fixture(t, folder, map[string]string{"sock/sock_send_length/id": "2284\n", "sock/sock_send_length/format": format})
		f, err := Find(root)
		require.NoError(t, err)
		id, fields, err := f.Tracepoint("sock:sock_send_length", "ret", "sk", "saddr", "common_flags", "family", "name")
		require.NoError(t, err)
		require.EqualValues(t, 2284, id)
		require.Equal(t, []Field{{20, 4, true}, {8, 8, false}, {24, 4, false}, {2, 1, false}, {16, 2, false}, {28, 8, false}}, fields)
		_, _, err = f.Tracepoint("sock:sock_send_length", "ret", "absent")
		require.ErrorContains(t, err, "absent")
	}
}

func TestWhatIsMissingIsTold(t *testing.T) {
	_, err := Find(t.TempDir())
	require.ErrorIs(t, err, ErrNotMounted)

	f, err := Find(fixture(t, folders[0], nil))
	require.NoError(t, err)
	_, _, err = f.Tracepoint("sock:sock_send_length")
	require.ErrorIs(t, err, os.ErrNotExist)

	f, err = Find(fixture(t, folders[0], map[string]string{"a/b/id": "x", "a/b/format": format, "a/c/id": "1", "a/c/format": "nothing"}))
	require.NoError(t, err)
	_, _, err = f.Tracepoint("a:b")
	require.ErrorContains(t, err, "the id of a:b")
	_, _, err = f.Tracepoint("a:c")
	require.ErrorContains(t, err, "the format of a:c")
}

func TestFieldsOutsideOfARecordHaveNoValue(t *testing.T) {
	record := []byte{1, 2, 3, 0xff, 0xff, 0xff, 0xff, 0xff}
	n, ok := Field{Offset: 4, Size: 4, Signed: true}.Int(record)
	require.True(t, ok)
	require.EqualValues(t, -1, n)
	n, ok = Field{Offset: 6, Size: 2}.Int(record)
	require.True(t, ok)
	require.EqualValues(t, 0xffff, n)
	for _, f := range []Field{{Offset: 5, Size: 4}, {Offset: 8, Size: 1}, {Offset: 0, Size: 3}, {Offset: 9, Size: 1}, {Offset: 0, Size: 0}} {
		_, ok := f.Int(record)
		require.False(t, ok, "%+v", f)
	}
}

func FuzzParseFormat(f *testing.F) {
	f.Add([]byte(format))
	f.Add([]byte("field:int a;offset:-1;size:4;"))
	f.Add([]byte("field:;"))
	f.Fuzz(func(t *testing.T, text []byte) {
		fields, err := parseFormat(text)
		if err != nil {
			return
		}
		record := make([]byte, 64)
		for name, field := range fields {
			if field.Offset < 0 || field.Offset >= maxOffset || field.Size < 0 || field.Size >= maxOffset {
				t.Fatalf("%s: %+v", name, field)
			}
			field.Int(record)
		}
	})
}
