// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

// Rights describes what this process may sample. Each error is nil where it is permitted,
// and else a *RightsError, or what else prevents it.
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
