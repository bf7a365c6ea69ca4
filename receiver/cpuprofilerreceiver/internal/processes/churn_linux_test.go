// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/oncpu"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// churnSetup returns a cgroup for short-lived processes and a sampler. The sampler also
// samples a process that uses CPU time in another cgroup.
func churnSetup(t *testing.T, program hosttest.Churn, mode string) (churn *hosttest.Cgroup, sampler *oncpu.Sampler, to *sink, hotPID int) {
	t.Helper()
	churn, hot := spare(t, "churn", 1), spare(t, "hot", 0.3)
	_, hotPID = run(t, hot.Command(program.Parent, "hot"))
	sampler, to, _ = setup{targets: map[string][]processes.Target{
		"cgroup": {{Cgroup: churn.Path}, {Cgroup: hot.Path}},
		// There are 20 discoveries per second, which find, attach and detach processes.
		"processes": {{Executable: program.Child}, {Executable: program.Parent}},
	}[mode]}.start(t)
	eventually(t, func() bool { return to.ofPID(hotPID) > 0 })
	return churn, sampler, to, hotPID
}

// TestKernelShortProcessesAreSampled starts a thousand short-lived processes per second.
// The CPU time of these processes must be sampled, and most samples must be attributed to
// the program of the processes.
func TestKernelShortProcessesAreSampled(t *testing.T) {
	program := hosttest.CompileChurn(t)
	for _, mode := range []string{"host", "cgroup"} {
		t.Run(mode, func(t *testing.T) {
			group, sampler, to, _ := churnSetup(t, program, mode)
			spawn(t, group, program, 200)
			lost := func() time.Duration {
				st := sampler.Stats()
				return time.Duration(st.Lost+st.Unreadable) * time.Second / 997
			}
			var used, cost, took time.Duration
			var started int
			for try := range 3 { // a virtual machine sometimes stops for a while
				to.forget()
				before, own := cpuUsed(t, group.Path), selfCPU(t)
				started, took = spawn(t, group, program, 3000)
				used, cost = cpuUsed(t, group.Path)-before, selfCPU(t)-own
				sampled := func() bool { return to.of(group.Path).time+lost() >= used*94/100 }
				if try == 2 {
					eventually(t, sampled)
				}
				for wait := 0; wait < 500 && !sampled(); wait++ { // waits until the rings have been read completely
					time.Sleep(10 * time.Millisecond)
				}
				if sampled() {
					break
				}
			}
			got, st := to.of(group.Path), sampler.Stats()
			t.Logf("%d processes at %.0f/s; %v of %v of CPU time sampled, %d samples of %d processes; lost %d, unreadable %d; at a cost of %v each; %+v",
				started, float64(started)/took.Seconds(), got.time, used, got.samples, len(got.pids), st.Lost, st.Unreadable, cost/time.Duration(started), st.Table)
			require.InDelta(t, used.Seconds(), got.time.Seconds(), 0.06*used.Seconds()+lost().Seconds())
			require.Greater(t, got.named[program.Child], got.samples/2)
			if st.Lost == 0 { // samples without a program belong to processes that ended before they were identified
				require.Less(t, got.named[""], got.samples/5, "samples without a program")
			}
		})
	}
}

// TestProcessesThatComeAndGoLeaveNothingBehind runs thousands of short-lived processes.
// Then all processes of a fork bomb end at once. The processes must be identified
// correctly while they live. After their end, no descriptor, ring, table entry or memory
// of the processes may remain, and sampling must continue.
func TestProcessesThatComeAndGoLeaveNothingBehind(t *testing.T) {
	program := hosttest.CompileChurn(t)
	for _, mode := range []string{"host", "cgroup", "processes"} {
		t.Run(mode, func(t *testing.T) {
			group, sampler, to, hotPID := churnSetup(t, program, mode)
			spawn(t, group, program, 200) // allocates the memory that is reused later
			before := settled(t, sampler, to, hotPID)

			spawn(t, group, program, 3000)
			eventually(t, func() bool { return to.of(group.Path).named[program.Parent] > 0 })
			st := sampler.Stats()
			if got := to.of(group.Path); st.Lost == 0 {
				for path, n := range got.named {
					if path != program.Parent && path != program.Child && path != "" { // a process with an empty path ended before it was identified
						require.Less(t, n, max(2, got.samples/50), "samples of %q", path)
					}
				}
			}
			require.Zero(t, st.Table.Evicted+st.Table.StackResets+st.Table.ThreadNameResets+st.Table.MappingsLeftOut)

			bomb := hosttest.NewCgroup(t, "hotprofile-bomb")
			const most = 2500
			bomb.SetPIDs(t, most)
			bomb.RaiseWeight(t)
			bomb.SetQuota(t, 0.5)
			first := bomb.Command(program.Parent, "bomb")
			run(t, first)
			eventually(t, func() bool { return bomb.PIDs() >= most-10 })
			t.Logf("%d processes of a fork bomb end", bomb.PIDs())
			bomb.KillAtOnce(t)
			_ = first.Wait()
			bomb.Remove(t)

			// The statistics are from the last batch, and the fork bomb may have ended after
			// that batch. Therefore the test reads the statistics again until the numbers
			// are small. If there were a leak, the numbers would never become small.
			var after held
			small := func() bool {
				after, st = settled(t, sampler, to, hotPID), sampler.Stats()
				// The stacks of running processes are kept.
				return after.files <= before.files && after.rings <= before.rings &&
					after.heap < before.heap+st.Table.StackBytes+2<<20
			}
			ok := small()
			for end := time.Now().Add(patience); !ok && time.Now().Before(end); {
				ok = small()
			}
			t.Logf("before %+v, after %+v; lost %d, %+v", before, after, st.Lost, st.Table)
			require.True(t, ok, "more is held than before")
		})
	}
}

// spawn starts processes in a cgroup. The processes end at once.
func spawn(t *testing.T, group *hosttest.Cgroup, program hosttest.Churn, count int) (n int, took time.Duration) {
	t.Helper()
	cmd := group.Command(program.Parent, "churn", program.Child, "1000", fmt.Sprint(count), "0.0005")
	out, _ := run(t, cmd)
	require.True(t, out.Scan(), "it ended: %v", out.Err())
	var seconds float64
	_, err := fmt.Sscan(out.Text(), &n, &seconds)
	require.NoError(t, err)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return n, time.Duration(seconds * float64(time.Second))
}

// settled waits until ended processes are forgotten. It checks that sampling continues,
// and returns the resources that are still held. The table for the whole host also
// contains processes that other programs started in the last two batches.
func settled(t *testing.T, sampler *oncpu.Sampler, to *sink, hot int) held {
	t.Helper()
	to.forget()
	eventually(t, func() bool {
		time.Sleep(100 * time.Millisecond)
		return to.ofPID(hot) > 50*time.Millisecond && sampler.Stats().Table.Processes < alive(t)+150
	})
	to.forget()
	var now held
	eventually(t, func() bool { // the test itself closes its descriptors a little later
		was := now
		time.Sleep(200 * time.Millisecond)
		now = holds(t)
		return now.files == was.files && now.rings == was.rings
	})
	return now
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "not within %v", patience)
	}
}
