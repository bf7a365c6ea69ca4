// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// sleeper is a Python program that sleeps repeatedly.
const sleeper = `import time
for _ in range(100000): time.sleep(0.002)`

// asleep is the duration of one sleep of sleeper.
const asleep = 2 * time.Millisecond

// blocked reads records until it has seen the given number of waits of a thread. The first
// wait is at least as long as a sleep of sleeper. stacks is the number of waits whose stack
// was sampled when the wait began. slept is the total duration of the waits. span is the time
// from the start of the first wait to the end of the last wait.
func blocked(t *testing.T, s *Session, tid, many int) (waits, stacks int, slept, span time.Duration) {
	t.Helper()
	var out, began int64
	sampled, stack := false, false
	readUntil(t, s, "waits", func(r *Record) bool {
		switch {
		case r.TID != tid:
		case r.Type == TypeSample:
			// Another program may sample the same switches. See Record.Attachment.
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
				began = out // Python has started by now
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

func TestSwitchesAreRecordedAndSampled(t *testing.T) {
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

// TestSwitchesOutliveStacks fills the rings of stacks before it reads any record. The
// records of switches must not be lost.
func TestSwitchesOutliveStacks(t *testing.T) {
	s := open(t, Options{Switches: 1, Kernel: KernelStacks, HostWide: true, SplitSwitches: true, UserStack: 1024, SampleRing: 4096})
	group := hosttest.NewCgroup(t, "hotprofile-perfevent")
	attachment := attached(t)(s.AttachCgroup(perfDirectory(t, group.Path)))
	require.False(t, attachment.SharesRing())
	cmd := group.Command("/usr/bin/python3", "-c", "import time\nfor _ in range(200): time.sleep(0.001)")
	require.NoError(t, cmd.Run())
	pid, stacks, left, came := cmd.Process.Pid, 0, 0, 0
	drain(t, s, func(r *Record) {
		switch {
		case r.Type == TypeLost:
			shared, split := r.Lost.Switches()
			require.False(t, split)
			require.True(t, shared, "the ring of samples gets the switches of processes")
		case r.PID != pid:
		case r.Type == TypeSample:
			stacks++
		case r.Type == TypeSwitch && r.Switch.Out:
			left++
		case r.Type == TypeSwitch:
			came++
		}
	})
	require.GreaterOrEqual(t, left, 200)
	require.InDelta(t, left, came, 1)
	require.Less(t, stacks, left/2)
	require.NotZero(t, s.Stats().Lost)
}

func TestSwitchesAreSampledAtTheirPeriod(t *testing.T) {
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
			// The test counts switches by the times of their records, because a busy
			// machine reads records late and starts the program slowly.
			const many = 300
			count := func() (switches, samples int) {
				from := sys.Monotonic()
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
			lost := s.Stats().Lost // samples that a busy machine could not read in time
			switches, samples = count()
			lost = s.Stats().Lost - lost
			t.Logf("%d switches, %d samples, %d lost", switches, samples, lost)
			require.Greater(t, samples+int(lost), switches*9/10)
		})
	}
}

// TestThreadIsSampledAtEverySwitch checks that a thread with its own events is sampled at
// every switch, independently of SetSwitches. No switch may be recorded twice.
func TestThreadIsSampledAtEverySwitch(t *testing.T) {
	for name, wide := range map[string]bool{"of a process": false, "of the host": true} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Options{Switches: 1, Kernel: KernelTime, HostWide: wide})
			cmd := exec.Command("/usr/bin/python3", "-c", sleeper)
			require.NoError(t, cmd.Start())
			defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
			pid := cmd.Process.Pid
			if wide {
				attached(t)(s.AttachHost())
			} else {
				attached(t)(s.AttachProcess(pid))
			}
			before := s.used()
			thread := attached(t)(s.AttachThread(pid, pid, 1000))
			require.Equal(t, len(s.CPUs()), s.used()-before)
			require.NoError(t, s.SetSwitches(50, func(mean int) int { return mean }))
			from := sys.Monotonic()
			outs, stacks, doubled, sampled, on := 0, 0, 0, false, true
			readUntil(t, s, "switches", func(r *Record) bool {
				switch {
				case r.TID != pid || r.Time < from:
				case r.Type == TypeSample:
					// If two events sample the same switch, the kernel may write the id
					// of the first event into both samples.
					require.NotEmpty(t, r.Sample.User)
					sampled = true
				case r.Type == TypeSwitch && r.Switch.Out:
					require.NotSame(t, thread, r.Attachment)
					outs++
					if sampled {
						stacks++
					}
					if !on {
						doubled++
					}
					sampled, on = false, false
				case r.Type == TypeSwitch:
					on = true
				}
				return outs >= 300
			})
			require.InDelta(t, outs, stacks, 2+float64(s.Stats().Lost))
			require.Zero(t, doubled)
			require.NoError(t, thread.Detach())
			require.Equal(t, before, s.used())
			_, err := s.AttachThread(pid, 1<<22, 1)
			require.ErrorIs(t, err, os.ErrProcessDone)
		})
	}
}

func TestSwitchesNeedTheKernel(t *testing.T) {
	_, err := Open(Options{Switches: 1})
	require.ErrorContains(t, err, "threads are switched in the kernel")
}

// perfDirectory returns a cgroup's directory in the hierarchy that contains perf_event.
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

func TestThreadIsSampledUntilItHasEnough(t *testing.T) {
	s := open(t, Options{Switches: 1 << 30, Kernel: KernelTime, HostWide: true, SplitSwitches: true})
	cmd := exec.Command("/usr/bin/python3", "-c", sleeper)
	require.NoError(t, cmd.Start())
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	pid, cpus := cmd.Process.Pid, len(s.CPUs())
	attached(t)(s.AttachHost())
	// samplesUntil reads records until the thread was switched off its CPU the given number
	// of times. It returns the number of samples among these records.
	samplesUntil := func(switches int) (samples int) {
		readUntil(t, s, "switches", func(r *Record) bool {
			switch {
			case r.TID != pid:
			case r.Type == TypeSample:
				samples++
			case r.Type == TypeSwitch && r.Switch.Out:
				switches--
			}
			return switches <= 0
		})
		return samples
	}
	const most = 5
	thread := attached(t)(s.AttachThread(pid, pid, most))
	samples := samplesUntil(100 + most*cpus)
	require.GreaterOrEqual(t, samples, most)
	require.LessOrEqual(t, samples, most*cpus)
	// After the thread has been sampled on each CPU, sampling stops until More is called.
	for range 2 {
		for _, cpu := range s.CPUs() {
			require.NoError(t, thread.More(cpu, most))
		}
		more := samplesUntil(100 + most*cpus)
		require.GreaterOrEqual(t, more, most)
		samples += more
		require.LessOrEqual(t, samples, 3*most*cpus)
	}
	require.NoError(t, s.Pause())
	require.NoError(t, thread.More(s.CPUs()[0], most))
	require.NoError(t, s.Resume())
	require.GreaterOrEqual(t, samplesUntil(100+most*cpus), most)
}
