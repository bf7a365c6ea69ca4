// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"path"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// creationTolerance is how far two statements of when a process started may be
// apart: some senders add ticks to a boot time of whole seconds.
const creationTolerance = 1100 * time.Millisecond

// claim is what a resource says about where its profiles were taken. What it
// does not say is empty.
type claim struct {
	containerID, cgroup            string
	hostName, hostID               string
	pid                            int
	created                        time.Time
	executablePath, executableName string
	service, serviceNamespace      string
	// attributes are all of the resource's; they are its batch's and not kept.
	attributes pcommon.Map
}

func claimOf(attributes pcommon.Map) (c claim) {
	c.attributes = attributes
	for k, v := range attributes.All() {
		switch k {
		case attr.ContainerID:
			c.containerID = v.Str()
		case attr.Cgroup:
			c.cgroup = v.Str()
		case attr.PID:
			if n := v.Int(); v.Type() == pcommon.ValueTypeInt && n > 0 && n <= maxPID {
				c.pid = int(n)
			}
		case attr.CreationTime:
			if t, err := time.Parse(time.RFC3339, v.Str()); err == nil {
				c.created = t
			}
		case attr.ExecutablePath:
			c.executablePath = v.Str()
		case attr.ExecutableName:
			c.executableName = v.Str()
		case attr.HostName:
			c.hostName = v.Str()
		case attr.HostID:
			c.hostID = v.Str()
		case attr.ServiceName:
			c.service = v.Str()
		case attr.ServiceNamespace:
			c.serviceNamespace = v.Str()
		}
	}
	return c
}

// maxPID is the kernel's PID_MAX_LIMIT.
const maxPID = 1 << 22

// host is what matching asks of this machine.
type host interface {
	// Container returns the unit of a container by its id.
	Container(id string) (cgroup.Group, bool)
	// Cgroup returns the unit of a cgroup by its path.
	Cgroup(path string) (cgroup.Group, bool)
	// Process returns the process that has a pid now.
	Process(pid int) (process, bool)
	// IsName and IsID say whether a host.name or a host.id is this host's.
	IsName(name string) bool
	IsID(id string) bool
}

// process is a process of this host.
type process struct {
	procfs.Process
	Name       string // as a unit of its own
	Started    time.Time
	Executable string // path of its executable; empty where that may not be read
	Comm       string // what the kernel calls it, at most 15 bytes
	Kernel     bool   // a kernel thread
	Unit       cgroup.Group
}

// target is the unit that a profile belongs to. Where there is no such unit here
// it has what tells whether there was one: a name, or a pid and when the process
// with it started.
type target struct {
	name    string
	unit    cgroup.Group   // where the unit is a cgroup
	process procfs.Process // where it is a process
	in      cgroup.Group   // then, where that is
	since   time.Time      // when the process started, where its pid decided
}

// noUnit is why a profile belongs to no unit; empty where it does.
type noUnit string

const (
	noClaim         noUnit = "its resource has neither container.id, nor process.linux.cgroup with host.name or host.id, nor process.pid"
	noContainer     noUnit = "no cgroup here carries its container.id"
	noCgroup        noUnit = "its process.linux.cgroup is gone"
	otherHost       noUnit = "its host.name or host.id is not this host's"
	noProcess       noUnit = "no process here has its process.pid"
	noWitness       noUnit = "its process.pid is not believed without process.creation.time, process.executable.path or process.executable.name"
	otherProcess    noUnit = "its process.pid is another process here"
	startedLater    noUnit = "the process that has its process.pid now started after the profile ended"
	noControlGroups noUnit = "control groups cannot be read here, so there are no units"
	tooManyUnits    noUnit = "as many units are watched as can be"
	otherContainer  noUnit = "its process.pid is not in the container of its container.id"
)

// match finds the unit of profiles of which the last ended at a time; one that
// ended before target.since is not the unit's. The first of these
// that applies decides: its container's id, alone; the cgroup that the receiver
// saw its process in, on this host; its pid, if something beside the number
// agrees with that process here.
func match(h host, scope Scope, c claim, end time.Time) (target, noUnit) {
	if scope == ScopeCgroup && c.containerID != "" {
		if u, ok := h.Container(c.containerID); ok {
			return target{name: u.ID, unit: u}, ""
		}
		return target{name: nameOfContainer(c.containerID)}, noContainer
	}
	ours, claimed := sameHost(h, c)
	if claimed && !ours {
		return target{}, otherHost
	}
	if scope == ScopeCgroup && c.cgroup != "" && c.cgroup != "/" && ours {
		if u, ok := h.Cgroup(c.cgroup); ok {
			return target{name: u.ID, unit: u}, ""
		}
		if id, ok := cgroup.ContainerID(c.cgroup); ok {
			return target{name: id}, noCgroup
		}
		return target{name: c.cgroup}, noCgroup
	}
	p, why := believed(h, c, end)
	switch {
	case why != "":
		return target{process: procfs.Process{PID: c.pid}, since: c.created}, why
	case scope == ScopeCgroup && !p.Unit.ProcessOnly():
		return target{name: p.Unit.ID, unit: p.Unit, since: p.Started}, ""
	}
	// Of a process as a unit, a container's id confirms which it is.
	if id := c.containerID; id != "" && (len(id) < cgroup.MinPrefix || !strings.HasPrefix(p.Unit.ContainerID, id)) {
		return target{}, otherContainer
	}
	return target{name: p.Name, process: p.Process, in: p.Unit, since: p.Started}, ""
}

// nameOfContainer is the name that a container with an id had as a unit: never
// that of a cgroup or a process, which a sender might give for an id.
func nameOfContainer(id string) string {
	if strings.ContainsAny(id, "/:") {
		return ""
	}
	return id
}

// sameHost says whether a claim is about this host, and whether it says so at
// all: every name it has must be ours.
func sameHost(h host, c claim) (ours, claimed bool) {
	claimed = c.hostName != "" || c.hostID != ""
	ours = claimed && (c.hostName == "" || h.IsName(c.hostName)) && (c.hostID == "" || h.IsID(c.hostID))
	return ours, claimed
}

// believed returns the process of a claim's pid if a witness agrees that it is
// the one meant. A sender in a container says pid 1, and must not be taken for
// the host's; a pid may have been given to another process since.
func believed(h host, c claim, end time.Time) (process, noUnit) {
	switch {
	case c.pid == 0:
		return process{}, noClaim
	case c.created.IsZero() && c.executablePath == "" && c.executableName == "":
		return process{}, noWitness
	}
	p, ok := h.Process(c.pid)
	switch {
	case !ok:
		return process{}, noProcess
	case p.Started.After(end):
		return process{}, startedLater
	case !agrees(p, c):
		return process{}, otherProcess
	}
	return p, ""
}

// agrees asks the witnesses. The time of creation tells processes of one
// executable apart, so where it is given it must agree; else one of the
// executable's path and name must.
func agrees(p process, c claim) bool {
	if !c.created.IsZero() {
		return c.created.Sub(p.Started).Abs() <= creationTolerance
	}
	if c.executablePath != "" && c.executablePath == p.Executable {
		return true
	}
	name := c.executableName
	return name != "" && (name == p.Comm || p.Executable != "" && name == path.Base(p.Executable))
}
