// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
)

// ofOneProcess returns a part with all attributes that identify a process. The part also
// has some attributes that do not identify a process.
func ofOneProcess(more map[string]any) part {
	p := part{attributes: map[string]any{"service.name": "checkout", "process.executable.name": "checkout", "process.runtime.name": "go"}}
	for _, name := range attributes.OfProcess {
		p.attributes[name] = "/x"
	}
	p.attributes["process.pid"] = 100
	maps.Copy(p.attributes, more)
	return p
}

func TestProcessAttributesAreRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		yaml string
		kept map[string]any
	}{
		"all by default": {"", nil},
		"but those kept": {"keep_process_attributes: [process.pid, process.executable.path]", map[string]any{"process.pid": int64(100), "process.executable.path": "/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.yaml)
			r.fire(containerA)
			require.NoError(t, r.send(batch(t, r.now.Add(time.Second), ofOneProcess(map[string]any{"container.id": containerA}))))
			want := map[string]any{
				"container.id": containerA, "service.name": "checkout", "process.executable.name": "checkout",
				"process.runtime.name": "go", "hotprofile.trigger.policy": "cpu", "hotprofile.trigger.kind": "hot",
			}
			maps.Copy(want, c.kept)
			for _, p := range allProfiles(r.received()) {
				require.Equal(t, want, p.resource)
			}
		})
	}
}

func TestProcessAttributesOfARecordedProfileAreRemoved(t *testing.T) {
	r := newRig(t, "")
	r.watch(containerA)
	r.source.cores[containerA] = 1.9
	for len(r.log("gate opened")) == 0 {
		require.NoError(t, r.send(batch(t, r.now, ofOneProcess(map[string]any{"container.id": containerA}))))
		require.Empty(t, r.sink.AllProfiles())
		for _, data := range r.p.recorder.All() { // a remaining string would require a copy when the profile is sent
			require.NotContains(t, string(data), "process.pid")
			require.Contains(t, string(data), "process.executable.name")
		}
		r.run(5 * time.Second)
	}
	r.drain()
	for _, p := range allProfiles(r.received()) {
		require.NotContains(t, p.resource, "process.pid")
		require.Equal(t, containerA, p.attributes["hotprofile.unit"])
	}
}

func TestProfilesThatPassUnmatchedKeepTheirProcessAttributes(t *testing.T) {
	r := newRig(t, "unmatched: pass")
	sent := ofOneProcess(map[string]any{"host.name": "elsewhere"})
	require.NoError(t, r.send(batch(t, r.now, sent)))
	want := maps.Clone(sent.attributes)
	want["process.pid"] = int64(100)
	delete(want, "process.linux.cgroup")
	all := r.sink.AllProfiles()
	require.Len(t, all, 1)
	require.Equal(t, want, allProfiles(all[0])[0].resource)
}

// TestUnitsOfProcessesAreToldApartWithoutTheirPID checks that profiles contain the name
// of their unit if the scope is process. The resource then does not need the pid.
func TestUnitsOfProcessesAreToldApartWithoutTheirPID(t *testing.T) {
	r := newRig(t, "scope: process")
	send := func() {
		require.NoError(t, r.send(batch(t, r.now, part{attributes: map[string]any{"process.pid": 100, "process.executable.name": "checkout"}})))
	}
	send()
	name := r.host.Processes[100].Name
	r.source.cores[name] = 1.9
	r.runUntil("gate opened", 2*time.Minute)
	send()
	got := allProfiles(r.received())[0]
	require.Equal(t, name, got.attributes["hotprofile.unit"])
	require.NotContains(t, got.resource, "process.pid")
}
