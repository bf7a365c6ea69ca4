// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package perfevent samples the host, cgroups and processes with the kernel's perf events.
// It finds the rights that sampling needs, attaches events, and decodes the records and
// merges them by time. Its packages switches and uprobe are for CPU-wide context switches
// and for probes in programs.
//
// A host-wide Session has two rings per CPU. The ring for samples wakes its reader rarely.
// The ring for the records of processes (fork, exec, mmap, exit) wakes it at once, so that
// a process of 20 ms is seen while it lives. With SplitSwitches, the context switches of
// the host and of cgroups have a third ring, and the samples of single threads a fourth.
// Other sessions have one ring for all records.
package perfevent

import (
	"errors"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Rights describes what this process may sample. Each error is nil if sampling is
// permitted. Otherwise it is a *RightsError, or the error that prevents sampling.
type Rights struct {
	// Own is about own processes, their time in user mode.
	Own error
	// HostWide is about the whole host and any cgroup.
	HostWide error
	// Kernel is about time in the kernel and its stacks, within the permitted processes.
	Kernel error
	// ForeignPIDNamespace reports whether this process is outside the host's pid namespace.
	// Processes outside its own namespace are reported with pid 0.
	ForeignPIDNamespace bool
}

// KernelMode returns the highest permitted Kernel. The limit is KernelStacks if stacks is
// true, and KernelTime otherwise.
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
	// RightsError is returned if an action is not permitted here. It matches errors.Is(err,
	// os.ErrPermission).
	RightsError = rights.Error
	// LimitError is returned if more descriptors are needed than permitted.
	LimitError = rights.LimitError
)

// OnlineCPUs lists the CPUs that are online, in ascending order.
func OnlineCPUs() ([]int, error) { return sys.OnlineCPUs() }
