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

// asleep is for how long sleeper sleeps.
const asleep = 2 * time.Millisecond

// blocked reads the waits of a thread, from the first one on that is as long as
// sleeper sleeps: how many of many and how long in how long, and how many of them
// had a stack that was sampled right before.
func blocked(t *testing.T, s *Session, tid, many int) (waits, stacks int, slept, span time.Duration) {
	t.Helper()
	var out, began int64
	sampled, stack := false, false
	readUntil(t, s, "waits", func(r *Record) bool {
		switch {
		case r.TID != tid:
		case r.Type == TypeSample:
			require.NotNil(t, r.Attachment)
			require.NotEmpty(t, r.Sample.Kernel)
			require.NotEmpty(t, r.Sample.User)
			sampled = true
		case r.Type == TypeSwitch && r.Switch.Out:
			require.NotNil(t, r.Attachment)
			out, stack, sampled = 0, sampled, false
			if !r.Switch.Preempted {
				out = r.Time
			}
		case r.Type == TypeSwitch && out > 0:
			wait := time.Duration(r.Time - out)
			if began == 0 && wait >= asleep {
				began = out // it has started, however long that took
			}
			if began > 0 {
				waits++
				slept, span = slept+wait, time.Duration(r.Time-began)
				if stack {
					stacks++
				}
			}
			out = 0
		}
		return waits >= many
	})
	require.Zero(t, s.Stats().Corrupt)
	return waits, stacks, slept, span
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
			const many = 300
			waits, stacks, slept, span := blocked(t, s, cmd.Process.Pid, many)
			t.Logf("%d waits, %d with a stack, %v of %v", waits, stacks, slept, span)
			require.InDelta(t, waits, stacks, 2)
			require.LessOrEqual(t, slept, span)
			require.Greater(t, slept, many*asleep*9/10)
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
			// Of many switches, by the records' own times: a busy machine reads them
			// long after, and takes a while to start the program.
			const many = 300
			count := func() (switches, samples int) {
				from := monotonic()
				readUntil(t, s, "switches", func(r *Record) bool {
					switch {
					case r.Time < from:
					case r.Type == TypeSample:
						samples++
					case r.Type == TypeSwitch && r.Switch.Out:
						switches++
					}
					return switches >= many
				})
				return switches, samples
			}
			switches, samples := count()
			t.Logf("%d switches, %d samples", switches, samples)
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
