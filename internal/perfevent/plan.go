// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"fmt"
	"strconv"
)

// Mode is how a Plan samples what was asked for.
type Mode uint8

const (
	// ModeNone attaches nothing.
	ModeNone Mode = iota
	// ModeHost attaches one event per CPU, for the whole host.
	ModeHost
	// ModeTargets attaches events to the cgroups and processes themselves.
	ModeTargets
	// ModeFilter attaches one event per CPU; samples of others than the targets
	// are to be dropped by the reader.
	ModeFilter
)

// Wanted is what is to be sampled.
type Wanted struct {
	Host      bool
	Cgroups   []WantedCgroup
	Processes []WantedProcess
}

// WantedCgroup is a cgroup to sample.
type WantedCgroup struct {
	// Path names it in what is left out.
	Path string
	// Directory is its directory in the hierarchy that owns perf_event; empty
	// where it has none of its own there.
	Directory string
}

// WantedProcess is a process to sample.
type WantedProcess struct {
	PID int
	// Threads is how many it has now; those to come cost no descriptor.
	Threads int
}

// Limits are what a plan has to keep to.
type Limits struct {
	CPUs []int
	// MaxEvents is the most descriptors, OpenFiles the soft RLIMIT_NOFILE, half
	// of which is never exceeded either.
	MaxEvents, OpenFiles int
	// HostWide says why CPU-wide and cgroup events are not permitted; nil where
	// they are.
	HostWide error
}

// Plan is what to attach.
type Plan struct {
	Mode Mode
	// CPUs are those that are sampled.
	CPUs      []int
	Cgroups   []WantedCgroup
	Processes []WantedProcess
	// HostWide is what Options.HostWide has to be.
	HostWide bool
	// Descriptors is how many perf events it takes, those of the rings included.
	Descriptors int
	// Why says in a few words why a fallback was taken; else empty.
	Why string
	// LeftOut is what is not sampled.
	LeftOut []LeftOut
}

// Wide says that the events are those of the whole host's CPUs, whatever was
// wanted of it.
func (p Plan) Wide() bool { return p.Mode == ModeHost || p.Mode == ModeFilter }

// LeftOut is something that was wanted and is not sampled.
type LeftOut struct {
	// What names it: "host", "cgroup /a", "process 12", "2 of 8 CPUs, from CPU 6
	// on".
	What string
	// Reason says why and what would change it.
	Reason string
	// Descriptors is how many it would have taken.
	Descriptors int
}

// What each CPU takes before anything is attached: the events that the rings are
// mapped from (see Session).
const (
	ringsHostWide = 2
	ringsOwn      = 1
)

// NewPlan decides how to sample what is wanted within limits: the targets' own
// events, which cost nothing elsewhere, as long as they fit; else one event per
// CPU, filtered by the reader, where that is permitted; else what fits, in the
// order given. The whole host takes in every other target.
func NewPlan(w Wanted, l Limits) Plan {
	limit := min(l.MaxEvents, l.OpenFiles/2)
	if w.Host && l.HostWide == nil {
		return planCPUs(ModeHost, "", limit, l.CPUs)
	}
	var left []LeftOut
	if w.Host {
		left = append(left, LeftOut{What: "host", Reason: l.HostWide.Error(), Descriptors: (ringsHostWide + 1) * len(l.CPUs)})
	}
	if l.HostWide != nil {
		for _, c := range w.Cgroups {
			left = append(left, LeftOut{What: c.String(), Reason: l.HostWide.Error(), Descriptors: len(l.CPUs)})
		}
		return planProcesses(w.Processes, l, limit, left)
	}
	if len(w.Cgroups)+len(w.Processes) == 0 {
		return Plan{}
	}
	for _, c := range w.Cgroups {
		if c.Directory == "" {
			return planCPUs(ModeFilter, c.String()+" has no directory of its own in the hierarchy that owns perf_event", limit, l.CPUs)
		}
	}
	p := Plan{
		Mode:      ModeTargets,
		CPUs:      l.CPUs,
		Cgroups:   w.Cgroups,
		Processes: w.Processes,
		HostWide:  len(w.Cgroups) > 0,
	}
	perCPU := ringsOwn + len(w.Cgroups)
	if p.HostWide {
		perCPU = ringsHostWide + len(w.Cgroups)
	}
	for _, process := range w.Processes {
		perCPU += process.threads()
	}
	p.Descriptors = perCPU * len(l.CPUs)
	if p.Descriptors > limit {
		return planCPUs(ModeFilter, fmt.Sprintf("the targets' own perf events would be %d, and %d are permitted", p.Descriptors, limit), limit, l.CPUs)
	}
	return p
}

// planCPUs takes one event per CPU, on as many CPUs as fit.
func planCPUs(mode Mode, why string, limit int, cpus []int) Plan {
	const perCPU = ringsHostWide + 1
	n := min(len(cpus), max(limit, 0)/perCPU)
	p := Plan{Mode: mode, Why: why, CPUs: cpus[:n], HostWide: true, Descriptors: n * perCPU}
	if n == 0 {
		p = Plan{Why: why}
	}
	if without := cpus[n:]; len(without) > 0 {
		p.LeftOut = []LeftOut{{
			What:        fmt.Sprintf("%d of %d CPUs, from CPU %d on", len(without), len(cpus), without[0]),
			Reason:      fmt.Sprintf("a CPU takes %d perf events, and %d are permitted (max_perf_events, and half of RLIMIT_NOFILE)", perCPU, limit),
			Descriptors: len(without) * perCPU,
		}}
	}
	return p
}

// planProcesses takes the processes that fit, where CPU-wide events are not
// permitted.
func planProcesses(wanted []WantedProcess, l Limits, limit int, left []LeftOut) Plan {
	used := ringsOwn * len(l.CPUs)
	p := Plan{Mode: ModeTargets, CPUs: l.CPUs, LeftOut: left}
	for _, process := range wanted {
		cost := process.threads() * len(l.CPUs)
		if used+cost > limit {
			p.LeftOut = append(p.LeftOut, LeftOut{
				What: process.String(),
				Reason: fmt.Sprintf("it takes %d perf events, one per thread and CPU, and %d of %d are left (max_perf_events, and half of RLIMIT_NOFILE); %v",
					cost, max(limit-used, 0), limit, l.HostWide),
				Descriptors: cost,
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

// threads counts a process whose threads are not known as one thread.
func (p WantedProcess) threads() int { return max(p.Threads, 1) }

// String names the process as LeftOut does.
func (p WantedProcess) String() string { return "process " + strconv.Itoa(p.PID) }

// String names the cgroup as LeftOut does.
func (c WantedCgroup) String() string { return "cgroup " + c.Path }

// String names the mode for a log line.
func (m Mode) String() string {
	switch m {
	case ModeHost:
		return "the whole host"
	case ModeTargets:
		return "the targets' own events"
	case ModeFilter:
		return "all CPUs, filtered by target"
	default:
		return "nothing"
	}
}
