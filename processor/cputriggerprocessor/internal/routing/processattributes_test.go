// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/identify"
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
		keep []string
		kept map[string]any
	}{
		"all by default": {nil, nil},
		"but those kept": {[]string{"process.pid", "process.executable.path"}, map[string]any{"process.pid": int64(100), "process.executable.path": "/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, policy("cpu", 1))
			r.router.Remove = attributes.NewFilter(c.keep)
			r.fire(containerA)
			r.send(batch(t, r.now.Add(time.Second), ofOneProcess(map[string]any{"container.id": containerA})))
			want := map[string]any{
				"container.id": containerA, "service.name": "checkout", "process.executable.name": "checkout",
				"process.runtime.name": "go", "hotprofile.trigger.policy": "cpu", "hotprofile.trigger.kind": "hot",
			}
			maps.Copy(want, c.kept)
			for _, p := range decode(r.received()) {
				require.Equal(t, want, p.resource)
			}
		})
	}
}

func TestProcessAttributesOfARecordedProfileAreRemoved(t *testing.T) {
	r := newRig(t, policy("cpu", 1))
	r.watch(containerA)
	r.cores[containerA] = 1.9
	for len(r.openings(containerA)) == 0 {
		r.send(batch(t, r.now, ofOneProcess(map[string]any{"container.id": containerA})))
		require.Empty(t, r.sink.AllProfiles())
		for _, data := range r.recorder.All() { // a remaining string would require a copy when the profile is sent
			require.NotContains(t, string(data), "process.pid")
			require.Contains(t, string(data), "process.executable.name")
		}
		r.run(5 * time.Second)
	}
	for _, p := range decode(r.received()) {
		require.NotContains(t, p.resource, "process.pid")
		require.Equal(t, containerA, p.attributes["hotprofile.unit"])
	}
}

func TestProfilesThatPassUnmatchedKeepTheirProcessAttributes(t *testing.T) {
	r := newRig(t)
	r.router.PassUnmatched = true
	sent := ofOneProcess(map[string]any{"host.name": "elsewhere"})
	r.send(batch(t, r.now, sent))
	want := maps.Clone(sent.attributes)
	want["process.pid"] = int64(100)
	delete(want, "process.linux.cgroup")
	all := r.sink.AllProfiles()
	require.Len(t, all, 1)
	require.Equal(t, want, decode(all[0])[0].resource)
}

// TestUnitsOfProcessesAreToldApartWithoutTheirPID checks that profiles contain the name
// of their unit if the scope is process. The resource then does not need the pid.
func TestUnitsOfProcessesAreToldApartWithoutTheirPID(t *testing.T) {
	r := newRig(t, policy("cpu", 1))
	r.router.Scope = identify.ScopeProcess
	name := r.host.Processes[100].Name
	r.cores[name] = 1.9
	send := func() {
		r.send(batch(t, r.now, part{attributes: map[string]any{"process.pid": 100, "process.executable.name": "checkout"}}))
	}
	send()
	r.runUntil(name, 2*time.Minute, isOpen)
	send()
	got := decode(r.received())[0]
	require.Equal(t, name, got.attributes["hotprofile.unit"])
	require.NotContains(t, got.resource, "process.pid")
}
