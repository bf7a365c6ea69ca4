// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
)

// TestAProgramThatStartsAContainerDoesNotNameIt covers the start of a container. The
// first process of a container initially runs the container runtime. It then executes
// the container's program, but keeps its pid and start time.
func TestAProgramThatStartsAContainerDoesNotNameIt(t *testing.T) {
	runtime := map[string]any{"process.executable.path": "/", "process.executable.name": "/"}
	program := map[string]any{"process.executable.path": "/app/server", "process.executable.name": "server"}
	for name, seen := range map[string]string{"seen while it starts": "/", "seen afterwards": "/app/server"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "")
			r.p.keepResources()
			send := func(executable map[string]any) {
				sent := inContainer(containerA)
				for key, value := range executable {
					sent.attributes[key] = value
				}
				sent.attributes["host.name"], sent.attributes["process.pid"] = "here", 200
				sent.attributes["process.creation.time"] = r.host.Processes[200].Started.Format(time.RFC3339Nano)
				require.NoError(t, r.send(batch(t, r.now, sent)))
			}
			shown := func() map[string]any {
				units, _ := r.p.units.Readings(nil, 10, r.now, func(string) []hotunitsextension.PeerReading { return nil })
				require.Len(t, units, 1)
				return asMap(units[0].Resource)
			}
			process := r.host.Processes[200]
			process.Executable = seen
			r.host.Processes[200] = process
			send(runtime)
			if seen != "/" {
				require.NotContains(t, shown(), "process.executable.name")
				require.NotContains(t, shown(), "service.name")
			}
			process.Executable, process.Comm = "/app/server", "server"
			r.host.Processes[200] = process
			send(program)
			require.Equal(t, "server", shown()["process.executable.name"])
			require.Equal(t, "unknown_service:server", shown()["service.name"])
		})
	}
}
