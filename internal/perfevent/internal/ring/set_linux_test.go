// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// counter returns a dummy event, which counts nothing. Opening the event for all
// processes requires the right to sample the whole host.
func counter() *unix.PerfEventAttr {
	return sys.Attr(unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_DUMMY, 0, unix.PerfBitExcludeKernel)
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// TestCPUsThatAreOfflineAreLeftOut checks that an offline CPU leaves no file open,
// whichever of its events fails first.
func TestCPUsThatAreOfflineAreLeftOut(t *testing.T) {
	var s Set
	if err := s.Open("a test", []int{0}, func(int) error {
		r, err := Map(counter(), sys.AllProcesses, 0, os.Getpagesize())
		if err == nil {
			s.Add(r)
		}
		return err
	}, func() bool { return false }); err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	require.NoError(t, s.Close(func() error { return nil }))
	files := openFiles(t) // includes the files of the runtime's poller
	for _, fails := range []string{"first", "second"} {
		var s Set
		err := s.Open("a test", []int{0, 1 << 10}, func(cpu int) error {
			if cpu != 0 && fails == "first" {
				return unix.ENODEV
			}
			r, err := Map(counter(), sys.AllProcesses, 0, os.Getpagesize())
			require.NoError(t, err)
			s.Add(r)
			if cpu != 0 {
				return unix.ENODEV
			}
			return nil
		}, nil)
		require.NoError(t, err)
		require.Equal(t, []int{0}, s.Waiter().CPUs(), fails)
		require.Len(t, s.rings, 1, fails)
		require.False(t, s.Waiter().Stale([]int{0}), fails)
		require.True(t, s.Waiter().Stale([]int{0, 1}), fails)
		require.NoError(t, s.Close(func() error { return nil }))
		require.False(t, s.Waiter().Stale([]int{0, 1}), "closed")
		require.Equal(t, files, openFiles(t), fails)
	}
}
