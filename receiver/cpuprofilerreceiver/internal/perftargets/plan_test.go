// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package perftargets

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

func simulatedCPUs(n int) []int {
	cpus := make([]int, n)
	for i := range cpus {
		cpus[i] = i
	}
	return cpus
}

func procs(count, threads int) []processes.Match {
	out := make([]processes.Match, count)
	for i := range out {
		out[i] = processes.Match{Process: procfs.Process{PID: 1000 + i}, Threads: threads}
	}
	return out
}

func cgroups(count int) []WantedCgroup {
	out := make([]WantedCgroup, count)
	for i := range out {
		path := fmt.Sprintf("/pod%d", i)
		out[i] = WantedCgroup{Path: path, Directory: "/sys/fs/cgroup" + path}
	}
	return out
}

func TestPlan(t *testing.T) {
	denied := errors.New("it needs CAP_PERFMON")
	big := simulatedCPUs(256)
	small := simulatedCPUs(4)
	tests := []struct {
		name   string
		wanted Wanted
		limits limits

		mode        Mode
		hostWide    bool
		cpus        int
		descriptors int
		cgroups     int
		processes   int
		leftOut     []string
		why         string
	}{
		{
			name:   "nothing wanted attaches nothing",
			limits: limits{CPUs: big, MaxEvents: 4096, OpenFiles: 20000},
			mode:   ModeNone,
		},
		{
			name:   "the whole host is one event and two rings per CPU",
			wanted: Wanted{Host: true},
			limits: limits{CPUs: big, MaxEvents: 4096, OpenFiles: 20000},
			mode:   ModeHost, hostWide: true, cpus: 256, descriptors: 768,
		},
		{
			name:   "the whole host includes its cgroups and processes",
			wanted: Wanted{Host: true, Cgroups: cgroups(3), Processes: procs(3, 3)},
			limits: limits{CPUs: small, MaxEvents: 4096, OpenFiles: 20000},
			mode:   ModeHost, hostWide: true, cpus: 4, descriptors: 12,
		},
		{
			name:   "half of the open files bounds the CPUs of a large host, and they are named",
			wanted: Wanted{Host: true},
			limits: limits{CPUs: big, MaxEvents: 4096, OpenFiles: 1024},
			mode:   ModeHost, hostWide: true, cpus: 170, descriptors: 510,
			leftOut: []string{"86 of 256 CPUs, from CPU 170 on"},
		},
		{
			name:    "no descriptor at all attaches nothing",
			wanted:  Wanted{Host: true},
			limits:  limits{CPUs: small, MaxEvents: 4096, OpenFiles: 4},
			mode:    ModeNone,
			leftOut: []string{"4 of 4 CPUs, from CPU 0 on"},
		},
		{
			name:   "the host without the right to it leaves the processes",
			wanted: Wanted{Host: true, Processes: procs(2, 10)},
			limits: limits{CPUs: small, MaxEvents: 4096, OpenFiles: 20000, HostWide: denied},
			mode:   ModeTargets, cpus: 4, descriptors: 4 + 2*10*4, processes: 2,
			leftOut: []string{"host"},
		},
		{
			name:   "a process is one event per thread and CPU, and one ring per CPU",
			wanted: Wanted{Processes: procs(1, 15)},
			limits: limits{CPUs: big, MaxEvents: 4096, OpenFiles: 20000},
			mode:   ModeTargets, cpus: 256, descriptors: 256 + 15*256, processes: 1,
		},
		{
			name:   "one thread more than fits is CPU-wide",
			wanted: Wanted{Processes: procs(1, 16)},
			limits: limits{CPUs: big, MaxEvents: 4096, OpenFiles: 20000},
			mode:   ModeFilter, hostWide: true, cpus: 256, descriptors: 768,
			why: "the targets' own perf events would be 4352, and 4096 are permitted",
		},
		{
			name:   "5,000 threads on 256 CPUs are CPU-wide",
			wanted: Wanted{Processes: procs(1, 5000)},
			limits: limits{CPUs: big, MaxEvents: 4096, OpenFiles: 20000},
			mode:   ModeFilter, hostWide: true, cpus: 256, descriptors: 768,
			why: "the targets' own perf events would be 1280256, and 4096 are permitted",
		},
		{
			name:    "5,000 threads on 256 CPUs without the right are left out and counted",
			wanted:  Wanted{Processes: procs(1, 5000)},
			limits:  limits{CPUs: big, MaxEvents: 4096, OpenFiles: 20000, HostWide: denied},
			mode:    ModeNone,
			leftOut: []string{"process 1000"},
		},
		{
			name: "without the right the processes that fit are sampled in order",
			wanted: Wanted{Processes: []processes.Match{
				{Process: procfs.Process{PID: 1}, Threads: 10},
				{Process: procfs.Process{PID: 2}, Threads: 5000},
				{Process: procfs.Process{PID: 3}, Threads: 4},
				{Process: procfs.Process{PID: 4}, Threads: 2},
			}},
			limits: limits{CPUs: big, MaxEvents: 4096, OpenFiles: 20000, HostWide: denied},
			mode:   ModeTargets, cpus: 256, descriptors: 256 * (1 + 10 + 4), processes: 2,
			leftOut: []string{"process 2", "process 4"},
		},
		{
			name:   "a process whose threads are unknown counts as one",
			wanted: Wanted{Processes: procs(1, 0)},
			limits: limits{CPUs: small, MaxEvents: 4096, OpenFiles: 20000},
			mode:   ModeTargets, cpus: 4, descriptors: 8, processes: 1,
		},
		{
			name:   "a cgroup is one event per CPU, and two rings",
			wanted: Wanted{Cgroups: cgroups(14)},
			limits: limits{CPUs: big, MaxEvents: 4096, OpenFiles: 20000},
			mode:   ModeTargets, hostWide: true, cpus: 256, descriptors: 4096, cgroups: 14,
		},
		{
			name:   "with context switches it is two events per CPU, and four rings",
			wanted: Wanted{Cgroups: cgroups(6)},
			limits: limits{CPUs: big, MaxEvents: 4096, OpenFiles: 20000, Switches: true},
			mode:   ModeTargets, hostWide: true, cpus: 256, descriptors: 4096, cgroups: 6,
		},
		{
			name:   "the whole host, too",
			wanted: Wanted{Cgroups: cgroups(7)},
			limits: limits{CPUs: big, MaxEvents: 4096, OpenFiles: 20000, Switches: true},
			mode:   ModeFilter, hostWide: true, cpus: 256, descriptors: 6 * 256,
			why: "the targets' own perf events would be 4608, and 4096 are permitted",
		},
		{
			name:   "more cgroups than fit are CPU-wide",
			wanted: Wanted{Cgroups: cgroups(15)},
			limits: limits{CPUs: big, MaxEvents: 4096, OpenFiles: 20000},
			mode:   ModeFilter, hostWide: true, cpus: 256, descriptors: 768,
			why: "the targets' own perf events would be 4352, and 4096 are permitted",
		},
		{
			name:   "a cgroup without a directory for perf_event is CPU-wide",
			wanted: Wanted{Cgroups: []WantedCgroup{{Path: "/pod"}}},
			limits: limits{CPUs: small, MaxEvents: 4096, OpenFiles: 20000},
			mode:   ModeFilter, hostWide: true, cpus: 4, descriptors: 12,
			why: "cgroup /pod has no directory of its own in the hierarchy that owns perf_event",
		},
		{
			name:   "a cgroup without the right is left out, a process beside it is not",
			wanted: Wanted{Cgroups: cgroups(1), Processes: procs(1, 1)},
			limits: limits{CPUs: small, MaxEvents: 4096, OpenFiles: 20000, HostWide: denied},
			mode:   ModeTargets, cpus: 4, descriptors: 8, processes: 1,
			leftOut: []string{"cgroup /pod0"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newPlan(test.wanted, test.limits)
			require.Equal(t, test.mode, p.Mode)
			require.Equal(t, test.hostWide, p.HostWide)
			require.Len(t, p.CPUs, test.cpus)
			require.Equal(t, test.descriptors, p.Descriptors)
			require.Len(t, p.Cgroups, test.cgroups)
			require.Len(t, p.Processes, test.processes)
			require.Equal(t, test.why, p.Why)
			var names []string
			for _, l := range p.LeftOut {
				names = append(names, l.What)
				require.NotEmpty(t, l.Reason)
			}
			require.Equal(t, test.leftOut, names)
		})
	}
}

// TestPlanKeepsToItsLimits checks that plans for all kinds of targets use no more
// descriptors than permitted. Every process must be sampled or listed as left out.
func TestPlanKeepsToItsLimits(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		w := Wanted{Host: random.IntN(4) == 0, Cgroups: cgroups(random.IntN(20))}
		for range random.IntN(50) {
			w.Processes = append(w.Processes, processes.Match{Process: procfs.Process{PID: len(w.Processes) + 1}, Threads: random.IntN(5000)})
		}
		l := limits{CPUs: simulatedCPUs(1 + random.IntN(256)), MaxEvents: random.IntN(5000), OpenFiles: random.IntN(20000)}
		if random.IntN(2) == 0 {
			l.HostWide = errors.New("denied")
		}
		p := newPlan(w, l)
		require.LessOrEqual(t, p.Descriptors, l.MaxEvents)
		require.LessOrEqual(t, p.Descriptors, l.OpenFiles/2)
		if p.HostWide {
			require.NoError(t, l.HostWide)
		} else if l.HostWide != nil {
			named := len(p.Processes) + len(p.LeftOut)
			want := len(w.Processes) + len(w.Cgroups)
			if w.Host {
				want++
			}
			require.Equal(t, want, named)
		}
	}
}

func TestPlansOfTracepointsAreHostWide(t *testing.T) {
	l := limits{CPUs: []int{0, 1}, MaxEvents: 4096, OpenFiles: 1 << 20, Tracepoints: 9, Everywhere: 1}
	one := processes.Match{Process: procfs.Process{PID: 1}, Threads: 3}
	p := newPlan(Wanted{Cgroups: []WantedCgroup{{Path: "/a", Directory: "/sys/fs/cgroup/a"}}, Processes: []processes.Match{one}}, l)
	require.Equal(t, ModeTargets, p.Mode)
	require.True(t, p.HostWide)
	require.Equal(t, 2*(3+9+3*9), p.Descriptors)
	p = newPlan(Wanted{Processes: []processes.Match{one}}, l)
	require.Equal(t, ModeTargets, p.Mode)
	require.True(t, p.HostWide)
	require.Equal(t, 2*(3+3*9), p.Descriptors)
	l.NoThreads = true
	p = newPlan(Wanted{Processes: []processes.Match{one}}, l)
	require.Equal(t, ModeFilter, p.Mode)
	require.Contains(t, p.Why, "6.12")
	require.Equal(t, 2*(3+9), p.Descriptors)
	p = newPlan(Wanted{Host: true}, l)
	require.Equal(t, ModeHost, p.Mode)
	require.Equal(t, 2*(3+9), p.Descriptors)
}
