// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package perfevent samples the host, cgroups and processes with the kernel's perf events.
// It determines the rights for sampling, attaches events, decodes the records and merges
// them by time. Its package switches records CPU-wide context switches.
//
// A host-wide Session has two rings per CPU. The ring for samples wakes the reader
// rarely. The ring for process records (fork, exec, mmap, exit) wakes the reader at once,
// so that a process that lives for 20 ms is seen alive. With SplitSwitches, a third ring
// receives the context switches of the host and of cgroups, and a fourth ring receives
// the samples of single threads. Other sessions have one ring for all records.
package perfevent

import (
	"errors"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Rights describes what this process may sample. Each error is nil if sampling is
// permitted. Otherwise it is a *RightsError, or another error that prevents sampling.
type Rights struct {
	// Own applies to processes of the same user in user mode.
	Own error
	// HostWide applies to the whole host and to any cgroup on it.
	HostWide error
	// Kernel applies to kernel time and kernel stacks in permitted processes.
	Kernel error
	// ForeignPIDNamespace reports whether this process is outside the host's pid namespace.
	// The kernel then reports processes outside this process's namespace with pid 0.
	ForeignPIDNamespace bool
}

// KernelMode returns the highest permitted Kernel. This is at most KernelStacks if stacks
// is true, and at most KernelTime otherwise.
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

// ErrNotPerfCgroup is returned for a directory that is not a cgroup of the hierarchy that
// owns perf_event.
var ErrNotPerfCgroup = errors.New("the directory is not a cgroup of the hierarchy that owns perf_event (v2, or v1's perf_event)")

// These types are the errors of sessions, context switches and uprobes.
type (
	// UnsupportedError is returned if this kernel or operating system lacks a feature.
	UnsupportedError = rights.UnsupportedError
	// RightsError is returned if an action is not permitted. It matches errors.Is(err,
	// os.ErrPermission).
	RightsError = rights.Error
	// LimitError is returned if more descriptors are needed than permitted.
	LimitError = rights.LimitError
)

// OnlineCPUs lists the CPUs that are online, in ascending order.
func OnlineCPUs() ([]int, error) { return sys.OnlineCPUs() }
