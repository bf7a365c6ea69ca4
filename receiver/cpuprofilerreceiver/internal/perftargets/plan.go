// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package perftargets

import (
	"fmt"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Mode is the way in which a Plan samples its targets.
type Mode uint8

const (
	// ModeNone attaches no events.
	ModeNone Mode = iota
	// ModeHost attaches one event per CPU, for the whole host.
	ModeHost
	// ModeTargets attaches events to the cgroups and processes themselves.
	ModeTargets
	// ModeFilter attaches one event per CPU. The reader drops samples of processes that are
	// not targets.
	ModeFilter
)

// Wanted lists the targets of a configuration.
type Wanted struct {
	Host      bool
	Cgroups   []WantedCgroup
	Processes []processes.Match // with their current threads; threads that start later need no descriptor
}

// WantedCgroup is a cgroup to sample.
type WantedCgroup struct {
	// Path is the cgroup's name in LeftOut.
	Path string
	// Directory is the cgroup's directory in the hierarchy of perf_event. It is empty if
	// the cgroup has no directory in that hierarchy.
	Directory string
}

// limits contains the resources and rights that a plan may use.
type limits struct {
	CPUs []int
	// A plan may use at most MaxEvents descriptors and at most half of OpenFiles.
	// OpenFiles is the soft RLIMIT_NOFILE.
	MaxEvents, OpenFiles int
	// HostWide is the reason why CPU-wide events and cgroup events are not permitted. It
	// is nil if these events are permitted.
	HostWide error
	// Switches reports whether context switches are sampled. If so, a HostWide session has
	// four rings per CPU, and the host and each cgroup have two events per CPU.
	Switches bool
	// Tracepoints and Everywhere are the fields of Config with these names. A
	// session with tracepoints is always HostWide. NoThreads reports whether
	// processes cannot have their own events.
	Tracepoints, Everywhere int
	NoThreads               bool
}

// hostWide returns the number of rings per CPU in a HostWide session. each is the number of
// events per CPU of the host or a cgroup. See package perfevent.
func (l limits) hostWide() (rings, each int) {
	switch {
	case l.Switches:
		return 4, 2
	case l.Tracepoints > 0:
		return 2 + l.Everywhere, l.Tracepoints
	}
	return 2, 1
}

// Plan lists the events to attach.
type Plan struct {
	Mode Mode
	// CPUs are the sampled CPUs.
	CPUs      []int
	Cgroups   []WantedCgroup
	Processes []processes.Match
	// HostWide is the value for Options.HostWide.
	HostWide bool
	// Descriptors is the number of perf events in the plan, including the events for rings.
	Descriptors int
	// Why is a short reason for a fallback. It is empty without a fallback.
	Why string
	// LeftOut lists the targets that are not sampled.
	LeftOut []LeftOut
}

// Wide reports whether the plan has events on the CPUs for the whole host.
func (p Plan) Wide() bool { return p.Mode == ModeHost || p.Mode == ModeFilter }

// LeftOut is a target that is not sampled.
type LeftOut struct {
	// What names the target, for example "host", "cgroup /a", "process 12" or "2 of 8 CPUs,
	// from CPU 6 on".
	What string
	// Reason is the reason why the target is not sampled, and a remedy.
	Reason string
}

// ringsOwn is the number of rings per CPU of a session that is not HostWide.
const ringsOwn = 1

// newPlan decides how to sample the targets within limits. newPlan prefers events on the
// targets themselves, because these events cost other processes no time. If such events
// are not possible or do not fit, newPlan plans one event per CPU and a filter in the
// reader. If CPU-wide events are not permitted, newPlan plans the processes that fit, in
// the given order. The whole host includes all other targets.
func newPlan(w Wanted, l limits) Plan {
	limit := min(l.MaxEvents, l.OpenFiles/2)
	if w.Host && l.HostWide == nil {
		return planCPUs(ModeHost, "", limit, l)
	}
	var left []LeftOut
	if w.Host {
		left = append(left, LeftOut{What: "host", Reason: l.HostWide.Error()})
	}
	if l.HostWide != nil {
		for _, c := range w.Cgroups {
			left = append(left, LeftOut{What: c.String(), Reason: l.HostWide.Error()})
		}
		return planProcesses(w.Processes, l, limit, left)
	}
	if len(w.Cgroups)+len(w.Processes) == 0 {
		return Plan{}
	}
	for _, c := range w.Cgroups {
		if c.Directory == "" {
			return planCPUs(ModeFilter, c.String()+" has no directory of its own in the hierarchy that owns perf_event", limit, l)
		}
	}
	if l.NoThreads && len(w.Processes) > 0 {
		return planCPUs(ModeFilter, "this kernel does not count the hits of threads (Linux 6.12 and newer do)", limit, l)
	}
	p := Plan{
		Mode:      ModeTargets,
		CPUs:      l.CPUs,
		Cgroups:   w.Cgroups,
		Processes: w.Processes,
		HostWide:  len(w.Cgroups) > 0 || l.Tracepoints > 0,
	}
	perCPU := ringsOwn
	if p.HostWide {
		rings, each := l.hostWide()
		perCPU = rings + each*len(w.Cgroups)
	}
	for _, process := range w.Processes {
		perCPU += threadsOf(process) * max(l.Tracepoints, 1)
	}
	p.Descriptors = perCPU * len(l.CPUs)
	if p.Descriptors > limit {
		return planCPUs(ModeFilter, fmt.Sprintf("the targets' own perf events would be %d, and %d are permitted", p.Descriptors, limit), limit, l)
	}
	return p
}

// planCPUs plans one event per CPU, on as many CPUs as the limit allows.
func planCPUs(mode Mode, why string, limit int, l limits) Plan {
	rings, each := l.hostWide()
	perCPU, cpus := rings+each, l.CPUs
	n := min(len(cpus), max(limit, 0)/perCPU)
	p := Plan{Mode: mode, Why: why, CPUs: cpus[:n], HostWide: true, Descriptors: n * perCPU}
	if n == 0 {
		p = Plan{Why: why}
	}
	if without := cpus[n:]; len(without) > 0 {
		p.LeftOut = []LeftOut{{
			What:   fmt.Sprintf("%d of %d CPUs, from CPU %d on", len(without), len(cpus), without[0]),
			Reason: fmt.Sprintf("a CPU takes %d perf events, and %d are permitted (max_perf_events, and half of RLIMIT_NOFILE)", perCPU, limit),
		}}
	}
	return p
}

// planProcesses plans as many processes as fit. newPlan calls planProcesses if CPU-wide
// events are not permitted.
func planProcesses(wanted []processes.Match, l limits, limit int, left []LeftOut) Plan {
	used := ringsOwn * len(l.CPUs)
	p := Plan{Mode: ModeTargets, CPUs: l.CPUs, LeftOut: left}
	for _, process := range wanted {
		cost := threadsOf(process) * len(l.CPUs)
		if used+cost > limit {
			p.LeftOut = append(p.LeftOut, LeftOut{
				What: fmt.Sprintf("process %d", process.PID),
				Reason: fmt.Sprintf("it takes %d perf events, one per thread and CPU, and %d of %d are left (max_perf_events, and half of RLIMIT_NOFILE); %v",
					cost, max(limit-used, 0), limit, l.HostWide),
			})
			continue
		}
		used += cost
		p.Processes = append(p.Processes, process)
	}
	if len(p.Processes) == 0 {
		return Plan{LeftOut: p.LeftOut}
	}
	p.Descriptors = used
	return p
}

// threadsOf returns the number of threads, or 1 if the number is unknown.
func threadsOf(p processes.Match) int { return max(p.Threads, 1) }

// String names the cgroup in the format of LeftOut.What.
func (c WantedCgroup) String() string { return "cgroup " + c.Path }
