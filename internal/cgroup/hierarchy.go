// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

// A Hierarchy is one of the trees that a process has a path in: the v2 tree, or
// the v1 tree of a controller. Two controllers that are mounted together share a
// tree and have the same path.
type Hierarchy uint8

// The hierarchies that are read.
const (
	V2Tree    Hierarchy = iota // the unified tree, with or without controllers
	CPU                        // v1 cpu: quotas and shares
	CPUAcct                    // v1 cpuacct: CPU time
	CPUSet                     // v1 cpuset
	Memory                     // v1 memory
	PIDs                       // v1 pids
	PerfEvent                  // v1 perf_event
	Systemd                    // v1 name=systemd, without a controller
	numHierarchies
)

// String returns the name in /proc/PID/cgroup, and "v2" for the unified tree.
func (h Hierarchy) String() string { return hierarchyNames[h] }

var hierarchyNames = [numHierarchies]string{"v2", "cpu", "cpuacct", "cpuset", "memory", "pids", "perf_event", "name=systemd"}

// file returns the name that a file has in this hierarchy, by its names in v2 and v1.
func (h Hierarchy) file(v2, v1 string) string {
	if h == V2Tree {
		return v2
	}
	return v1
}

// hierarchyOf is the inverse of String for v1 names.
func hierarchyOf(name string) (Hierarchy, bool) {
	for h := CPU; h < numHierarchies; h++ {
		if h.String() == name {
			return h, true
		}
	}
	return 0, false
}

// identity returns the hierarchies that may identify a group, by precedence.
func identity() [3]Hierarchy { return [...]Hierarchy{V2Tree, CPU, Systemd} }

// A Mode is the set of kinds of hierarchies that the host has.
type Mode string

// The modes.
const (
	V1     Mode = "v1"     // only v1 hierarchies
	Hybrid Mode = "hybrid" // v1 controllers beside a v2 tree
	V2     Mode = "v2"     // only the v2 tree
)

// Paths holds a path per hierarchy, below the hierarchy's root and with a leading slash. A
// path is empty if the hierarchy is not mounted.
type Paths [numHierarchies]string

// Unavailable is the reason why a group cannot have a figure, as opposed to a reading that
// failed. It is a constant, so returning it does not allocate, and it compares equal to
// itself.
type Unavailable string

// Error returns the reason.
func (u Unavailable) Error() string { return string(u) }

// The reasons.
const (
	// InRoot is for processes in the hierarchy's root. The figures there belong to the
	// whole host.
	InRoot Unavailable = "its processes are in the root cgroup of that hierarchy"
	// Shared is for a group if its cgroup in the hierarchy also holds processes of other
	// groups, or lacks some of its own processes.
	Shared Unavailable = "its cgroup in that hierarchy is shared with other units"
	// NotMounted is for a controller without a hierarchy on this host.
	NotMounted Unavailable = "that hierarchy is not mounted"
	// NoFile is for a kernel that does not have the figure.
	NoFile Unavailable = "the kernel has no such file for that cgroup"
	// NoPeriods is for cgroups without CPU bandwidth control.
	NoPeriods Unavailable = "no nr_periods: the cpu controller is not enabled for its cgroup, or the kernel was built without CFS bandwidth control"
	// NoPSI is for a kernel that does not measure pressure.
	NoPSI Unavailable = "the kernel does not measure pressure: it needs CONFIG_PSI and, where that is off by default, psi=1 on its command line"
	// NoCgroupPSI is for a cgroup without measured pressure.
	NoCgroupPSI Unavailable = "its pressure is not measured: write 1 to the cgroup.pressure of its cgroup"
	// NoMemoryEvents is for events of memory that the kernel does not count.
	NoMemoryEvents Unavailable = "the kernel counts none of these events: cgroup v1 counts max and oom_kill, and oom_kill needs Linux 4.13"
	// TooManyProcesses is for a group of more than 4096 processes that would have to be
	// read one by one.
	TooManyProcesses Unavailable = "it has too many processes to look at one by one"
	// NeedsLinux is for other systems.
	NeedsLinux Unavailable = "control groups need Linux"
)
