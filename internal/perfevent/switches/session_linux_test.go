// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package switches

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/test/hosttest"
	"github.com/hotprofile/hotprofile/test/programtest"
)

// needHostWide skips the test if sampling of the whole host is not permitted.
func needHostWide(t testing.TB) {
	t.Helper()
	if err := perfevent.Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
}

func open(t testing.TB) *Session {
	t.Helper()
	needHostWide(t)
	s, err := Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func readUntil(t testing.TB, s *Session, what string, done func(*Record) bool) {
	t.Helper()
	var rec Record
	for end := time.Now().Add(programtest.Deadline); ; {
		require.NoError(t, s.Wait(20*time.Millisecond))
		for s.Read(&rec) {
			require.LessOrEqual(t, rec.Time, s.Through())
			if done(&rec) {
				return
			}
		}
		require.True(t, time.Now().Before(end), "%s: not seen", what)
	}
}

func TestMain(m *testing.M) { programtest.Main(m, nil) }

func TestEverySwitchIsRecorded(t *testing.T) {
	s := open(t)
	require.NotEmpty(t, s.CPUs())
	before := sys.Monotonic()
	running := make([]int, len(s.CPUs())) // thread ID by CPU; -1 means unknown
	for i := range running {
		running[i] = -1
	}
	h := programtest.Start(t)
	tid, err := strconv.Atoi(h.Order("thread"))
	require.NoError(t, err)
	last, seen, forked, switches := int64(0), 0, false, 0
	known, missed := 0, 0
	readUntil(t, s, "switches of a busy thread", func(r *Record) bool {
		require.GreaterOrEqual(t, r.Time, last, "out of order")
		require.LessOrEqual(t, r.Time, sys.Monotonic())
		last = r.Time
		switch r.Kind {
		case Fork:
			forked = forked || r.PID == h.PID() && r.OtherPID == os.Getpid()
		case Lost:
			running[r.CPU] = -1
		case Switch:
			if switches++; running[r.CPU] >= 0 && r.OtherTID >= 0 {
				if known++; running[r.CPU] != r.OtherTID {
					missed++
				}
			}
			running[r.CPU] = r.TID
			if r.TID == tid {
				require.Equal(t, h.PID(), r.PID)
				require.GreaterOrEqual(t, r.Time, before)
				seen++
			}
		}
		return forked && seen > 0 && switches > 1000
	})
	// A few kernel threads write neither record of a switch. If two of these threads run one
	// after the other, no record reports the switch between them.
	require.Less(t, missed, known/50, "a thread left a CPU that it was not on")
	require.Zero(t, s.merger.corrupt)
}

func TestSnapshotRecordsWhatRuns(t *testing.T) {
	s := open(t)
	for range 3 { // an event that was sampled once can be enabled again
		require.NoError(t, s.Snapshot())
		seen := map[int]bool{}
		readUntil(t, s, "what runs on each CPU", func(r *Record) bool {
			if r.Kind == Running {
				require.False(t, seen[r.CPU], "more than one record of a CPU")
				seen[r.CPU] = true
			}
			return len(seen) == len(s.CPUs())
		})
	}
}

func TestExecAndExitAreRecorded(t *testing.T) {
	s := open(t)
	h := programtest.Start(t)
	h.Order("exec")
	readUntil(t, s, "an exec", func(r *Record) bool { return r.Kind == Exec && r.PID == h.PID() })
	h.Kill()
	readUntil(t, s, "an exit", func(r *Record) bool { return r.Kind == Exit && r.PID == h.PID() })
}

func TestCloseEndsWait(t *testing.T) {
	needHostWide(t)
	cpus, err := sys.OnlineCPUs()
	require.NoError(t, err)
	s, err := openOn(cpus, 64<<20, sys.DescriptorLimit(0)) // more than may be locked
	require.NoError(t, err)
	waited := make(chan error)
	go func() {
		var err error
		for err == nil {
			err = s.Wait(-1)
			var rec Record
			for s.Read(&rec) {
			}
		}
		waited <- err
	}()
	s.Wake()
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-waited, os.ErrClosed)
	require.ErrorIs(t, s.Snapshot(), os.ErrClosed)
	require.False(t, s.Read(new(Record)))
}

func TestDescriptorsAreBounded(t *testing.T) {
	needHostWide(t)
	_, err := openOn([]int{0}, 1, 1)
	var limit *perfevent.LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, 1, limit.Limit)
}

func TestNoCPUIsOnline(t *testing.T) {
	needHostWide(t)
	_, err := openOn([]int{65535}, 1, 2)
	require.Error(t, err)
}
