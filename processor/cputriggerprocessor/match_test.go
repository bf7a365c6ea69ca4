// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

const (
	containerA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	containerB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	service    = "/system.slice/checkout.service"
)

// fakeHost is a machine made of maps.
type fakeHost struct {
	units     map[string]cgroup.Group // by id
	processes map[int]process
}

func (h *fakeHost) Container(id string) (cgroup.Group, bool) {
	for name, u := range h.units {
		if u.ContainerID != "" && len(id) >= cgroup.MinPrefix && strings.HasPrefix(name, id) {
			return u, true
		}
	}
	return cgroup.Group{}, false
}

func (h *fakeHost) Cgroup(path string) (cgroup.Group, bool) {
	u, ok := h.units[path]
	return u, ok
}

func (h *fakeHost) Process(pid int) (process, bool) {
	p, ok := h.processes[pid]
	return p, ok
}

func (*fakeHost) IsName(name string) bool { return name == "here" }
func (*fakeHost) IsID(id string) bool     { return id == "1d" }

var epoch = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func theHost() *fakeHost {
	container := cgroup.Group{ID: containerA, ContainerID: containerA, Cgroup: "/docker/" + containerA}
	h := &fakeHost{
		units: map[string]cgroup.Group{
			containerA: container,
			service:    {ID: service, Cgroup: service},
		},
		processes: map[int]process{
			1: {
				Process: procfs.Process{PID: 1, Start: 1}, Started: epoch.Add(-time.Hour),
				Executable: "/usr/lib/systemd/systemd", Comm: "systemd",
				Unit: cgroup.Group{ID: "/init.scope", Cgroup: "/init.scope"},
			},
			100: {
				Process: procfs.Process{PID: 100, Start: 100}, Started: epoch.Add(-time.Minute),
				Executable: "/usr/bin/checkout", Comm: "worker",
				Unit: cgroup.Group{ID: service, Cgroup: service},
			},
			200: {
				Process: procfs.Process{PID: 200, Start: 200}, Started: epoch.Add(-time.Minute),
				Executable: "/app/server", Comm: "server", Unit: container,
			},
			300: {
				Process: procfs.Process{PID: 300, Start: 300}, Started: epoch.Add(-time.Minute),
				Executable: "/opt/alone", Comm: "alone",
			},
		},
	}
	for pid, p := range h.processes {
		p.Name = unitNameOf(pid, p.Started)
		h.processes[pid] = p
	}
	return h
}

func attributes(t testing.TB, m map[string]any) pcommon.Map {
	t.Helper()
	out := pcommon.NewMap()
	require.NoError(t, out.FromRaw(m))
	return out
}

func TestMatch(t *testing.T) {
	created := func(ago time.Duration) string { return epoch.Add(-ago).Format(time.RFC3339Nano) }
	alone := "300:" + epoch.Add(-time.Minute).Format(startFormat)
	for name, c := range map[string]struct {
		attributes map[string]any
		want       string
		why        noUnit
	}{
		"container id":                         {map[string]any{"container.id": containerA}, containerA, ""},
		"prefix of a container id":             {map[string]any{"container.id": containerA[:12]}, containerA, ""},
		"container id needs no host":           {map[string]any{"container.id": containerA, "host.name": "elsewhere"}, containerA, ""},
		"unknown container, never its pid":     {map[string]any{"container.id": containerB, "process.pid": 100, "process.executable.name": "checkout"}, "", noContainer},
		"unknown container, never its cgroup":  {map[string]any{"container.id": containerB, "process.linux.cgroup": service, "host.name": "here"}, "", noContainer},
		"container id before the cgroup":       {map[string]any{"container.id": containerA, "process.linux.cgroup": service, "host.name": "here"}, containerA, ""},
		"container id that is no string":       {map[string]any{"container.id": 5}, "", noClaim},
		"cgroup on the same host":              {map[string]any{"process.linux.cgroup": service, "host.name": "here"}, service, ""},
		"cgroup on the same host by id":        {map[string]any{"process.linux.cgroup": service, "host.id": "1d"}, service, ""},
		"cgroup of a process that is gone":     {map[string]any{"process.linux.cgroup": service, "host.name": "here", "process.pid": 999}, service, ""},
		"cgroup before the pid":                {map[string]any{"process.linux.cgroup": service, "host.name": "here", "process.pid": 200, "process.executable.name": "server"}, service, ""},
		"cgroup that is gone, never its pid":   {map[string]any{"process.linux.cgroup": "/gone", "host.name": "here", "process.pid": 100, "process.executable.name": "checkout"}, "", noCgroup},
		"cgroup of another host":               {map[string]any{"process.linux.cgroup": service, "host.name": "elsewhere"}, "", otherHost},
		"cgroup of another host's id":          {map[string]any{"process.linux.cgroup": service, "host.name": "here", "host.id": "other"}, "", otherHost},
		"cgroup of who knows where":            {map[string]any{"process.linux.cgroup": service}, "", noClaim},
		"root cgroup, by its pid":              {map[string]any{"process.linux.cgroup": "/", "host.name": "here", "process.pid": 300, "process.executable.name": "alone"}, alone, ""},
		"pid alone":                            {map[string]any{"process.pid": 100}, "", noWitness},
		"pid and host name alone":              {map[string]any{"process.pid": 100, "host.name": "here"}, "", noWitness},
		"pid 1 of a container":                 {map[string]any{"process.pid": 1, "process.executable.name": "server", "process.executable.path": "/app/server"}, "", otherProcess},
		"pid 1 of a container on another host": {map[string]any{"process.pid": 1, "process.executable.name": "systemd", "host.name": "pod-7"}, "", otherHost},
		"pid with the executable's name":       {map[string]any{"process.pid": 100, "process.executable.name": "checkout"}, service, ""},
		"pid with the kernel's name":           {map[string]any{"process.pid": 100, "process.executable.name": "worker"}, service, ""},
		"pid with the executable's path":       {map[string]any{"process.pid": 100, "process.executable.path": "/usr/bin/checkout"}, service, ""},
		"pid with path wrong and name right":   {map[string]any{"process.pid": 100, "process.executable.path": "/link", "process.executable.name": "checkout"}, service, ""},
		"pid with another path":                {map[string]any{"process.pid": 100, "process.executable.path": "/usr/bin/other"}, "", otherProcess},
		"pid with its creation time":           {map[string]any{"process.pid": 100, "process.creation.time": created(time.Minute)}, service, ""},
		"pid with its creation time, rounded":  {map[string]any{"process.pid": 100, "process.creation.time": created(time.Minute + time.Second)}, service, ""},
		"pid with another creation time":       {map[string]any{"process.pid": 100, "process.creation.time": created(2 * time.Minute)}, "", otherProcess},
		"pid of one executable, created before": {
			map[string]any{"process.pid": 100, "process.creation.time": created(2 * time.Minute), "process.executable.name": "checkout"}, "", otherProcess,
		},
		"pid with a creation time that is none": {map[string]any{"process.pid": 100, "process.creation.time": "yesterday"}, "", noWitness},
		"pid that started after the profile":    {map[string]any{"process.pid": 100, "process.executable.name": "checkout", "late": true}, "", startedLater},
		"pid of no process":                     {map[string]any{"process.pid": 999, "process.executable.name": "x"}, "", noProcess},
		"pid out of range":                      {map[string]any{"process.pid": 1 << 40, "process.executable.name": "x"}, "", noClaim},
		"negative pid":                          {map[string]any{"process.pid": -1, "process.executable.name": "x"}, "", noClaim},
		"pid as a string":                       {map[string]any{"process.pid": "100", "process.executable.name": "checkout"}, "", noClaim},
		"process without a cgroup of its own":   {map[string]any{"process.pid": 300, "process.executable.name": "alone"}, alone, ""},
		"process in a container, by its pid":    {map[string]any{"process.pid": 200, "process.executable.name": "server"}, containerA, ""},
		"nothing":                               {nil, "", noClaim},
		"only a host":                           {map[string]any{"host.name": "here"}, "", noClaim},
	} {
		t.Run(name, func(t *testing.T) {
			end := epoch
			if c.attributes["late"] != nil {
				end = epoch.Add(-2 * time.Minute)
			}
			got, why := match(theHost(), ScopeCgroup, claimOf(attributes(t, c.attributes)), end)
			require.Equal(t, c.why, why)
			if why == "" {
				require.Equal(t, c.want, got.name)
			}
		})
	}
}

// TestUnitThatIsNotHere: what is returned of a unit that is gone is the name
// that it had, for the profiles that come late.
func TestUnitThatIsNotHere(t *testing.T) {
	here := map[string]any{"host.name": "here"}
	for name, c := range map[string]struct {
		key, value, want string
	}{
		"container":                             {"container.id", containerB, containerB},
		"container, by its cgroup":              {"process.linux.cgroup", "/docker/" + containerB + "/init", containerB},
		"service":                               {"process.linux.cgroup", "/system.slice/gone.service", "/system.slice/gone.service"},
		"container that is called as one":       {"container.id", "/system.slice/gone.service", ""},
		"container that is called as a process": {"container.id", "300:2026-08-01T11:59:00.00Z", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := attributes(t, here)
			a.PutStr(c.key, c.value)
			got, why := match(theHost(), ScopeCgroup, claimOf(a), epoch)
			require.NotEmpty(t, why)
			require.Equal(t, c.want, got.name)
		})
	}
}

func TestMatchProcesses(t *testing.T) {
	started := epoch.Add(-time.Minute)
	named := func(pid string) string { return pid + ":" + started.Format(startFormat) }
	for name, c := range map[string]struct {
		attributes map[string]any
		want       string
		why        noUnit
	}{
		"pid with a witness":               {map[string]any{"process.pid": 100, "process.executable.name": "checkout"}, named("100"), ""},
		"container confirms":               {map[string]any{"process.pid": 200, "process.executable.name": "server", "container.id": containerA}, named("200"), ""},
		"container contradicts":            {map[string]any{"process.pid": 200, "process.executable.name": "server", "container.id": containerB}, "", otherContainer},
		"container id alone is no process": {map[string]any{"container.id": containerA}, "", noClaim},
		"cgroup alone is no process":       {map[string]any{"process.linux.cgroup": service, "host.name": "here"}, "", noClaim},
		"another host":                     {map[string]any{"process.pid": 100, "process.executable.name": "checkout", "host.name": "elsewhere"}, "", otherHost},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := match(theHost(), ScopeProcess, claimOf(attributes(t, c.attributes)), epoch)
			require.Equal(t, c.why, why)
			if why == "" {
				require.Equal(t, c.want, got.name)
			}
		})
	}
}
