// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMissingRight(t *testing.T) {
	tests := []struct {
		name  string
		scope scope
		at    situation
		want  string
	}{
		{
			name: "the host, without a capability", scope: scopeHost,
			at:   situation{paranoid: 2, perfmon: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON or kernel.perf_event_paranoid at most 0 (it is 2)",
		},
		{
			name: "the kernel, without a capability", scope: scopeKernel,
			at:   situation{paranoid: 2, perfmon: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON or kernel.perf_event_paranoid at most 1 (it is 2)",
		},
		{
			name: "own processes, where the sysctl forbids it to users", scope: scopeOwn,
			at:   situation{paranoid: 4, perfmon: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON or kernel.perf_event_paranoid at most 2 (it is 4)",
		},
		{
			name: "a kernel before CAP_PERFMON", scope: scopeHost,
			at:   situation{paranoid: 2},
			want: "sampling it is not permitted: it needs CAP_SYS_ADMIN or kernel.perf_event_paranoid at most 0 (it is 2)",
		},
		{
			name: "a kernel that ignores CAP_PERFMON when paranoid", scope: scopeHost,
			at:   situation{paranoid: 4, perfmon: true, havePerfmon: true},
			want: "sampling it is not permitted: it needs CAP_SYS_ADMIN or kernel.perf_event_paranoid at most 0 (it is 4, and this kernel ignores CAP_PERFMON above 2)",
		},
		{
			name: "CAP_PERFMON of a user namespace", scope: scopeHost,
			at:   situation{paranoid: 2, perfmon: true, havePerfmon: true, userNamespace: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON in the host's user namespace or kernel.perf_event_paranoid at most 0 (it is 2, and capabilities of another user namespace do not count)",
		},
		{
			name: "CAP_SYS_ADMIN of a user namespace", scope: scopeHost,
			at:   situation{paranoid: 2, perfmon: true, havePerfmon: true, haveAdmin: true, userNamespace: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON in the host's user namespace or kernel.perf_event_paranoid at most 0 (it is 2, and capabilities of another user namespace do not count)",
		},
		{
			name: "refused whatever the capabilities", scope: scopeHost,
			at:   situation{paranoid: 2, perfmon: true, havePerfmon: true, haveAdmin: true},
			want: "sampling it is not permitted: it needs a security module (as SELinux) that permits perf events (CAP_SYS_ADMIN is there)",
		},
		{
			name: "a container's seccomp profile", scope: scopeHost,
			at:   situation{paranoid: 2, perfmon: true, filtered: true},
			want: "sampling it is not permitted: it needs CAP_PERFMON or a seccomp profile that permits perf_event_open",
		},
		{
			name: "a seccomp profile that refuses it to all", scope: scopeHost,
			at:   situation{paranoid: 2, perfmon: true, havePerfmon: true, filtered: true},
			want: "sampling it is not permitted: it needs a seccomp profile that permits perf_event_open (the capability is there)",
		},
		{
			name: "a process of another user", scope: scopeProcess,
			at:   situation{paranoid: 2, perfmon: true},
			want: "sampling it is not permitted: it needs to run as that user or CAP_PERFMON or CAP_SYS_PTRACE",
		},
		{
			name: "any process, where the sysctl forbids it to users", scope: scopeProcess,
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

func TestMissingForProbes(t *testing.T) {
	for _, test := range []struct {
		name string
		at   situation
		want string
	}{
		{"a kernel before CAP_PERFMON", situation{paranoid: 2}, "it needs CAP_SYS_ADMIN"},
		{"no capability", situation{paranoid: 2, perfmon: true}, "it needs CAP_SYS_ADMIN or CAP_PERFMON, with kernels that take it for probes"},
		{
			"a kernel that does not take CAP_PERFMON",
			situation{paranoid: 2, perfmon: true, havePerfmon: true},
			"it needs CAP_SYS_ADMIN (CAP_PERFMON, which this kernel does not take for probes, is there)",
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
			err := missingForProbes("placing it", test.at, syscall.EACCES)
			require.EqualError(t, err, "placing it is not permitted: "+test.want)
			require.ErrorIs(t, err, os.ErrPermission)
		})
	}
}

func TestKernelMode(t *testing.T) {
	require.Equal(t, KernelStacks, Rights{}.KernelMode(true))
	require.Equal(t, KernelTime, Rights{}.KernelMode(false))
	require.Equal(t, KernelExcluded, Rights{Kernel: errors.New("no")}.KernelMode(true))
}
