// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

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

// LeftOut is something that was wanted and is not sampled.
type LeftOut struct {
	// What names it: "host", "cgroup /a", "process 12", "CPU 3".
	What string
	// Reason says why and what would change it.
	Reason string
	// Descriptors is how many it would have taken.
	Descriptors int
}

// NewPlan decides how to sample what is wanted within limits.
func NewPlan(w Wanted, l Limits) Plan { return Plan{} }
