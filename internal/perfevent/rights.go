// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import "fmt"

// Rights are what this process may sample, found by trying. An error says why
// not: a *RightsError, or what else stands in the way.
type Rights struct {
	// Own is about own processes, their time in user mode.
	Own error
	// HostWide is about the whole host and any cgroup.
	HostWide error
	// Kernel is about time in the kernel and its stacks, with whatever scope is
	// permitted.
	Kernel error
	// ForeignPIDNamespace says that this process is not in the host's pid
	// namespace: processes outside of its own are reported with pid 0.
	ForeignPIDNamespace bool
}

// KernelMode is the most that Rights permit of what was wanted: stacks true
// asks for KernelStacks, else for KernelTime.
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

// scope is what a right is about.
type scope uint8

const (
	scopeOwn scope = iota
	scopeHost
	scopeKernel
	scopeProcess // someone else's
)

func (s scope) String() string {
	switch s {
	case scopeOwn:
		return "sampling own processes"
	case scopeHost:
		return "sampling the whole host or a cgroup"
	case scopeKernel:
		return "sampling time in the kernel"
	default:
		return "sampling a process of another user"
	}
}

// paranoid is the highest kernel.perf_event_paranoid that permits the scope to
// everyone.
func (s scope) paranoid() int {
	switch s {
	case scopeHost:
		return 0
	case scopeKernel:
		return 1
	default:
		return 2
	}
}

// situation is what decides which right is missing.
type situation struct {
	// paranoid is kernel.perf_event_paranoid.
	paranoid int
	// perfmon says that the kernel knows CAP_PERFMON (5.8).
	perfmon bool
	// havePerfmon and haveAdmin are the capabilities held.
	havePerfmon, haveAdmin bool
	// userNamespace says that this process is not in the host's user namespace,
	// where perf events look for capabilities.
	userNamespace bool
	// filtered says that the kernel answered EPERM and not EACCES: a seccomp
	// profile does, perf itself does not.
	filtered bool
}

// missing is the error for a refusal in a situation.
func missing(sc scope, what string, s situation, answer error) *RightsError {
	e := &RightsError{What: what, Err: answer}
	sysctl := fmt.Sprintf("kernel.perf_event_paranoid at most %d", sc.paranoid())
	capability := "CAP_PERFMON"
	if !s.perfmon {
		capability = "CAP_SYS_ADMIN"
	}
	e.Have = fmt.Sprintf("it is %d", s.paranoid)
	switch {
	case s.filtered && (s.havePerfmon && s.perfmon || s.haveAdmin):
		e.Needed = []string{"a seccomp profile that permits perf_event_open"}
		e.Have = "the capability is there"
	case s.filtered:
		// Container engines permit the call with the capability.
		e.Needed = []string{capability, "a seccomp profile that permits perf_event_open"}
		e.Have = ""
	case s.haveAdmin && !s.userNamespace:
		e.Needed = []string{"a security module (as SELinux) that permits perf events"}
		e.Have = "CAP_SYS_ADMIN is there"
	case !s.userNamespace && s.havePerfmon && s.perfmon && s.paranoid >= 3:
		// Debian's and Ubuntu's kernels check before they look at CAP_PERFMON.
		e.Needed = []string{"CAP_SYS_ADMIN", sysctl}
		e.Have += ", and this kernel ignores CAP_PERFMON above 2"
	case s.userNamespace && (s.haveAdmin || s.havePerfmon && s.perfmon) && sc != scopeProcess:
		e.Needed = []string{capability + " in the host's user namespace", sysctl}
		e.Have += ", and capabilities of another user namespace do not count"
	case sc == scopeProcess && s.paranoid <= sc.paranoid():
		e.Needed = []string{"to run as that user", capability, "CAP_SYS_PTRACE"}
		e.Have = ""
	default:
		e.Needed = []string{capability, sysctl}
	}
	return e
}

// missingForProbes is the error where no probe may be placed in programs, which no
// sysctl permits. Kernels 5.8 to 6.15 took CAP_PERFMON for it; those since, and the
// older ones that are still maintained, want CAP_SYS_ADMIN (since July 2025).
func missingForProbes(what string, s situation, answer error) *RightsError {
	e := &RightsError{What: what, Needed: []string{"CAP_SYS_ADMIN"}, Err: answer}
	switch {
	case s.userNamespace:
		e.Needed = []string{"CAP_SYS_ADMIN in the host's user namespace"}
	case s.haveAdmin:
		e.Needed = []string{"a seccomp profile or security module that permits perf events"}
		e.Have = "CAP_SYS_ADMIN is there"
	case s.havePerfmon && s.perfmon:
		e.Have = "CAP_PERFMON, which this kernel does not take for probes, is there"
	case s.perfmon:
		e.Needed = append(e.Needed, "CAP_PERFMON, with kernels that take it for probes")
	}
	return e
}
