// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package identifytest has a host for tests of package identify.
package identifytest

import (
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
)

// The ids of the groups of NewHost.
const (
	ContainerA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	ContainerB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	Service    = "/system.slice/checkout.service"
)

// Host is a machine made of maps.
type Host struct {
	Groups    map[string]cgroup.Group // by id
	Processes map[int]identify.Process
	True      map[string]cgroup.Group // the real containers, by path, in place of the group with the same id
	Claims    map[string]bool         // container ids that a second cgroup carries
	Pods      map[string]string       // ids of containers, by UID/NAME
}

// Container returns the group of Groups by a container's id or a prefix of it.
func (h *Host) Container(id string) (cgroup.Group, bool) {
	for name, u := range h.Groups {
		if u.ContainerID != "" && len(id) >= cgroup.MinPrefix && strings.HasPrefix(name, id) {
			return u, true
		}
	}
	return cgroup.Group{}, false
}

// PodContainer returns the id of a container of Pods.
func (h *Host) PodContainer(uid, name string) (string, identify.Unmatched) {
	if id, ok := h.Pods[uid+"/"+name]; ok {
		return id, ""
	}
	return "", identify.NoPod
}

// Cgroup returns the group at a path.
func (h *Host) Cgroup(path string) (cgroup.Group, bool) {
	u, ok := h.Groups[path]
	return u, ok
}

// RealContainer returns the container of True at a path.
func (h *Host) RealContainer(_ cgroup.Group, path string) (cgroup.Group, bool) {
	u, ok := h.True[path]
	return u, ok
}

// Claimed reports whether an id is in Claims.
func (h *Host) Claimed(id string) bool { return h.Claims[id] }

// Process returns the process with a pid.
func (h *Host) Process(pid int) (identify.Process, bool) {
	p, ok := h.Processes[pid]
	return p, ok
}

// IsName reports whether a name is the machine's name.
func (*Host) IsName(name string) bool { return name == "here" }

// IsID reports whether an id is the machine's host.id.
func (*Host) IsID(id string) bool { return id == "1d" }

// Epoch is a time at which all processes of NewHost are running.
var Epoch = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// NewHost returns a machine with a container, a service and their processes.
func NewHost() *Host {
	container := cgroup.Group{ID: ContainerA, ContainerID: ContainerA, Cgroup: "/docker/" + ContainerA}
	h := &Host{
		Pods: map[string]string{"pod/cart": ContainerA},
		Groups: map[string]cgroup.Group{
			ContainerA: container,
			Service:    {ID: Service, Cgroup: Service},
		},
		Processes: map[int]identify.Process{
			1: {
				Process: procfs.Process{PID: 1, Start: 1}, Started: Epoch.Add(-time.Hour),
				Executable: "/usr/lib/systemd/systemd", Comm: "systemd",
				Group: cgroup.Group{ID: "/init.scope", Cgroup: "/init.scope"},
			},
			100: {
				Process: procfs.Process{PID: 100, Start: 100}, Started: Epoch.Add(-time.Minute),
				Executable: "/usr/bin/checkout", Comm: "worker",
				Group: cgroup.Group{ID: Service, Cgroup: Service},
			},
			200: {
				Process: procfs.Process{PID: 200, Start: 200}, Started: Epoch.Add(-time.Minute),
				Executable: "/app/server", Comm: "server", Group: container,
			},
			300: {
				Process: procfs.Process{PID: 300, Start: 300}, Started: Epoch.Add(-time.Minute),
				Executable: "/opt/alone", Comm: "alone",
			},
		},
	}
	for pid, p := range h.Processes {
		p.Name = identify.ProcessName(pid, p.Started)
		h.Processes[pid] = p
	}
	return h
}
