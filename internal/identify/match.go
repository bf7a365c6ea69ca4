// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package identify finds the unit of a profile, or of other telemetry with resource
// attributes. A unit is a container, the cgroup of a service, or a process on this host.
package identify

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// Scope selects whether units are cgroups or processes.
type Scope string

// These are the scopes.
const (
	ScopeCgroup  Scope = "cgroup"
	ScopeProcess Scope = "process"
)

// creationTolerance is the maximum difference between two start times of the
// same process. The start times differ because some senders compute them from a
// boot time in whole seconds.
const creationTolerance = 1100 * time.Millisecond

// Host looks up units and processes of this machine.
type Host interface {
	// Container returns the group of a container by its id.
	Container(id string) (cgroup.Group, bool)
	// PodContainer returns the id of a container. uid is the uid of the container's pod,
	// and name is the name of the container in the pod. The name may be empty.
	PodContainer(uid, name string) (id string, why Unmatched)
	// Cgroup returns the group of the cgroup at a path.
	Cgroup(path string) (cgroup.Group, bool)
	// Process returns the process that currently has a pid.
	Process(pid int) (Process, bool)
	// RealContainer decides whether g or the cgroup at path is the real container. The names
	// of both cgroups contain the same container id. If the cgroup at path is the real
	// container, RealContainer returns its group. Otherwise, it returns false.
	RealContainer(g cgroup.Group, path string) (cgroup.Group, bool)
	// Claimed reports whether the names of two cgroups contain the id of a container.
	Claimed(id string) bool
	// IsName and IsID report whether a host.name or a host.id belongs to this host.
	IsName(name string) bool
	IsID(id string) bool
}

// Process is a process of this host.
type Process struct {
	procfs.Process
	Name       string // name of the unit that is this process
	Started    time.Time
	Executable string // path of the executable; empty if it cannot be read
	Comm       string // the kernel's name of the process, at most 15 bytes
	Kernel     bool   // the process is a kernel thread
	Group      cgroup.Group
}

// Identity identifies a unit. If no unit matches, the unit may have ended. In
// this case, Identity contains the name of the unit, or its pid and start time,
// as far as the claim contains them.
type Identity struct {
	Name    string
	Group   cgroup.Group   // of a unit that is a cgroup
	Process procfs.Process // of a unit that is a process
	Within  cgroup.Group   // the group that contains a unit that is a process
	Started time.Time      // start of the process, if the unit was found by its pid
}

// UnknownService is the default service.name of a resource. If the name of the executable
// is known, the service.name continues with a colon and the name of the executable.
const UnknownService = "unknown_service"

// SameProcess reports whether two start times may belong to the same process.
func SameProcess(started, other time.Time) bool {
	return started.Sub(other).Abs() <= creationTolerance
}

// Unmatched is the reason why a profile belongs to no unit. It is empty if the profile
// belongs to a unit.
type Unmatched string

// These are the reasons why a profile belongs to no unit.
const (
	NoAttributes      Unmatched = "its resource has neither container.id, nor process.linux.cgroup with host.name or host.id, nor process.pid"
	NoPod             Unmatched = "no container here belongs to its k8s.pod.uid, as far as /var/log/containers shows"
	NoContainerOfPod  Unmatched = "no container of its k8s.pod.uid that runs here has its k8s.container.name"
	SeveralContainers Unmatched = "its k8s.pod.uid has several containers here, and it has no k8s.container.name"
	NoContainer       Unmatched = "no cgroup here carries its container.id"
	NoCgroup          Unmatched = "its process.linux.cgroup is gone"
	OtherHost         Unmatched = "its host.name or host.id is not this host's"
	NoProcess         Unmatched = "no process here has its process.pid"
	NoWitness         Unmatched = "its process.pid is not believed without process.creation.time, process.executable.path or process.executable.name"
	OtherProcess      Unmatched = "its process.pid is another process here"
	StartedLater      Unmatched = "the process that has its process.pid now started after the profile ended"
	NoControlGroups   Unmatched = "control groups cannot be read here, so there are no units"
	TooManyUnits      Unmatched = "as many units are watched as can be"
	OtherCgroup       Unmatched = "its cgroup carries the id of a container that runs in another cgroup"
	OtherContainer    Unmatched = "its process.pid is not in the container of its container.id"
)

// OfEnded reports whether the reason is normal for profiles of processes and containers
// that have just ended.
func (u Unmatched) OfEnded() bool {
	switch u {
	case NoContainerOfPod, NoContainer, NoCgroup, NoProcess, OtherProcess, StartedLater:
		return true
	}
	return false
}

// Match finds the unit of profiles that were captured until end. A profile that ended
// before Identity.Started does not belong to the unit.
//
// Match uses the first identifier that the claim contains. The order is the container's
// id, the process's cgroup on this host, the pod's uid with the container's name, and the
// pid. The pid is only used if another attribute confirms the process with that pid on
// this host. In the scope process, only the pid identifies a unit.
//
// Anyone who can create a cgroup can name the cgroup after a container. If the claim
// shows that its process is outside the container's cgroup, the claim matches no unit.
func Match(h Host, scope Scope, c Claim, end time.Time) (Identity, Unmatched) {
	ours, claimed := sameHost(h, c)
	if scope == ScopeCgroup && c.ContainerID != "" {
		g, ok := h.Container(c.ContainerID)
		if !ok {
			return Identity{Name: containerName(c.ContainerID)}, NoContainer
		}
		if ours {
			g, ok = settle(h, g, c.Cgroup)
		}
		if !ok || c.Cgroup == "" && c.PID != 0 && (ours || !claimed) && h.Claimed(g.ID) && elsewhere(h, g, c, end) {
			return Identity{}, OtherCgroup
		}
		return ofGroup(g), ""
	}
	if scope == ScopeCgroup && c.PodUID != "" && (!ours || c.Cgroup == "") {
		// The host.name of a pod may be the pod's own name, so it does not have to
		// match. The pod's uid is unique.
		id, why := h.PodContainer(c.PodUID, c.ContainerName)
		if why == "" {
			c.ContainerID = id
			return Match(h, scope, c, end)
		}
		if why != NoPod || c.PID == 0 && (ours || !claimed) {
			return Identity{}, why
		}
	}
	if claimed && !ours {
		return Identity{}, OtherHost
	}
	if scope == ScopeCgroup && c.Cgroup != "" && c.Cgroup != "/" && ours {
		if g, ok := h.Cgroup(c.Cgroup); ok {
			if g, ok = settle(h, g, c.Cgroup); !ok {
				return Identity{}, OtherCgroup
			}
			return ofGroup(g), ""
		}
		if id, ok := cgroup.ContainerID(c.Cgroup); ok {
			return Identity{Name: id}, NoCgroup
		}
		return Identity{Name: c.Cgroup}, NoCgroup
	}
	p, why := witnessed(h, c, end)
	if why != "" {
		return Identity{Process: procfs.Process{PID: c.PID}, Started: c.Created}, why
	}
	found, why := ofProcess(h, p, scope)
	if why != "" {
		return Identity{}, why
	}
	found.Started = p.Started
	// If units are processes, a claimed container id must match the process's container.
	if id := c.ContainerID; scope == ScopeProcess && id != "" &&
		(len(id) < cgroup.MinPrefix || !strings.HasPrefix(p.Group.ContainerID, id)) {
		return Identity{}, OtherContainer
	}
	return found, ""
}

// settle chooses between g and the cgroups on a process's path. If the name of another
// cgroup on the path contains the same container id as g, one of the two is the real
// container. settle returns the other cgroup if it is the real container. If g is the real
// container, settle returns false, because the process is outside it. Without another
// cgroup of the same container id, settle returns g.
func settle(h Host, g cgroup.Group, path string) (cgroup.Group, bool) {
	id, at, ok := cgroup.ContainerIn(path)
	if !ok || id != g.ContainerID || g.Has(at) {
		return g, true
	}
	return h.RealContainer(g, at)
}

// elsewhere reports whether the process of a claim is in a cgroup other than g, and the
// name of that other cgroup contains the same container id.
func elsewhere(h Host, g cgroup.Group, c Claim, end time.Time) bool {
	p, why := witnessed(h, c, end)
	return why == "" && p.Group.ContainerID == g.ContainerID && !p.Group.Same(g)
}

func ofGroup(g cgroup.Group) Identity { return Identity{Name: g.ID, Group: g} }

// ofProcess returns the unit that contains a process. If the process itself is a
// unit, ofProcess returns this unit.
func ofProcess(h Host, p Process, scope Scope) (Identity, Unmatched) {
	if scope == ScopeProcess || p.Group.ProcessOnly() {
		return Identity{Name: p.Name, Process: p.Process, Within: p.Group, Started: p.Started}, ""
	}
	if id := p.Group.ContainerID; id != "" {
		if g, ok := h.Container(id); ok {
			if g, ok = settle(h, g, p.Group.Cgroup); !ok {
				return Identity{}, OtherCgroup
			}
			return ofGroup(g), ""
		}
	}
	return ofGroup(p.Group), ""
}

// containerName returns the name of the unit of a container. A sender may claim
// any id. If the id contains a character that only names of cgroups and
// processes contain, the name is empty.
func containerName(id string) string {
	if strings.ContainsAny(id, "/:") {
		return ""
	}
	return id
}

// sameHost compares the host of a claim with this host. claimed reports whether the claim
// names a host at all, and ours reports whether it names this host. If the claim contains
// a host name and a host id, both must match.
func sameHost(h Host, c Claim) (ours, claimed bool) {
	claimed = c.HostName != "" || c.HostID != ""
	ours = claimed && (c.HostName == "" || h.IsName(c.HostName)) && (c.HostID == "" || h.IsID(c.HostID))
	return ours, claimed
}

// witnessed returns the process with a claim's pid if another attribute confirms the
// process. The pid alone is not enough, because the kernel reuses pids, and because a
// sender in a container claims its pid inside the container, such as 1. On the host, this
// pid belongs to another process.
func witnessed(h Host, c Claim, end time.Time) (Process, Unmatched) {
	switch {
	case c.PID == 0:
		return Process{}, NoAttributes
	case c.Created.IsZero() && c.ExecutablePath == "" && c.ExecutableName == "":
		return Process{}, NoWitness
	}
	p, ok := h.Process(c.PID)
	switch {
	case !ok:
		return Process{}, NoProcess
	case StartedAfter(p.Started, end):
		return Process{}, StartedLater
	case !agrees(p, c):
		return Process{}, OtherProcess
	}
	return p, ""
}

// StartedAfter reports whether a process started after a time, such as the
// end of a profile. The start may be up to one tick later, because boot times
// and start times are rounded.
func StartedAfter(started, t time.Time) bool { return started.After(t.Add(procfs.Tick)) }

// Replaced reports whether the process of a claim now runs another program. For example,
// a process of a container runtime becomes the container's program by an exec.
func Replaced(h Host, c Claim) bool {
	if ours, _ := sameHost(h, c); !ours || c.PID == 0 || c.ExecutablePath == "" {
		return false
	}
	p, ok := h.Process(c.PID)
	return ok && SameProcess(c.Created, p.Started) && p.Executable != "" && !runs(p, c)
}

// agrees reports whether a claim's attributes confirm a process. If the claim contains a
// creation time, the creation time must match, because it distinguishes processes with
// the same executable. Otherwise, the path or the name of the executable must match.
func agrees(p Process, c Claim) bool {
	if !c.Created.IsZero() {
		return SameProcess(c.Created, p.Started)
	}
	return runs(p, c)
}

// runs reports whether a process runs the program that a claim names.
func runs(p Process, c Claim) bool {
	// If the file of the executable was replaced, the target of
	// /proc/PID/exe ends with this suffix.
	const deleted = " (deleted)"
	if at := strings.TrimSuffix(c.ExecutablePath, deleted); at != "" && at == p.Executable {
		return true
	}
	name := strings.TrimSuffix(c.ExecutableName, deleted)
	return name != "" && (name == p.Comm || p.Executable != "" && name == filepath.Base(p.Executable))
}
