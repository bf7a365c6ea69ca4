// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package identifytest provides a fake host for tests.
package identifytest

import (
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// These are the ids of groups. The host that NewHost returns contains ContainerA and
// Service.
const (
	ContainerA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	ContainerB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	Service    = "/system.slice/checkout.service"
)

// Host is a fake host that looks everything up in maps.
type Host struct {
	Groups    map[string]cgroup.Group // by id
	Processes map[int]identify.Process
	True      map[string]cgroup.Group // results of RealContainer, by path
	Claims    map[string]bool         // container ids that a second cgroup also claims
	Pods      map[string]string       // container ids, by UID/NAME
}

// Container returns the group in Groups whose container id begins with id.
func (h *Host) Container(id string) (cgroup.Group, bool) {
	for name, u := range h.Groups {
		if u.ContainerID != "" && len(id) >= cgroup.MinPrefix && strings.HasPrefix(name, id) {
			return u, true
		}
	}
	return cgroup.Group{}, false
}

// PodContainer returns the id of the container in Pods with the given pod UID and name.
func (h *Host) PodContainer(uid, name string) (string, identify.Unmatched) {
	if id, ok := h.Pods[uid+"/"+name]; ok {
		return id, ""
	}
	return "", identify.NoPod
}

// Cgroup returns the group at the given path.
func (h *Host) Cgroup(path string) (cgroup.Group, bool) {
	u, ok := h.Groups[path]
	return u, ok
}

// RealContainer returns the group that True contains for the given path.
func (h *Host) RealContainer(_ cgroup.Group, path string) (cgroup.Group, bool) {
	u, ok := h.True[path]
	return u, ok
}

// Claimed reports whether the id is in Claims.
func (h *Host) Claimed(id string) bool { return h.Claims[id] }

// Process returns the process with the given pid.
func (h *Host) Process(pid int) (identify.Process, bool) {
	p, ok := h.Processes[pid]
	return p, ok
}

// IsName reports whether the name is "here".
func (*Host) IsName(name string) bool { return name == "here" }

// IsID reports whether the id is "1d".
func (*Host) IsID(id string) bool { return id == "1d" }

// Epoch is a time at which all processes of NewHost's host are running.
var Epoch = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// NewHost returns a host with a container, a service and several processes.
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
