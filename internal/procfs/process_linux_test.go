// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestNamespacesOfThisProcess(t *testing.T) {
	own := At("")
	for _, kind := range []string{"net", "pid", "user"} {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		require.NoError(t, err)
		is, err := own.Namespace(Self, kind)
		require.NoError(t, err)
		require.Equal(t, link, fmt.Sprintf("%s:[%d]", kind, is.Inode))
		thread, err := ThreadNamespace(kind)
		require.NoError(t, err)
		require.Equal(t, is, thread)
		f, opened, err := own.OpenNamespace(Self, kind)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Equal(t, is, opened)
	}
	_, err := own.Namespace(MaxPID+1, "net")
	require.True(t, IsGone(err))
	_, _, err = own.OpenNamespace(MaxPID+1, "net")
	require.True(t, IsGone(err))
}

func TestSocketsOfThisProcess(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	want := map[uint32]bool{}
	for _, fd := range pair {
		defer unix.Close(fd)
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(fd, &st))
		want[uint32(st.Ino)] = true
	}
	later := time.Now().Add(time.Hour)
	got := map[uint32]bool{}
	require.True(t, At("").AddSockets(got, Self, math.MaxInt, later))
	require.Subset(t, got, want)
	require.False(t, At("").AddSockets(map[uint32]bool{}, Self, 2, later), "the limit")
	require.False(t, At("").AddSockets(map[uint32]bool{}, Self, math.MaxInt, time.Now()), "the deadline")
	require.True(t, At("").AddSockets(got, MaxPID+1, math.MaxInt, later), "one that has ended has none")
}

func TestSocketInode(t *testing.T) {
	for link, want := range map[string]uint32{"socket:[123]": 123, "socket:[4294967295]": math.MaxUint32} {
		got, ok := socketInode(link)
		require.True(t, ok, link)
		require.Equal(t, want, got, link)
	}
	for _, link := range []string{"", "pipe:[123]", "socket:[]", "socket:[-1]", "socket:[4294967296]", "/tmp/socket:[1]"} {
		_, ok := socketInode(link)
		require.False(t, ok, link)
	}
}

func TestMemoryOfThisProcess(t *testing.T) {
	word := uint64(0x1122334455667788)
	got := uint64(0)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&got)), 8)
	var pinned runtime.Pinner // keeps the word at its address even if the stack moves
	pinned.Pin(&word)
	defer pinned.Unpin()
	require.NoError(t, At("").ReadMemory(Self, b, uint64(uintptr(unsafe.Pointer(&word)))))
	require.Equal(t, word, got)
	require.Error(t, At("").ReadMemory(Self, b, 0))
	require.Error(t, At("").ReadMemory(Self, b, math.MaxUint64))
	require.True(t, IsGone(At("").ReadMemory(MaxPID+1, b, 0)))
}
