// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"iter"
	"slices"
)

// A Hierarchy is a tree of cgroups in which each process has a path. It is either the v2
// tree or the v1 tree of a controller. Controllers that are mounted together share a
// tree, so their paths are the same.
type Hierarchy uint8

// These are the hierarchies that this package reads.
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

// String returns the hierarchy's name in /proc/PID/cgroup, or "v2" for the unified tree.
func (h Hierarchy) String() string { return hierarchyNames[h] }

var hierarchyNames = [numHierarchies]string{"v2", "cpu", "cpuacct", "cpuset", "memory", "pids", "perf_event", "name=systemd"}

// file returns the name of a file in this hierarchy, given its names in v2 and v1.
func (h Hierarchy) file(v2, v1 string) string {
	if h == V2Tree {
		return v2
	}
	return v1
}

// hierarchyOf is the inverse of String for v1 names.
func hierarchyOf(name string) (Hierarchy, bool) {
	i := slices.Index(hierarchyNames[:], name)
	return Hierarchy(i), i >= int(CPU)
}

// identity returns the hierarchies that may identify a group, in order of precedence.
func identity() [3]Hierarchy { return [...]Hierarchy{V2Tree, CPU, Systemd} }

// identifying yields the mounted hierarchies that may identify a group, in order of
// precedence.
func (t *Tree) identifying() iter.Seq2[Hierarchy, *mount] {
	return func(yield func(Hierarchy, *mount) bool) {
		for _, h := range identity() {
			if m := t.trees[h]; m != nil && !yield(h, m) {
				return
			}
		}
	}
}

// A Mode names the kinds of hierarchies that the host has.
type Mode string

// The modes.
const (
	V1     Mode = "v1"     // only v1 hierarchies
	Hybrid Mode = "hybrid" // v1 controllers beside a v2 tree
	V2     Mode = "v2"     // only the v2 tree
)

// Paths holds one path per hierarchy. A path is relative to the hierarchy's root and has a
// leading slash. It is empty if the hierarchy is not mounted.
type Paths [numHierarchies]string

// Unavailable is the reason why a value does not exist for a group. A failed read returns
// another error. Unavailable values are constants, so returning them does not allocate,
// and they can be compared.
type Unavailable string

// Error returns the reason.
func (u Unavailable) Error() string { return string(u) }

// The reasons.
const (
	// InRoot means that the group's processes are in the root of the hierarchy. The values
	// of the root cover the whole host.
	InRoot Unavailable = "its processes are in the root cgroup of that hierarchy"
	// Shared means that the group's cgroup in the hierarchy also contains processes of
	// other groups, or lacks some of the group's processes.
	Shared Unavailable = "its cgroup in that hierarchy is shared with other units"
	// NotMounted means that the hierarchy of a controller is not mounted on this host.
	NotMounted Unavailable = "that hierarchy is not mounted"
	// NoFile means that the kernel does not provide the file.
	NoFile Unavailable = "the kernel has no such file for that cgroup"
	// NoPeriods means that the cgroup has no CPU bandwidth control.
	NoPeriods Unavailable = "no nr_periods: the cpu controller is not enabled for its cgroup, or the kernel was built without CFS bandwidth control"
	// NoPSI means that the kernel does not measure pressure.
	NoPSI Unavailable = "the kernel does not measure pressure: it needs CONFIG_PSI and, where that is off by default, psi=1 on its command line"
	// NoCgroupPSI means that the pressure of this cgroup is not measured.
	NoCgroupPSI Unavailable = "its pressure is not measured: write 1 to the cgroup.pressure of its cgroup"
	// NoMemoryEvents means that the kernel does not count these memory events.
	NoMemoryEvents Unavailable = "the kernel counts none of these events: cgroup v1 counts max and oom_kill, and oom_kill needs Linux 4.13"
	// TooManyProcesses means that the group has more than 4096 processes, which would have
	// to be read one by one.
	TooManyProcesses Unavailable = "it has too many processes to look at one by one"
	// NeedsLinux is returned on operating systems other than Linux.
	NeedsLinux Unavailable = "control groups need Linux"
)
