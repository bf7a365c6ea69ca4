// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package identify_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	. "github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/identifytest"
)

const (
	containerA = identifytest.ContainerA
	containerB = identifytest.ContainerB
	service    = identifytest.Service
)

var epoch = identifytest.Epoch

func attributes(t testing.TB, m map[string]any) pcommon.Map {
	t.Helper()
	out := pcommon.NewMap()
	require.NoError(t, out.FromRaw(m))
	return out
}

func TestMatch(t *testing.T) {
	created := func(ago time.Duration) string { return epoch.Add(-ago).Format(time.RFC3339Nano) }
	alone := ProcessName(300, epoch.Add(-time.Minute))
	for name, c := range map[string]struct {
		attributes map[string]any
		want       string
		why        Unmatched
	}{
		"container id":                         {map[string]any{"container.id": containerA}, containerA, ""},
		"prefix of a container id":             {map[string]any{"container.id": containerA[:12]}, containerA, ""},
		"container id needs no host":           {map[string]any{"container.id": containerA, "host.name": "elsewhere"}, containerA, ""},
		"unknown container, never its pid":     {map[string]any{"container.id": containerB, "process.pid": 100, "process.executable.name": "checkout"}, "", NoContainer},
		"unknown container, never its cgroup":  {map[string]any{"container.id": containerB, "process.linux.cgroup": service, "host.name": "here"}, "", NoContainer},
		"container id before the cgroup":       {map[string]any{"container.id": containerA, "process.linux.cgroup": service, "host.name": "here"}, containerA, ""},
		"container of a pod":                   {map[string]any{"k8s.pod.uid": "pod", "k8s.container.name": "cart", "host.name": "cart-1"}, containerA, ""},
		"pod without that container":           {map[string]any{"k8s.pod.uid": "pod", "k8s.container.name": "proxy"}, "", NoPod},
		"pod after the container id":           {map[string]any{"container.id": containerB, "k8s.pod.uid": "pod", "k8s.container.name": "cart"}, "", NoContainer},
		"pod that is not here, then the pid":   {map[string]any{"k8s.pod.uid": "gone", "process.pid": 200, "process.executable.name": "server"}, containerA, ""},
		"pod that is of another host":          {map[string]any{"k8s.pod.uid": "gone", "process.pid": 200, "host.name": "elsewhere"}, "", OtherHost},
		"container id is not a string":         {map[string]any{"container.id": 5}, "", NoAttributes},
		"cgroup on the same host":              {map[string]any{"process.linux.cgroup": service, "host.name": "here"}, service, ""},
		"cgroup on the same host by id":        {map[string]any{"process.linux.cgroup": service, "host.id": "1d"}, service, ""},
		"cgroup of a process that is gone":     {map[string]any{"process.linux.cgroup": service, "host.name": "here", "process.pid": 999}, service, ""},
		"cgroup before the pid":                {map[string]any{"process.linux.cgroup": service, "host.name": "here", "process.pid": 200, "process.executable.name": "server"}, service, ""},
		"cgroup that is gone, never its pid":   {map[string]any{"process.linux.cgroup": "/gone", "host.name": "here", "process.pid": 100, "process.executable.name": "checkout"}, "", NoCgroup},
		"cgroup of another host":               {map[string]any{"process.linux.cgroup": service, "host.name": "elsewhere"}, "", OtherHost},
		"cgroup of another host's id":          {map[string]any{"process.linux.cgroup": service, "host.name": "here", "host.id": "other"}, "", OtherHost},
		"cgroup of an unknown host":            {map[string]any{"process.linux.cgroup": service}, "", NoAttributes},
		"root cgroup, by its pid":              {map[string]any{"process.linux.cgroup": "/", "host.name": "here", "process.pid": 300, "process.executable.name": "alone"}, alone, ""},
		"pid alone":                            {map[string]any{"process.pid": 100}, "", NoWitness},
		"pid and host name alone":              {map[string]any{"process.pid": 100, "host.name": "here"}, "", NoWitness},
		"pid 1 of a container":                 {map[string]any{"process.pid": 1, "process.executable.name": "server", "process.executable.path": "/app/server"}, "", OtherProcess},
		"pid 1 of a container on another host": {map[string]any{"process.pid": 1, "process.executable.name": "systemd", "host.name": "pod-7"}, "", OtherHost},
		"pid with the executable's name":       {map[string]any{"process.pid": 100, "process.executable.name": "checkout"}, service, ""},
		"pid with the kernel's name":           {map[string]any{"process.pid": 100, "process.executable.name": "worker"}, service, ""},
		"pid with the executable's path":       {map[string]any{"process.pid": 100, "process.executable.path": "/usr/bin/checkout"}, service, ""},
		"pid with path wrong and name right":   {map[string]any{"process.pid": 100, "process.executable.path": "/link", "process.executable.name": "checkout"}, service, ""},
		"pid with another path":                {map[string]any{"process.pid": 100, "process.executable.path": "/usr/bin/other"}, "", OtherProcess},
		"pid with its creation time":           {map[string]any{"process.pid": 100, "process.creation.time": created(time.Minute)}, service, ""},
		"pid with its creation time, rounded":  {map[string]any{"process.pid": 100, "process.creation.time": created(time.Minute + time.Second)}, service, ""},
		"pid with another creation time":       {map[string]any{"process.pid": 100, "process.creation.time": created(2 * time.Minute)}, "", OtherProcess},
		"pid of one executable, created before": {
			map[string]any{"process.pid": 100, "process.creation.time": created(2 * time.Minute), "process.executable.name": "checkout"}, "", OtherProcess,
		},
		"pid with a creation time that is none": {map[string]any{"process.pid": 100, "process.creation.time": "yesterday"}, "", NoWitness},
		"pid that started after the profile":    {map[string]any{"process.pid": 100, "process.executable.name": "checkout", "late": true}, "", StartedLater},
		"pid of no process":                     {map[string]any{"process.pid": 999, "process.executable.name": "x"}, "", NoProcess},
		"pid out of range":                      {map[string]any{"process.pid": 1 << 40, "process.executable.name": "x"}, "", NoAttributes},
		"negative pid":                          {map[string]any{"process.pid": -1, "process.executable.name": "x"}, "", NoAttributes},
		"pid as a string":                       {map[string]any{"process.pid": "100", "process.executable.name": "checkout"}, "", NoAttributes},
		"process without a cgroup of its own":   {map[string]any{"process.pid": 300, "process.executable.name": "alone"}, alone, ""},
		"process in a container, by its pid":    {map[string]any{"process.pid": 200, "process.executable.name": "server"}, containerA, ""},
		"container id, from its own cgroup":     {map[string]any{"container.id": containerA, "process.linux.cgroup": "/docker/" + containerA + "/init", "host.name": "here"}, containerA, ""},
		"container id, from another cgroup":     {map[string]any{"container.id": containerA, "process.linux.cgroup": "/user/docker-" + containerA + ".scope", "host.name": "here"}, "", OtherCgroup},
		"container id, by another's view":       {map[string]any{"container.id": containerA, "process.linux.cgroup": "/user/docker-" + containerA + ".scope", "host.name": "pod-7"}, containerA, ""},
		"another cgroup with a container's id":  {map[string]any{"process.linux.cgroup": "/user/docker-" + containerA + ".scope", "host.name": "here"}, "", NoCgroup},
		"container id, process in another one":  {map[string]any{"container.id": containerA, "process.pid": 400, "process.executable.name": "forger"}, "", OtherCgroup},
		"container id, process in it":           {map[string]any{"container.id": containerA, "process.pid": 200, "process.executable.name": "server"}, containerA, ""},
		"process that forges a container, pid":  {map[string]any{"process.pid": 400, "process.executable.name": "forger"}, "", OtherCgroup},
		"nothing":                               {nil, "", NoAttributes},
		"only a host":                           {map[string]any{"host.name": "here"}, "", NoAttributes},
	} {
		t.Run(name, func(t *testing.T) {
			end := epoch
			if c.attributes["late"] != nil {
				end = epoch.Add(-2 * time.Minute)
			}
			h := identifytest.NewHost()
			forged := cgroup.Group{ID: containerA, ContainerID: containerA, Cgroup: "/user/docker-" + containerA + ".scope"}
			h.Processes[400] = Process{Process: procfs.Process{PID: 400}, Started: epoch.Add(-time.Minute), Comm: "forger", Group: forged}
			h.Claims = map[string]bool{containerA: true}
			got, why := Match(h, ScopeCgroup, ClaimOf(attributes(t, c.attributes)), end)
			require.Equal(t, c.why, why)
			if why == "" {
				require.Equal(t, c.want, got.Name)
			}
		})
	}
}

// TestUnitThatIsNotHere checks that late profiles of a removed unit still get
// the unit's name.
func TestUnitThatIsNotHere(t *testing.T) {
	here := map[string]any{"host.name": "here"}
	for name, c := range map[string]struct {
		key, value, want string
	}{
		"container":                       {"container.id", containerB, containerB},
		"container, by its cgroup":        {"process.linux.cgroup", "/docker/" + containerB + "/init", containerB},
		"service":                         {"process.linux.cgroup", "/system.slice/gone.service", "/system.slice/gone.service"},
		"container that is called as one": {"container.id", "/system.slice/gone.service", ""},
		"container with a process's name": {"container.id", "300:2026-08-01T11:59:00.00Z", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := attributes(t, here)
			a.PutStr(c.key, c.value)
			h := identifytest.NewHost()
			forged := cgroup.Group{ID: containerA, ContainerID: containerA, Cgroup: "/user/docker-" + containerA + ".scope"}
			h.Processes[400] = Process{Process: procfs.Process{PID: 400}, Started: epoch.Add(-time.Minute), Comm: "forger", Group: forged}
			h.Claims = map[string]bool{containerA: true}
			got, why := Match(h, ScopeCgroup, ClaimOf(a), epoch)
			require.NotEmpty(t, why)
			require.Equal(t, c.want, got.Name)
		})
	}
}

func TestMatchProcesses(t *testing.T) {
	started := epoch.Add(-time.Minute)
	named := func(pid int) string { return ProcessName(pid, started) }
	for name, c := range map[string]struct {
		attributes map[string]any
		want       string
		why        Unmatched
	}{
		"pid with a witness":               {map[string]any{"process.pid": 100, "process.executable.name": "checkout"}, named(100), ""},
		"container confirms":               {map[string]any{"process.pid": 200, "process.executable.name": "server", "container.id": containerA}, named(200), ""},
		"container contradicts":            {map[string]any{"process.pid": 200, "process.executable.name": "server", "container.id": containerB}, "", OtherContainer},
		"container id alone is no process": {map[string]any{"container.id": containerA}, "", NoAttributes},
		"cgroup alone is no process":       {map[string]any{"process.linux.cgroup": service, "host.name": "here"}, "", NoAttributes},
		"another host":                     {map[string]any{"process.pid": 100, "process.executable.name": "checkout", "host.name": "elsewhere"}, "", OtherHost},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := Match(identifytest.NewHost(), ScopeProcess, ClaimOf(attributes(t, c.attributes)), epoch)
			require.Equal(t, c.why, why)
			if why == "" {
				require.Equal(t, c.want, got.Name)
			}
		})
	}
}
