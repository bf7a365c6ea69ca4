// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestSamplesOfStartingProgramsHaveTheirService samples processes that repeatedly execute
// other programs. Some samples are taken while the kernel starts a program. Each sample
// must have the environment of its program, not the environment of the previous program.
func TestSamplesOfStartingProgramsHaveTheirService(t *testing.T) {
	program := hosttest.CompileChurn(t)
	group := hosttest.NewCgroup(t, "hotprofile-again")
	group.SetQuota(t, 0.5)
	to := buffer.New(64<<20, buffer.SystemClock{})
	sampler, _, _ := setup{targets: []processes.Target{{Cgroup: group.Path}}, to: to}.start(t)
	all := make([]*exec.Cmd, 8)
	for i := range all {
		all[i] = group.Command(program.Parent, "again", program.Child, "4")
		all[i].Env = []string{"OTEL_SERVICE_NAME=" + program.Parent}
		require.NoError(t, all[i].Start())
	}
	for _, cmd := range all {
		require.NoError(t, cmd.Wait())
	}
	require.NoError(t, sampler.Stop(t.Context())) // Stop reads the remaining records
	batch, ok := to.Take()
	require.True(t, ok)
	right := 0
	for k, events := range batch.Keys() {
		var path, service string
		for _, a := range k.Resource.Attributes {
			switch a.Key {
			case "process.executable.path":
				path, _ = a.Value.(string)
			case "service.name":
				service, _ = a.Value.(string)
			}
		}
		if path != program.Parent && path != program.Child {
			continue // a sample of the shell that executed the first program
		}
		if path == service {
			right += events
		} else {
			t.Errorf("%d samples of process %d, %s, have the service %q", events, k.Resource.PID, path, service)
		}
	}
	t.Logf("%d samples have the right service; %+v", right, sampler.Stats())
	require.Greater(t, right, 100)
}
