// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/hosttest"
)

func openSwitches(t testing.TB, o SwitchOptions) *Switches {
	t.Helper()
	if err := Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	s, err := OpenSwitches(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// readSwitchesUntil reads until done says so.
func readSwitchesUntil(t testing.TB, s *Switches, what string, done func(*SwitchRecord) bool) {
	t.Helper()
	var rec SwitchRecord
	for end := time.Now().Add(deadline); ; {
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

func TestEverySwitchIsSeen(t *testing.T) {
	s := openSwitches(t, SwitchOptions{})
	require.NotEmpty(t, s.CPUs())
	before := monotonic()
	running := make([]int, len(s.CPUs())) // tid by CPU; -1: not known
	for i := range running {
		running[i] = -1
	}
	h := newHelper(t)
	tid, err := strconv.Atoi(h.tell("thread"))
	require.NoError(t, err)
	last, seen, forked, switches := int64(0), 0, false, 0
	known, missed := 0, 0
	readSwitchesUntil(t, s, "switches of a busy thread", func(r *SwitchRecord) bool {
		require.GreaterOrEqual(t, r.Time, last, "out of order")
		require.LessOrEqual(t, r.Time, monotonic())
		last = r.Time
		switch r.Type {
		case TypeFork:
			forked = forked || r.PID == h.pid() && r.OtherPID == os.Getpid()
		case TypeLost:
			running[r.CPU] = -1
		case TypeSwitch:
			if switches++; running[r.CPU] >= 0 && r.OtherTID >= 0 {
				if known++; running[r.CPU] != r.OtherTID {
					missed++
				}
			}
			running[r.CPU] = r.TID
			if r.TID == tid {
				require.Equal(t, h.pid(), r.PID)
				require.GreaterOrEqual(t, r.Time, before)
				seen++
			}
		}
		return forked && seen > 0 && switches > 1000
	})
	// Few threads, of the kernel, write neither record; two of them in a row are
	// seen by nobody.
	require.Less(t, missed, known/50, "what leaves a CPU was not there")
	require.Zero(t, s.Corrupt())
}

func TestALookTellsWhatRuns(t *testing.T) {
	s := openSwitches(t, SwitchOptions{})
	for range 3 { // an event that has done its work can be used again
		require.NoError(t, s.Look())
		seen := map[int]bool{}
		readSwitchesUntil(t, s, "a look at each CPU", func(r *SwitchRecord) bool {
			if r.Type == TypeSample {
				require.False(t, seen[r.CPU], "once for each CPU")
				seen[r.CPU] = true
			}
			return len(seen) == len(s.CPUs())
		})
	}
}

func TestExecAndExitAreTold(t *testing.T) {
	s := openSwitches(t, SwitchOptions{})
	h := newHelper(t)
	h.tell("exec")
	readSwitchesUntil(t, s, "an exec", func(r *SwitchRecord) bool { return r.Type == TypeExec && r.PID == h.pid() })
	h.kill()
	readSwitchesUntil(t, s, "an exit", func(r *SwitchRecord) bool { return r.Type == TypeExit && r.PID == h.pid() })
}

func TestCloseEndsAWaitForSwitches(t *testing.T) {
	s := openSwitches(t, SwitchOptions{Ring: 64 << 20})
	waited := make(chan error)
	go func() {
		var err error
		for err == nil {
			err = s.Wait(-1)
			var rec SwitchRecord
			for s.Read(&rec) {
			}
		}
		waited <- err
	}()
	s.Wake()
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-waited, os.ErrClosed)
	require.ErrorIs(t, s.Look(), os.ErrClosed)
	require.False(t, s.Read(new(SwitchRecord)))
}

func TestSwitchesKeepToTheLimitOfDescriptors(t *testing.T) {
	if err := Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	_, err := OpenSwitches(SwitchOptions{MaxDescriptors: 1})
	var limit *LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, 1, limit.Limit)
}

func TestSwitchesOfNoCPU(t *testing.T) {
	if err := Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	_, err := OpenSwitches(SwitchOptions{CPUs: []int{65535}})
	require.Error(t, err)
}
