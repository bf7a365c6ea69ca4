// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package rights turns the kernel's refusal of a perf event into an error that names the
// missing right.
package rights

import (
	"fmt"
	"strings"
)

// UnsupportedError is returned if this kernel or operating system lacks a feature.
type UnsupportedError struct {
	// Feature names the missing feature, such as "perf events".
	Feature string
	// Needs names the requirement, such as "Linux 4.8 or later with CONFIG_PERF_EVENTS".
	Needs string
	// Err is the kernel's error. It is nil on operating systems other than Linux.
	Err error
}

// Error names the feature, its requirement and the kernel's error.
func (e *UnsupportedError) Error() string {
	msg := e.Feature + " need " + e.Needs
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

// Unwrap returns the kernel's error.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// LimitError is returned if more descriptors are needed than permitted.
type LimitError struct {
	Needed, Limit int
}

// Error names the needed and the permitted number, and the settings that limit it.
func (e *LimitError) Error() string {
	return fmt.Sprintf("at least %d perf events are needed, and %d are permitted: by max_perf_events, and by half of RLIMIT_NOFILE", e.Needed, e.Limit)
}

// Error is returned if an action is not permitted. It names the rights that would permit
// the action, and matches errors.Is(err, os.ErrPermission).
type Error struct {
	// What names the refused action, such as "sampling the whole host".
	What string
	// Needed lists alternative rights, the least privilege first. One of them is enough.
	Needed []string
	// Have describes the current state, such as "it is 2".
	Have string
	// Err is the kernel's error.
	Err error
}

// Error names the action, the rights that it needs and the current state.
func (e *Error) Error() string {
	msg := e.What + " is not permitted: it needs " + strings.Join(e.Needed, " or ")
	if e.Have != "" {
		msg += " (" + e.Have + ")"
	}
	return msg
}

// Unwrap returns the kernel's error.
func (e *Error) Unwrap() error { return e.Err }

// Scope is the kind of sampling that needs a right.
type Scope uint8

// These are the scopes for which the kernel has different rules.
const (
	Own         Scope = iota // own processes
	Host                     // the whole host, and any cgroup
	Kernel                   // time in the kernel and its stacks
	Process                  // a process of another user
	Uprobes                  // probes in programs
	Tracepoints              // tracepoints of the kernel, with their records
)

// scopes holds, for each scope, the action that it permits, and the highest
// kernel.perf_event_paranoid at which every user may take the action. No value permits
// Uprobes.
var scopes = [...]struct {
	action   string
	paranoid int
}{
	Own:         {"sampling own processes", 2},
	Host:        {"sampling the whole host or a cgroup", 0},
	Kernel:      {"sampling time in the kernel", 1},
	Process:     {"sampling a process of another user", 2},
	Uprobes:     {"placing probes in programs", 2},
	Tracepoints: {"sampling tracepoints", -1},
}

// String names the action that the scope permits.
func (s Scope) String() string { return scopes[s].action }

// situation holds the facts that decide which right is missing.
type situation struct {
	// paranoid is kernel.perf_event_paranoid.
	paranoid int
	// perfmon reports whether the kernel knows CAP_PERFMON (Linux 5.8).
	perfmon bool
	// havePerfmon and haveAdmin report whether this process has the capabilities.
	havePerfmon, haveAdmin bool
	// userNamespace reports whether this process is outside the host's user namespace. Perf
	// events require capabilities in the host's user namespace.
	userNamespace bool
	// filtered reports whether the error was EPERM instead of EACCES. EPERM comes from a
	// seccomp profile, not from perf itself.
	filtered bool
}

// missing returns the error for a refused perf event.
func missing(sc Scope, what string, s situation, answer error) *Error {
	if sc == Uprobes {
		return missingForUprobes(what, s, answer)
	}
	e := &Error{What: what, Err: answer}
	sysctl := fmt.Sprintf("kernel.perf_event_paranoid at most %d", scopes[sc].paranoid)
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
		// Container engines permit the call if the container has the capability.
		e.Needed = []string{capability, "a seccomp profile that permits perf_event_open"}
		e.Have = ""
	case s.haveAdmin && !s.userNamespace:
		e.Needed = []string{"a security module (such as SELinux) that permits perf events"}
		e.Have = "CAP_SYS_ADMIN is there"
	case !s.userNamespace && s.havePerfmon && s.perfmon && s.paranoid >= 3:
		// The kernels of Debian and Ubuntu check the sysctl before CAP_PERFMON.
		e.Needed = []string{"CAP_SYS_ADMIN", sysctl}
		e.Have += ", and this kernel ignores CAP_PERFMON above 2"
	case s.userNamespace && (s.haveAdmin || s.havePerfmon && s.perfmon) && sc != Process:
		e.Needed = []string{capability + " in the host's user namespace", sysctl}
		e.Have += ", and capabilities of another user namespace do not count"
	case sc == Process && s.paranoid <= scopes[sc].paranoid:
		e.Needed = []string{"to run as that user", capability, "CAP_SYS_PTRACE"}
		e.Have = ""
	default:
		e.Needed = []string{capability, sysctl}
	}
	return e
}

// missingForUprobes returns the error for a refused probe. No sysctl permits probes. Linux
// 5.8 to 6.15 accepts CAP_PERFMON for probes. Later kernels, and older maintained kernels
// since July 2025, need CAP_SYS_ADMIN.
func missingForUprobes(what string, s situation, answer error) *Error {
	e := &Error{What: what, Needed: []string{"CAP_SYS_ADMIN"}, Err: answer}
	switch {
	case s.userNamespace:
		e.Needed = []string{"CAP_SYS_ADMIN in the host's user namespace"}
	case s.haveAdmin:
		e.Needed = []string{"a seccomp profile or security module that permits perf events"}
		e.Have = "CAP_SYS_ADMIN is there"
	case s.havePerfmon && s.perfmon:
		e.Have = "CAP_PERFMON is there, which this kernel does not accept for probes"
	case s.perfmon:
		e.Needed = append(e.Needed, "CAP_PERFMON, with kernels that accept it for probes")
	}
	return e
}
