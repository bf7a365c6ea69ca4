// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMissingRight(t *testing.T) {
	tests := []struct {
		name  string
		scope Scope
		at    situation
		want  string
	}{
		{
			name: "the host, without a capability", scope: Host,
			at:   situation{paranoid: 2, perfmon: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON or kernel.perf_event_paranoid at most 0 (it is 2)",
		},
		{
			name: "the kernel, without a capability", scope: Kernel,
			at:   situation{paranoid: 2, perfmon: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON or kernel.perf_event_paranoid at most 1 (it is 2)",
		},
		{
			name: "own processes, where the sysctl forbids it to users", scope: Own,
			at:   situation{paranoid: 4, perfmon: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON or kernel.perf_event_paranoid at most 2 (it is 4)",
		},
		{
			name: "a kernel before CAP_PERFMON", scope: Host,
			at:   situation{paranoid: 2},
			want: "sampling it is not permitted: it needs CAP_SYS_ADMIN or kernel.perf_event_paranoid at most 0 (it is 2)",
		},
		{
			name: "a kernel that ignores CAP_PERFMON when paranoid", scope: Host,
			at:   situation{paranoid: 4, perfmon: true, havePerfmon: true},
			want: "sampling it is not permitted: it needs CAP_SYS_ADMIN or kernel.perf_event_paranoid at most 0 (it is 4, and this kernel ignores CAP_PERFMON above 2)",
		},
		{
			name: "CAP_PERFMON of a user namespace", scope: Host,
			at:   situation{paranoid: 2, perfmon: true, havePerfmon: true, userNamespace: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON in the host's user namespace or kernel.perf_event_paranoid at most 0 (it is 2, and capabilities of another user namespace do not count)",
		},
		{
			name: "CAP_SYS_ADMIN of a user namespace", scope: Host,
			at:   situation{paranoid: 2, perfmon: true, havePerfmon: true, haveAdmin: true, userNamespace: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON in the host's user namespace or kernel.perf_event_paranoid at most 0 (it is 2, and capabilities of another user namespace do not count)",
		},
		{
			name: "refused whatever the capabilities", scope: Host,
			at:   situation{paranoid: 2, perfmon: true, havePerfmon: true, haveAdmin: true},
			want: "sampling it is not permitted: it needs a security module (such as SELinux) that permits perf events (CAP_SYS_ADMIN is there)",
		},
		{
			name: "a container's seccomp profile", scope: Host,
			at:   situation{paranoid: 2, perfmon: true, filtered: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON or a seccomp profile that permits perf_event_open",
		},
		{
			name: "a seccomp profile that refuses it to all", scope: Host,
			at:   situation{paranoid: 2, perfmon: true, havePerfmon: true, filtered: true},
			want: "sampling it is not permitted: it needs a seccomp profile that permits perf_event_open (the capability is there)",
		},
		{
			name: "a process of another user", scope: Process,
			at:   situation{paranoid: 2, perfmon: true},
			want: "sampling it is not permitted: it needs to run as that user or CAP_PERFMON or CAP_SYS_PTRACE",
		},
		{
			name: "any process, where the sysctl forbids it to users", scope: Process,
			at:   situation{paranoid: 3, perfmon: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON or kernel.perf_event_paranoid at most 2 (it is 3)",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := missing(test.scope, "sampling it", test.at, syscall.EACCES)
			require.EqualError(t, err, test.want)
			require.ErrorIs(t, err, os.ErrPermission)
		})
	}
}

func TestMissingRightForUprobes(t *testing.T) {
	for _, test := range []struct {
		name string
		at   situation
		want string
	}{
		{"a kernel before CAP_PERFMON", situation{paranoid: 2}, "it needs CAP_SYS_ADMIN"},
		{"no capability", situation{paranoid: 2, perfmon: true}, "it needs CAP_SYS_ADMIN or CAP_PERFMON, with kernels that accept it for probes"},
		{
			"a kernel that does not accept CAP_PERFMON",
			situation{paranoid: 2, perfmon: true, havePerfmon: true},
			"it needs CAP_SYS_ADMIN (CAP_PERFMON is there, which this kernel does not accept for probes)",
		},
		{
			"everything is there",
			situation{paranoid: 2, perfmon: true, havePerfmon: true, haveAdmin: true},
			"it needs a seccomp profile or security module that permits perf events (CAP_SYS_ADMIN is there)",
		},
		{
			"a user namespace",
			situation{perfmon: true, haveAdmin: true, userNamespace: true},
			"it needs CAP_SYS_ADMIN in the host's user namespace",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := missing(Uprobes, "placing it", test.at, syscall.EACCES)
			require.EqualError(t, err, "placing it is not permitted: "+test.want)
			require.ErrorIs(t, err, os.ErrPermission)
		})
	}
}
