// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package perfevent samples the host, cgroups and processes with the kernel's perf
// events: which rights that needs, attaching, and the records, decoded and merged by
// time. Its rooms switches and uprobe are for CPU-wide context switches and for probes
// in programs.
//
// A host-wide Session has two rings per CPU: one for samples, which wakes its reader
// rarely, and one for the records of processes (fork, exec, mmap, exit), which wakes
// it at once, so that a process of 20 ms is seen while it lives. With SplitSwitches, the
// context switches of the host and of cgroups have a third ring, and the samples of
// single threads a fourth. Other sessions have one ring for all.
package perfevent

import (
	"errors"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Rights describes what this process may sample. Each error is nil if sampling is
// permitted; otherwise it is a *RightsError, or the error that prevents it.
type Rights struct {
	// Own is about own processes, their time in user mode.
	Own error
	// HostWide is about the whole host and any cgroup.
	HostWide error
	// Kernel is about time in the kernel and its stacks, of whatever is permitted.
	Kernel error
	// ForeignPIDNamespace reports whether this process is outside the host's pid
	// namespace: processes outside its own are reported with pid 0.
	ForeignPIDNamespace bool
}

// KernelMode returns the most of the kernel that may be sampled: up to
// KernelStacks where stacks is true, else up to KernelTime.
func (r Rights) KernelMode(stacks bool) Kernel {
	switch {
	case r.Kernel != nil:
		return KernelExcluded
	case stacks:
		return KernelStacks
	default:
		return KernelTime
	}
}

// ErrNotPerfCgroup is returned for a directory that is not a cgroup of the
// hierarchy that owns perf_event.
var ErrNotPerfCgroup = errors.New("the directory is not a cgroup of the hierarchy that owns perf_event (v2, or v1's perf_event)")

// The errors of sessions, context switches and uprobes.
type (
	// UnsupportedError is returned where this kernel, or this operating system, lacks
	// a feature.
	UnsupportedError = rights.UnsupportedError
	// RightsError is returned for what is not permitted here. It matches
	// errors.Is(err, os.ErrPermission).
	RightsError = rights.Error
	// LimitError is returned where something would take more descriptors than
	// permitted.
	LimitError = rights.LimitError
)

// OnlineCPUs lists the CPUs that are online, in ascending order.
func OnlineCPUs() ([]int, error) { return sys.OnlineCPUs() }
