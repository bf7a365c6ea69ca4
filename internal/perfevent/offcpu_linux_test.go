// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/hosttest"
)

// sleeper is a program that sleeps for 2 ms again and again.
const sleeper = `import time
for _ in range(100000): time.sleep(0.002)`

// blocked reads the waits of a thread for a while: how many and how long, and how
// many of them had a stack that was sampled right before.
func blocked(t *testing.T, s *Session, tid int, span time.Duration) (waits, stacks int, slept time.Duration) {
	t.Helper()
	var rec Record
	var out int64
	sampled := false
	for end := time.Now().Add(span); time.Now().Before(end); {
		require.NoError(t, s.Wait(20*time.Millisecond))
		for s.Read(&rec) {
			switch {
			case rec.TID != tid:
			case rec.Type == TypeSample:
				require.NotNil(t, rec.Target)
				require.NotEmpty(t, rec.Sample.Kernel)
				require.NotEmpty(t, rec.Sample.User)
				sampled = true
			case rec.Type == TypeSwitch && rec.Switch.Out:
				require.NotNil(t, rec.Target)
				if sampled && !rec.Switch.Preempted {
					stacks++
				}
				out, sampled = 0, false
				if !rec.Switch.Preempted {
					out = rec.Time
				}
			case rec.Type == TypeSwitch && out > 0:
				waits++
				slept += time.Duration(rec.Time - out)
				out = 0
			}
		}
	}
	require.Zero(t, s.Stats().Corrupt)
	return waits, stacks, slept
}

func TestSwitchesAreToldAndSampledBeforeThem(t *testing.T) {
	for name, wide := range map[string]bool{"a process": false, "a cgroup": true} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Options{Switches: 1, Kernel: KernelStacks, HostWide: wide})
			cmd := exec.Command("/usr/bin/python3", "-c", sleeper)
			if wide {
				group := hosttest.NewCgroup(t, "hotprofile-perfevent")
				cmd = group.Command("/usr/bin/python3", "-c", sleeper)
				require.NoError(t, cmd.Start())
				dir := perfDirectory(t, group.Path)
				attached(t)(s.AttachCgroup(dir))
			} else {
				require.NoError(t, cmd.Start())
				attached(t)(s.AttachProcess(cmd.Process.Pid))
			}
			defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
			waits, stacks, slept := blocked(t, s, cmd.Process.Pid, time.Second)
			t.Logf("%d waits, %d with a stack, %v", waits, stacks, slept)
			require.Greater(t, waits, 100)
			require.InDelta(t, waits, stacks, 2)
			require.Greater(t, slept, 700*time.Millisecond)
		})
	}
}

func TestSwitchesAreSampledAsOftenAsIsSaid(t *testing.T) {
	for name, wide := range map[string]bool{"a process": false, "the host": true} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Options{Switches: 1, Kernel: KernelTime, HostWide: wide})
			cmd := exec.Command("/usr/bin/python3", "-c", sleeper)
			require.NoError(t, cmd.Start())
			defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
			if wide {
				attached(t)(s.AttachHost())
			} else {
				attached(t)(s.AttachProcess(cmd.Process.Pid))
			}
			draw := func(mean int) int { return mean - mean/4 + rand.IntN(mean/2+1) }
			require.NoError(t, s.SetSwitches(10, draw))
			require.NoError(t, s.SetSwitches(10, draw))
			// By the records' own times: a busy machine reads them long after.
			count := func() (switches, samples int) {
				var rec Record
				var at unix.Timespec
				require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &at))
				from, last := at.Nano(), int64(0)
				for end := time.Now().Add(time.Minute); last < from+int64(time.Second) && time.Now().Before(end); {
					require.NoError(t, s.Wait(20*time.Millisecond))
					for s.Read(&rec) {
						last = max(last, rec.Time)
						switch {
						case rec.Time < from:
						case rec.Type == TypeSample:
							samples++
						case rec.Type == TypeSwitch && rec.Switch.Out:
							switches++
						}
					}
				}
				return switches, samples
			}
			switches, samples := count()
			t.Logf("%d switches, %d samples", switches, samples)
			require.Greater(t, switches, 100)
			require.Greater(t, samples, 1)
			require.Less(t, samples, switches/2, "periods of 8 to 13")
			require.NoError(t, s.SetSwitches(1, func(int) int { return 1 }))
			lost := s.Stats().Lost // what a busy machine has no time to read was sampled all the same
			switches, samples = count()
			lost = s.Stats().Lost - lost
			t.Logf("%d switches, %d samples, %d lost", switches, samples, lost)
			require.Greater(t, samples+int(lost), switches*9/10)
		})
	}
}

func TestSwitchesNeedTheKernel(t *testing.T) {
	_, err := Open(Options{Switches: 1})
	require.ErrorContains(t, err, "threads are switched in the kernel")
}

// perfDirectory is a cgroup's directory in the hierarchy that owns perf_event.
func perfDirectory(t *testing.T, path string) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/perf_event", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		fd, err := unix.Open(root+path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err == nil {
			unix.Close(fd)
			return root + path
		}
	}
	t.Fatal("no directory of " + path)
	return ""
}
