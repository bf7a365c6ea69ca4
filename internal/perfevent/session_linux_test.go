// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/hosttest"
	"github.com/hotprofile/hotprofile/test/programtest"
)

// open opens a session, which is closed when the test ends. It skips the test if the
// session is not permitted.
func open(t testing.TB, o Options) *Session {
	t.Helper()
	r := Probe()
	needed := []error{r.Own}
	if o.HostWide {
		needed = append(needed, r.HostWide)
	}
	if o.Kernel != KernelExcluded {
		needed = append(needed, r.Kernel)
	}
	if err := errors.Join(needed...); err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	s, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// attached returns a function that fails the test if attaching failed.
func attached(t testing.TB) func(*Attachment, error) *Attachment {
	return func(attachment *Attachment, err error) *Attachment {
		t.Helper()
		require.NoError(t, err)
		return attachment
	}
}

func readUntil(t testing.TB, s *Session, what string, done func(*Record) bool) {
	t.Helper()
	var rec Record
	for end := time.Now().Add(programtest.Deadline); ; {
		require.NoError(t, s.Wait(50*time.Millisecond))
		for s.Read(&rec) {
			if done(&rec) {
				return
			}
		}
		require.True(t, time.Now().Before(end), "%s: not seen", what)
	}
}

// drain reads all records that were written before the call.
func drain(t testing.TB, s *Session, each func(*Record)) {
	t.Helper()
	var rec Record
	for begin := sys.Monotonic(); ; {
		for s.Read(&rec) {
			each(&rec)
		}
		// All records that this round has not read were written after the round began.
		if s.reader.Cutoff() > begin {
			return
		}
	}
}

func samplesOf(pid, n int) func(*Record) bool {
	return func(r *Record) bool {
		if r.Type == TypeSample && r.PID == pid && len(r.Sample.User) > 0 {
			n--
		}
		return n <= 0
	}
}

// TestCPUsOfTheHostAreSampledApart checks that the CPUs of a host are sampled one after the
// other. Evenly spread samples of n CPUs would be period/n apart. The median times must be at
// least a quarter of this distance apart.
func TestCPUsOfTheHostAreSampledApart(t *testing.T) {
	const period = 20 * time.Millisecond
	s := open(t, Options{HostWide: true, Kernel: KernelStacks, Period: period})
	n := len(s.CPUs())
	if n < 2 {
		t.Skip("there is one CPU")
	}
	for range n {
		h := programtest.Start(t)
		h.Order("thread")
	}
	distance := func() (least time.Duration) {
		a := attached(t)(s.AttachHost())
		times := map[int][]int64{}
		readUntil(t, s, "samples of each CPU", func(r *Record) bool {
			if r.Type == TypeSample && r.Attachment == a {
				times[r.CPU] = append(times[r.CPU], r.Time%int64(period))
			}
			enough := len(times) == n
			for _, of := range times {
				enough = enough && len(of) >= 9
			}
			return enough
		})
		require.NoError(t, a.Detach())
		var medians []time.Duration
		for _, of := range times {
			slices.Sort(of)
			medians = append(medians, time.Duration(of[len(of)/2]))
		}
		slices.Sort(medians)
		least = medians[0] + period - medians[n-1]
		for i := 1; i < n; i++ {
			least = min(least, medians[i]-medians[i-1])
		}
		return least
	}
	// A busy machine may enable an event late.
	require.Eventually(t, func() bool { return distance() >= period/time.Duration(4*n) }, programtest.Deadline, time.Millisecond)
}

func TestHostIsSampled(t *testing.T) {
	s := open(t, Options{HostWide: true, Kernel: KernelStacks})
	h := programtest.Start(t)
	begin := sys.Monotonic()
	attachment := attached(t)(s.AttachHost())
	h.Order("thread")
	h.Order("kernel")

	var user, kernel int
	cpus := map[int]bool{}
	for _, cpu := range s.CPUs() {
		cpus[cpu] = true
	}
	readUntil(t, s, "samples of a busy process", func(r *Record) bool {
		if r.Type != TypeSample || r.PID != h.PID() {
			return false
		}
		require.Same(t, attachment, r.Attachment)
		require.Equal(t, int64(defaultPeriod), r.Sample.Period)
		require.True(t, cpus[r.CPU])
		require.GreaterOrEqual(t, r.Time, begin)
		require.LessOrEqual(t, r.Time, sys.Monotonic())
		for _, ip := range r.Sample.Kernel {
			require.Greater(t, ip, uint64(1)<<63)
		}
		for _, ip := range r.Sample.User[:min(1, len(r.Sample.User))] { // the other addresses may come from invalid frame pointers
			require.Less(t, ip, uint64(1)<<63)
		}
		switch {
		case r.Sample.InKernel && len(r.Sample.Kernel) > 0:
			kernel++
		case !r.Sample.InKernel && len(r.Sample.User) > 0 && len(r.Sample.Kernel) == 0:
			user++
		}
		return user >= 10 && kernel >= 10
	})
	require.Zero(t, s.Stats().Corrupt)
}

// TestClockOffsetLeadsToTheWallClock compares ClockOffset with the wall clock. If the test
// is interrupted between the readings of the two clocks, the offset is inexact. The error
// is at most half of the time between the readings.
func TestClockOffsetLeadsToTheWallClock(t *testing.T) {
	before := sys.Monotonic()
	offset := ClockOffset()
	wall := time.Now().UnixNano()
	after := sys.Monotonic()
	require.GreaterOrEqual(t, wall, before+offset-(after-before))
	require.LessOrEqual(t, wall, after+offset+(after-before))
}

func TestTimeInTheKernelWithoutKernelStacks(t *testing.T) {
	s := open(t, Options{Kernel: KernelTime})
	h := programtest.Start(t)
	attached(t)(s.AttachProcess(h.PID()))
	h.Order("kernel")
	inKernel := 0
	readUntil(t, s, "samples in the kernel", func(r *Record) bool {
		if r.Type == TypeSample {
			require.Empty(t, r.Sample.Kernel)
			if r.Sample.InKernel && len(r.Sample.User) > 0 {
				inKernel++
			}
		}
		return inKernel >= 5
	})
}

// TestKernelSamplesOfAProcessSumToItsCPUTime checks that the periods of the samples add up
// to the CPU time, so that no CPU time is sampled twice or missed. Threads that start during
// attaching inherit some events and also get their own events. The same applies to threads
// that such threads start later.
func TestKernelSamplesOfAProcessSumToItsCPUTime(t *testing.T) {
	for name, test := range map[string]struct{ hostWide, racing bool }{
		"own":                      {false, false},
		"host-wide":                {true, false},
		"threads during attaching": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Options{Period: time.Millisecond, HostWide: test.hostWide, Kernel: kernelPermitted()})
			h := programtest.Start(t)
			for range 3 {
				h.Order("thread")
			}
			listings := 0
			if test.racing {
				s.listThreads = func(pid int) ([]int, error) {
					if listings++; listings > 1 && listings < 6 {
						startThread(t, h, pid)
					}
					return procfs.At("").Threads(pid)
				}
			}
			attachment := attached(t)(s.AttachProcess(h.PID()))
			h.Order("threads")
			began, before := sys.Monotonic(), cpuTime(t, h.PID())
			ended := int64(math.MaxInt64)
			var sampled time.Duration
			var rec Record
			add := func(r *Record) { // adds samples of the measured time
				if r.Type == TypeSample && r.Attachment == attachment && r.Time >= began && r.Time < ended {
					require.Equal(t, h.PID(), r.PID)
					sampled += time.Duration(r.Sample.Period)
				}
			}
			for used := time.Duration(0); used < time.Second; used = cpuTime(t, h.PID()) - before {
				require.NoError(t, s.Wait(10*time.Millisecond))
				for s.Read(&rec) {
					add(&rec)
				}
			}
			used := cpuTime(t, h.PID()) - before
			ended = sys.Monotonic()
			drain(t, s, add)
			stats := s.Stats()
			t.Logf("%v of %v sampled, %d events, %+v", sampled, used, len(attachment.events), stats)
			if stats.Lost+stats.LostSamples+stats.Throttled > 0 {
				t.Skip("the kernel lost samples")
			}
			if kernelPermitted() != KernelExcluded { // otherwise the time in the kernel is missing
				require.InEpsilon(t, used, sampled, 0.15)
			}
			require.Less(t, sampled, used*115/100)
			if test.racing {
				require.Positive(t, stats.Duplicate)
			}
		})
	}
}

// startThread makes the program start a thread and waits until the thread is listed. The
// Go runtime may start the thread late, or may use an existing thread. If no new thread is
// listed for a while, startThread sends the order again.
func startThread(t *testing.T, h *programtest.Program, pid int) {
	t.Helper()
	before, err := procfs.At("").Threads(pid)
	require.NoError(t, err)
	for range 10 {
		h.Order("thread")
		for range 100 {
			if now, err := procfs.At("").Threads(pid); err != nil || len(now) > len(before) {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func kernelPermitted() Kernel { return Probe().KernelMode(false) }

// cpuTime returns the CPU time of all threads of a process, from the process's CPU clock.
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	var ts unix.Timespec
	const allThreadsScheduled = 2 // CPUCLOCK_SCHED
	require.NoError(t, unix.ClockGettime(int32(^pid<<3|allThreadsScheduled), &ts))
	return time.Duration(ts.Nano())
}

func TestProcessIsFollowed(t *testing.T) {
	for _, hostWide := range []bool{false, true} {
		t.Run("host-wide "+strconv.FormatBool(hostWide), func(t *testing.T) {
			s := open(t, Options{HostWide: hostWide})
			h := programtest.Start(t)
			attachment := attached(t)(s.AttachProcess(h.PID()))
			require.Equal(t, h.PID(), attachment.pid)

			tid, err := strconv.Atoi(h.Order("thread"))
			require.NoError(t, err)
			readUntil(t, s, "samples of a new thread", func(r *Record) bool {
				return r.Type == TypeSample && r.Attachment == attachment && r.PID == h.PID() && r.TID == tid
			})

			child, err := strconv.Atoi(h.Order("fork"))
			require.NoError(t, err)
			readUntil(t, s, "a fork", func(r *Record) bool {
				return r.Type == TypeFork && r.Task.PID == child && r.Task.PPID == h.PID() && r.Task.PID == r.Task.TID
			})

			h.Order("exec")
			readUntil(t, s, "an exec", func(r *Record) bool {
				return r.Type == TypeComm && r.Comm.PID == h.PID() && r.Comm.Exec
			})
			readUntil(t, s, "a mapping after the exec", func(r *Record) bool {
				return r.Type == TypeMmap && r.Mmap.PID == h.PID() && r.Mmap.Inode != 0 &&
					r.Mmap.Prot&unix.PROT_EXEC != 0 && strings.HasPrefix(string(r.Mmap.Filename), "/")
			})
			n := 0
			readUntil(t, s, "samples after the exec", func(r *Record) bool {
				if r.Type != TypeSample {
					return false
				}
				require.NotEqual(t, child, r.PID, "a child is sampled")
				n++
				return n > 20
			})
			h.Kill()
			readUntil(t, s, "the end", func(r *Record) bool { return r.Type == TypeExit && r.Task.PID == h.PID() })
		})
	}
}

func TestProcessBeforeInheritThread(t *testing.T) {
	s := open(t, Options{})
	s.inheritThread = false
	h := programtest.Start(t)
	attached(t)(s.AttachProcess(h.PID()))
	h.Order("thread")
	h.Order("fork")
	var rec Record
	for end := time.Now().Add(programtest.Deadline); s.Stats().Foreign < 5; {
		require.True(t, time.Now().Before(end), "no sample of a child was dropped")
		require.NoError(t, s.Wait(50*time.Millisecond))
		for s.Read(&rec) {
			if rec.Type == TypeSample {
				require.Equal(t, h.PID(), rec.PID)
			}
		}
	}
}

func TestAttachProcessThatHasEnded(t *testing.T) {
	s := open(t, Options{})
	gone := exec.Command("/bin/true")
	require.NoError(t, gone.Run())
	_, err := s.AttachProcess(gone.Process.Pid)
	require.ErrorIs(t, err, os.ErrProcessDone)
	for _, pid := range []int{0, -1} {
		_, err = s.AttachProcess(pid)
		require.ErrorContains(t, err, "no such process")
	}

	h := programtest.Start(t)
	attachment := attached(t)(s.AttachProcess(h.PID()))
	_, err = s.AttachProcess(h.PID())
	require.ErrorContains(t, err, "attached already")
	require.NoError(t, attachment.Detach())
	attachment = attached(t)(s.AttachProcess(h.PID()))
	h.Kill()
	require.NoError(t, s.Pause())
	require.NoError(t, s.Resume())
	require.NoError(t, s.SetPeriod(time.Millisecond))
	require.NoError(t, attachment.Detach())
}

func TestCgroupIsSampled(t *testing.T) {
	s := open(t, Options{HostWide: true})
	group := hosttest.NewCgroup(t, "perfevent")
	dir := perfEventRoot(t) + group.Path
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("the hierarchy that owns perf_event has no such cgroup: %v", err)
	}
	inside := programtest.StartCommand(t, group.Command(programtest.Binary(t)))
	outside := programtest.Start(t)
	attachment := attached(t)(s.AttachCgroup(dir))
	inside.Order("thread")
	outside.Order("thread")
	child, err := strconv.Atoi(inside.Order("fork"))
	require.NoError(t, err)

	var info unix.Stat_t
	require.NoError(t, unix.Stat(dir, &info))
	parents, children := 0, 0
	readUntil(t, s, "samples of a cgroup", func(r *Record) bool {
		if r.Type != TypeSample {
			return false
		}
		require.Same(t, attachment, r.Attachment)
		require.NotEqual(t, outside.PID(), r.PID, "a process outside the cgroup is sampled")
		if s.cgroup {
			require.Equal(t, info.Ino, r.Sample.CgroupID)
		}
		switch r.PID {
		case inside.PID():
			parents++
		case child:
			children++
		}
		return parents >= 10 && children >= 10
	})
	require.NoError(t, attachment.Detach())
}

// perfEventRoot returns the mount point of the hierarchy that contains perf_event.
func perfEventRoot(t testing.TB) string {
	t.Helper()
	f, err := os.Open("/proc/self/mounts")
	require.NoError(t, err)
	defer f.Close()
	unified := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := strings.Fields(lines.Text())
		if len(m) < 4 {
			continue
		}
		if m[2] == "cgroup" && strings.Contains(","+m[3]+",", ",perf_event,") {
			return m[1]
		}
		if m[2] == "cgroup2" {
			unified = m[1]
		}
	}
	if unified == "" {
		hosttest.SkipUnprivileged(t, "no cgroup hierarchy is mounted")
	}
	return unified
}

func TestAttachCgroupRejectsOtherDirectories(t *testing.T) {
	s := open(t, Options{HostWide: true})
	_, err := s.AttachCgroup(t.TempDir())
	require.ErrorIs(t, err, ErrNotPerfCgroup)
	_, err = s.AttachCgroup("/nonexistent")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotErrorIs(t, err, ErrNotPerfCgroup)
}

func TestHostNeedsAHostWideSession(t *testing.T) {
	s := open(t, Options{})
	_, err := s.AttachHost()
	require.ErrorContains(t, err, "host-wide")
}

func TestPauseStopsSamplesAndNotRecords(t *testing.T) {
	s := open(t, Options{HostWide: true})
	busy := programtest.Start(t)
	busy.Order("thread")
	attached(t)(s.AttachHost())
	readUntil(t, s, "samples", samplesOf(busy.PID(), 3))

	require.NoError(t, s.Pause())
	require.NoError(t, s.Pause())
	drain(t, s, func(*Record) {})
	late := programtest.Start(t)
	process := attached(t)(s.AttachProcess(busy.PID()))
	began := sys.Monotonic()
	var forked, executed, mapped bool
	readUntil(t, s, "records during a pause", func(r *Record) bool {
		require.NotEqual(t, TypeSample, r.Type, "sampled while paused")
		switch {
		case r.Type == TypeFork && r.Task.PID == late.PID():
			forked = true
		case r.Type == TypeComm && r.Comm.PID == late.PID() && r.Comm.Exec:
			executed = true
		case r.Type == TypeMmap && r.Mmap.PID == late.PID():
			mapped = true
		}
		return forked && executed && mapped
	})
	// Without the pause, the busy process would be sampled many times during this sleep.
	time.Sleep(max(0, 10*defaultPeriod-time.Duration(sys.Monotonic()-began)))
	drain(t, s, func(r *Record) { require.NotEqual(t, TypeSample, r.Type, "sampled while paused") })

	require.NoError(t, s.Resume())
	readUntil(t, s, "samples after a pause", samplesOf(busy.PID(), 3))
	readUntil(t, s, "samples of what was attached in a pause", func(r *Record) bool {
		return r.Type == TypeSample && r.Attachment == process
	})
}

func TestPeriodIsChanged(t *testing.T) {
	s := open(t, Options{HostWide: true})
	h := programtest.Start(t)
	h.Order("thread")
	attached(t)(s.AttachHost())
	process := attached(t)(s.AttachProcess(h.PID()))
	require.NoError(t, s.SetPeriod(2*time.Millisecond))
	var host, own bool
	readUntil(t, s, "samples of the new period", func(r *Record) bool {
		if r.Type == TypeSample && r.PID == h.PID() && r.Sample.Period == int64(2*time.Millisecond) {
			own = own || r.Attachment == process
			host = host || r.Attachment != nil && r.Attachment != process
		}
		return own && host
	})
	require.Error(t, s.SetPeriod(0))
}

func TestLostRecordsAreReported(t *testing.T) {
	s := open(t, Options{HostWide: true, Period: 100 * time.Microsecond, SampleRing: 1, Kernel: KernelStacks})
	h := programtest.Start(t)
	h.Order("thread")
	attached(t)(s.AttachHost())
	before := cpuTime(t, h.PID())
	for end := time.Now().Add(programtest.Deadline); cpuTime(t, h.PID())-before < 300*time.Millisecond; {
		require.True(t, time.Now().Before(end))
		time.Sleep(time.Millisecond) // the process uses CPU time during this sleep
	}
	readUntil(t, s, "a record of what was lost", func(r *Record) bool {
		if r.Type == TypeLost {
			require.Positive(t, r.Lost.Count)
		}
		// The other ring may be full too if the host starts many processes.
		return r.Type == TypeLost && !r.Lost.Records()
	})
	require.Positive(t, s.Stats().Lost)
}

// TestLostRecordsAreNotSamples writes process records faster than they are read. This
// must not cause a loss of samples.
func TestLostRecordsAreNotSamples(t *testing.T) {
	s := open(t, Options{HostWide: true})
	program, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer program.Close()
	load := func(times int) {
		for range times {
			code, err := unix.Mmap(int(program.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
			require.NoError(t, err)
			require.NoError(t, unix.Munmap(code))
		}
	}
	load(20_000)
	drain(t, s, func(*Record) {})
	load(100) // the kernel reports the loss before the ring's next record
	readUntil(t, s, "a record of what was lost", func(r *Record) bool {
		return r.Type == TypeLost && r.Lost.Records() || s.Stats().LostRecords > 0
	})
	require.Positive(t, s.Stats().LostRecords)
	require.Zero(t, s.Stats().Lost, "nothing is sampled")
}

// TestRecordsWakeTheReader checks that process records end a Wait that has no timeout.
func TestRecordsWakeTheReader(t *testing.T) {
	for _, hostWide := range []bool{false, true} {
		t.Run("host-wide "+strconv.FormatBool(hostWide), func(t *testing.T) {
			s := open(t, Options{HostWide: hostWide})
			s.Wake()
			require.NoError(t, s.Wait(-1))
			h := programtest.Start(t)
			if !hostWide {
				attached(t)(s.AttachProcess(h.PID()))
			}
			child, err := strconv.Atoi(h.Order("fork"))
			require.NoError(t, err)
			stuck := time.AfterFunc(programtest.Deadline, func() { _ = s.Close() })
			defer stuck.Stop()
			var rec Record
			for seen := false; !seen; {
				require.NoError(t, s.Wait(-1))
				for s.Read(&rec) {
					seen = seen || rec.Type == TypeFork && rec.Task.PID == child
				}
			}
		})
	}
}

// TestRecordsWakeTheReaderAfterATimeout checks that a record ends a Wait, even after
// other waits have timed out or records have been read between two waits.
func TestRecordsWakeTheReaderAfterATimeout(t *testing.T) {
	s := open(t, Options{})
	h := programtest.Start(t)
	attached(t)(s.AttachProcess(h.PID()))
	stuck := time.AfterFunc(programtest.Deadline, func() { _ = s.Close() })
	defer stuck.Stop()
	fork := func(wait time.Duration) {
		_, err := fmt.Fprintln(h.Stdin, "fork")
		require.NoError(t, err)
		var rec Record
		for child := 0; child == 0; {
			require.NoError(t, s.Wait(wait))
			for s.Read(&rec) {
				if rec.Type == TypeFork && rec.Task.PID != h.PID() {
					child = rec.Task.PID
					if err := unix.Kill(child, unix.SIGKILL); !errors.Is(err, unix.ESRCH) { // the child may have ended already
						require.NoError(t, err)
					}
				}
			}
		}
	}
	for range 10 {
		require.NoError(t, s.Wait(10*time.Millisecond))
		fork(0)
		fork(-1)
	}
}

func TestWaitAndReadAllocateNothing(t *testing.T) {
	s := open(t, Options{Period: time.Millisecond})
	h := programtest.Start(t)
	h.Order("thread")
	attached(t)(s.AttachProcess(h.PID()))
	var rec Record
	n := 0
	for end := time.Now().Add(programtest.Deadline); n < 200; {
		require.True(t, time.Now().Before(end))
		// The first waits of a goroutine fill caches of the runtime.
		require.Zero(t, testing.AllocsPerRun(50, func() {
			if s.Wait(10*time.Millisecond) != nil {
				return
			}
			for s.Read(&rec) {
				n++
			}
		}))
	}
}

func TestCloseEndsTheReader(t *testing.T) {
	open(t, Options{}) // skips the test if perf events are not permitted
	before := openFiles(t)
	for range 3 {
		s, err := Open(Options{})
		require.NoError(t, err)
		h := programtest.Start(t)
		attachment := attached(t)(s.AttachProcess(h.PID()))
		done := make(chan error)
		go func() {
			var rec Record
			for {
				if err := s.Wait(-1); err != nil {
					done <- err
					return
				}
				for s.Read(&rec) {
				}
			}
		}()
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-done, os.ErrClosed)
		require.NoError(t, s.Close())
		require.NoError(t, attachment.Detach())
		s.Wake()
		require.NoError(t, s.Pause())
		_, err = s.AttachProcess(h.PID())
		require.ErrorIs(t, err, os.ErrClosed)
		require.False(t, s.Read(new(Record)))
		h.Kill()
		h.Stdin.Close()
	}
	require.Equal(t, before, openFiles(t))
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestDescriptorsAreBounded(t *testing.T) {
	open(t, Options{})
	cpus, err := OnlineCPUs()
	require.NoError(t, err)
	s := open(t, Options{MaxDescriptors: 2 * len(cpus)}) // enough for the rings and one thread
	h := programtest.Start(t)
	before, files := s.used(), openFiles(t)
	require.Equal(t, len(cpus), before)
	h.Order("thread")
	_, err = s.AttachProcess(h.PID())
	var limit *LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, LimitError{Needed: 2*len(cpus) + 1, Limit: 2 * len(cpus)}, *limit)
	require.Equal(t, before, s.used())
	require.Equal(t, files, openFiles(t))

	_, err = Open(Options{MaxDescriptors: len(cpus) - 1})
	require.ErrorAs(t, err, &limit)
	require.Equal(t, files, openFiles(t))
}

func TestWithoutAnyRight(t *testing.T) {
	if os.Geteuid() != 0 {
		hosttest.SkipUnprivileged(t, "only root can become a user without rights")
	}
	cmd := exec.Command(exposedBinary(t))
	cmd.Env = programtest.Env("unprivileged")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	got := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, outcome, _ := strings.Cut(strings.TrimSpace(line), ": ")
		got[name] = outcome
	}
	paranoid, err := procfs.Sysctl("kernel/perf_event_paranoid")
	require.NoError(t, err)
	const nothing = "<nil>"
	if paranoid > 0 {
		for _, name := range []string{"host", "open host"} {
			require.Equal(t, "sampling the whole host or a cgroup is not permitted: it needs CAP_PERFMON or kernel.perf_event_paranoid at most 0 (it is "+strconv.Itoa(paranoid)+")", got[name])
		}
	}
	if paranoid > 1 {
		require.Contains(t, got["kernel"], "needs CAP_PERFMON or kernel.perf_event_paranoid at most 1")
	}
	if paranoid > 2 {
		require.Contains(t, got["own"], "needs CAP_PERFMON or kernel.perf_event_paranoid at most 2")
		return
	}
	require.Equal(t, nothing, got["own"])
	require.Equal(t, nothing, got["open own"], "rings are not halved to what a user may lock")
	require.Contains(t, got["attach init"], "it needs to run as that user or CAP_PERFMON or CAP_SYS_PTRACE")
	require.Contains(t, got["attach host"], "host-wide")
	require.Equal(t, nothing, got["attach own"])
	require.Equal(t, "true", got["sampled"])
	require.Equal(t, nothing, got["close"])
}
