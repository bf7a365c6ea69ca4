// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"fmt"
	"math"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/oncpu"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// once checks that the samples of a process add up to the CPU time that the process has
// used, and not to half or twice this time. The comparison is repeated several times,
// because on a busy machine, the process clock and the end of the records do not match
// exactly. If samples were counted twice, each comparison would fail.
func once(t *testing.T, sampler *oncpu.Sampler, to *sink, pid int, enough time.Duration) {
	t.Helper()
	var said []string
	for range 5 {
		to.follow(pid)
		eventually(t, func() bool { return to.last() != "" })
		begin, used, lost := clock(), cpuTime(t, pid), sampler.Stats().Lost
		eventually(t, func() bool { return cpuTime(t, pid)-used > enough })
		end := clock()
		used = cpuTime(t, pid) - used
		eventually(t, func() bool { return to.between(end+int64(100*time.Millisecond), 1<<62) > 0 }) // all records up to end have been read
		sampled := to.between(begin, end)
		lost = sampler.Stats().Lost - lost
		said = append(said, fmt.Sprintf("%v of %v of CPU time sampled, %d records lost", sampled, used, lost))
		if lost == 0 && math.Abs(sampled.Seconds()/used.Seconds()-1) <= 0.06 {
			t.Log(strings.Join(said, "; "))
			return
		}
	}
	t.Fatalf("never within 6 %%: %s", strings.Join(said, "; "))
}

// TestKernelOverlappingTargetsCountOnce uses several targets that match the same process,
// by its pid, its program, its cgroup and the parent cgroup. However the targets are
// attached, the process must be sampled only once.
func TestKernelOverlappingTargetsCountOnce(t *testing.T) {
	program := hosttest.CompileChurn(t)
	outer := spare(t, "outer", 0.5)
	inner := hosttest.NewCgroupCalled(t, strings.TrimPrefix(outer.Path, "/")+"/inner")
	beside := spare(t, "beside", 0.1)
	_, pid := run(t, inner.Command(program.Parent, "hot"))
	for range 2 {
		run(t, beside.Command(program.Child, "hot"))
	}
	named := []processes.Target{{PID: pid}, {Executable: program.Parent}, {Executable: "**/churn"}}
	cgroups := []processes.Target{{Cgroup: inner.Path}, {Cgroup: outer.Path}, {Cgroup: outer.Path + "/*"}}
	for _, test := range []struct {
		name, how string
		targets   []processes.Target
		maxEvents int
	}{
		{"host", "the whole host", nil, 0},
		{"processes", "0 cgroups and 1 processes", named, 0},
		{"processes beside a cgroup", "1 cgroups and ", append(named[:3:3], processes.Target{Cgroup: beside.Path}), 0},
		{"cgroups", "1 cgroups and 0 processes", cgroups, 0},
		{"processes in cgroups", "1 cgroups and 0 processes", append(named[:3:3], cgroups...), 0},
		// The limit allows events on all CPUs but not separate events for each target.
		{"filtered", "the targets, by events on all", append(named[:3:3], processes.Target{Cgroup: inner.Path}, processes.Target{Cgroup: beside.Path}), 4*cpus(t) - 1},
		{"filtered processes", "the targets, by events on all", append(named[:3:3], processes.Target{Executable: program.Child}), 4*cpus(t) - 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			sampler, to, how := setup{targets: test.targets, maxEvents: test.maxEvents}.start(t)
			once(t, sampler, to, pid, 700*time.Millisecond)
			require.Contains(t, how(), test.how)
		})
	}
}

func cpus(t *testing.T) int {
	t.Helper()
	var set unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(1, &set))
	return set.Count()
}

// TestKernelThreadsThatAppearWhileAttachingCountOnce starts a thousand threads while
// their process is being attached. The period must be much shorter than the CPU time of
// each thread, because the kernel takes the first sample of a thread after a full period.
func TestKernelThreadsThatAppearWhileAttachingCountOnce(t *testing.T) {
	program := hosttest.CompileChurn(t)
	group := spare(t, "threads", 0.5)
	sampler, to, _ := setup{targets: []processes.Target{{Executable: program.Parent}}, maxEvents: 1000*cpus(t) + 2000, frequency: 9999}.start(t)
	cmd := group.Command(program.Parent, "threads", "1000")
	stuck := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	out, pid := run(t, cmd)
	eventually(t, func() bool { return sampler.Targets() == 1 })
	require.True(t, out.Scan())
	t.Logf("%d descriptors", holds(t).files)
	once(t, sampler, to, pid, time.Second)
}

// TestKernelCgroupsThatComeAndComeBack creates some cgroups after sampling has started.
// It also removes a cgroup and creates it again with the same name. All of these
// cgroups must be sampled from the next discovery on.
func TestKernelCgroupsThatComeAndComeBack(t *testing.T) {
	program := hosttest.CompileChurn(t)
	name := fmt.Sprintf("hotprofile-later-%d", clock())
	sampler, to, _ := setup{targets: []processes.Target{{Cgroup: "/hotprofile-later-*"}}}.start(t)
	before := holds(t)
	for range 3 {
		group := hosttest.NewCgroupCalled(t, name)
		group.RaiseWeight(t)
		group.SetQuota(t, 0.3)
		cmd := group.Command(program.Parent, "hot")
		_, pid := run(t, cmd)
		eventually(t, func() bool { return to.ofPID(pid) > 0 })
		require.Equal(t, 1, sampler.Targets())
		once(t, sampler, to, pid, 200*time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		group.Remove(t)
		eventually(t, func() bool { return sampler.Targets() == 0 })
	}
	eventually(t, func() bool { after := holds(t); return after.files <= before.files && after.rings <= before.rings })
}

// TestKernelTargetThatExecutesInOtherNamespaces covers a process that executes another
// program in other namespaces. Targets that match the process by its pid or cgroup must
// continue to sample the process under its new name. Targets of the old program must
// stop sampling the process. Targets of the new program must begin to sample it.
func TestKernelTargetThatExecutesInOtherNamespaces(t *testing.T) {
	program := hosttest.CompileChurn(t)
	for _, by := range []string{"pid", "cgroup", "program"} {
		t.Run(by, func(t *testing.T) {
			group := spare(t, "exec", 0.3)
			cmd := group.Command(program.Parent, "into", program.Child, "hot")
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			_, pid := run(t, cmd)
			eventually(t, func() bool { return runs(pid, program.Parent) })
			target := map[string]processes.Target{"pid": {PID: pid}, "cgroup": {Cgroup: group.Path}, "program": {Executable: program.Child}}[by]
			sampler, to, _ := setup{targets: []processes.Target{target}}.start(t)
			if by != "program" {
				eventually(t, func() bool { return sampler.Targets() == 1 })
			}
			to.follow(pid)
			_, err = in.Write([]byte("\n"))
			require.NoError(t, err)
			eventually(t, func() bool { return to.last() == program.Child })
			once(t, sampler, to, pid, 300*time.Millisecond)
			require.Equal(t, program.Child, to.last())
		})
	}
}

func runs(pid int, program string) bool {
	out, err := exec.Command("readlink", fmt.Sprintf("/proc/%d/exe", pid)).Output()
	return err == nil && strings.TrimSpace(string(out)) == program
}

// TestKernelCPUThatGoesAndComesBackIsSampled takes a CPU offline and online again. The
// CPU must be sampled from the next discovery on, even if no discovery noticed that it
// was offline. The other CPUs must be sampled all the time.
func TestKernelCPUThatGoesAndComesBackIsSampled(t *testing.T) {
	cpu := hosttest.HotplugCPU(t)
	program := hosttest.CompileChurn(t)
	group := spare(t, "hotplug", 0.5)
	for _, mode := range []string{"host", "cgroup", "processes"} {
		t.Run(mode, func(t *testing.T) {
			_, pid := run(t, group.Command(program.Parent, "hot"))
			targets := map[string][]processes.Target{"cgroup": {{Cgroup: group.Path}}, "processes": {{PID: pid}}}[mode]
			sampler, to, _ := setup{targets: targets, discovery: 500 * time.Millisecond}.start(t)
			eventually(t, func() bool { return to.ofPID(pid) > 0 })

			cpu.Offline(t)
			to.forget()
			eventually(t, func() bool { return to.ofPID(pid) > 100*time.Millisecond })
			cpu.Online(t)
			pin(t, pid, cpu.Number)
			to.forget()
			eventually(t, func() bool { return to.ofPID(pid) > 100*time.Millisecond })
			once(t, sampler, to, pid, 200*time.Millisecond)

			cpu.Offline(t) // the CPU is back before a discovery can notice
			cpu.Online(t)
			pin(t, pid, cpu.Number)
			to.forget()
			eventually(t, func() bool { return to.ofPID(pid) > 100*time.Millisecond })
			once(t, sampler, to, pid, 200*time.Millisecond)
			require.Equal(t, 1, sampler.Targets())
		})
	}
}

func pin(t *testing.T, pid, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	require.NoError(t, unix.SchedSetaffinity(pid, &set))
}
