// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// socketTable is of a little-endian machine: a listener on 127.0.0.1:6060, one on
// all addresses of port 6061, a connection of the first, and a line cut off.
const socketTable = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:17AC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 00000000:17AD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 100 0 0 10 0
   2: 0100007F:17AC 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000000000000000 100 0 0 10 0
   3: 00000000:17AC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4714 1 0000000000000000 100 0 0 10 0
   4: 0100007F:17AC 00000000`

const socketTable6 = `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:17AE 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4721 1 0
   1: 00000000000000000000000001000000:17AF 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4722 1 0
   2: 0000000000000000FFFF00000100007F:17B0 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4723 1 0
`

func TestListenersAreThoseOfTheAddressOrElseOfAll(t *testing.T) {
	for name, tc := range map[string]struct {
		table, at string
		want      []uint64
	}{
		"at the address":             {socketTable, "127.0.0.1:6060", []uint64{4711}},
		"at all":                     {socketTable, "127.0.0.1:6061", []uint64{4712}},
		"another address":            {socketTable, "10.0.0.1:6060", []uint64{4714}},
		"nobody":                     {socketTable, "127.0.0.1:6062", nil},
		"IPv4 is not at all of IPv6": {socketTable, "[::1]:6061", nil},
		"at all of IPv6, for IPv4":   {socketTable6, "127.0.0.1:6062", []uint64{4721}},
		"at IPv6's loopback":         {socketTable6, "[::1]:6063", []uint64{4722}},
		"at IPv4 in IPv6":            {socketTable6, "127.0.0.1:6064", []uint64{4723}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, listening([]byte(tc.table), netip.MustParseAddrPort(tc.at)))
		})
	}
}

func TestWhoHasTheSocketIsLookedForOnceAndAgainWhenItHasEnded(t *testing.T) {
	root := t.TempDir()
	write := func(path, content string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(content), 0o600))
	}
	process := func(pid, link string) {
		require.NoError(t, os.MkdirAll(filepath.Join(root, "proc", pid, "fd"), 0o755))
		require.NoError(t, os.Symlink(link, filepath.Join(root, "proc", pid, "fd/3")))
	}
	write("proc/self/net/tcp", socketTable)
	process("10", "socket:[4711]")
	process("11", "socket:[4713]")
	now := time.Unix(0, 0)
	l := NewListeners(root, func() time.Time { return now })
	at := netip.MustParseAddrPort("127.0.0.1:6060")
	pids, err := l.PIDs(t.Context(), at)
	require.NoError(t, err)
	require.Equal(t, []int{10}, pids)

	process("12", "socket:[4711]") // it inherited it
	pids, err = l.PIDs(t.Context(), at)
	require.NoError(t, err)
	require.Equal(t, []int{10}, pids, "not looked for so soon")
	now = now.Add(lookAgain)
	pids, err = l.PIDs(t.Context(), at)
	require.NoError(t, err)
	require.Equal(t, []int{10, 12}, pids)

	require.NoError(t, os.RemoveAll(filepath.Join(root, "proc/10")))
	pids, err = l.PIDs(t.Context(), at)
	require.NoError(t, err)
	require.Equal(t, []int{12}, pids, "one that ended is noticed")

	require.NoError(t, os.RemoveAll(filepath.Join(root, "proc/12")))
	_, err = l.PIDs(t.Context(), at)
	require.ErrorIs(t, err, ErrUnidentified)
	_, err = l.PIDs(t.Context(), netip.MustParseAddrPort("127.0.0.1:1"))
	require.ErrorIs(t, err, ErrNotListened)
}
