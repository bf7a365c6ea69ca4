// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package identify

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/hostid"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

const (
	// walksPerSecond is the maximum number of walks of the cgroup tree per second.
	// A walk searches for an unknown container. The number is limited because
	// senders may invent container ids.
	walksPerSecond = 10

	// maxMissing is the maximum number of missing containers that are remembered. A missing
	// container is remembered for missingFor. At the limit, all missing containers are
	// forgotten, and only walksPerSecond limits further lookups. maxMissing is also the
	// maximum number of remembered prefixes.
	maxMissing = 1024
	missingFor = 5 * time.Second

	maxContainerID = 256 // bytes; container engines use at most 74
)

// LocalHost implements Host for this machine. It is safe for concurrent use.
type LocalHost struct {
	*cgroup.Tree
	proc procfs.FS
	// watched returns the group of a unit that is already watched.
	watched func(name string) (cgroup.Group, bool)
	podLogs string
	names   []string
	ids     []string
	now     func() time.Time
	// boot returns the boot time according to the current clock. The names of
	// processes are computed from firstBoot instead, so that the names do not
	// change when the clock is set.
	boot      func() time.Time
	firstBoot time.Time

	claimed atomic.Pointer[map[string]bool] // claimed container ids, from the last scan

	mu       sync.Mutex
	missing  map[string]time.Time // containers that were not found, with the time until which they are not looked up again
	prefixes map[string]string    // full container ids, by the prefix that was looked up
	second   time.Time            // the second in which walks are counted
	walks    int                  // walks of the tree in this second
}

// NewHost returns the machine whose root file system is mounted at root.
// watched returns the groups of watched units. These groups can be found
// without a walk of the cgroup tree.
func NewHost(root string, tree *cgroup.Tree, watched func(name string) (cgroup.Group, bool), now func() time.Time) *LocalHost {
	return &LocalHost{
		proc: procfs.At(root), podLogs: filepath.Join(root, podLogs), Tree: tree, watched: watched, now: now,
		boot: procfs.BootTime, firstBoot: procfs.BootTime(),
		names: hostid.Names(root), ids: hostid.IDs(root),
		missing: map[string]time.Time{}, prefixes: map[string]string{},
	}
}

// Container returns the group of a container. id is the id of the container or a prefix
// of the id. If the container is not watched yet, Container searches the whole cgroup tree,
// unless the container was recently not found or the maximum number of walks is reached.
func (h *LocalHost) Container(id string) (cgroup.Group, bool) {
	if len(id) < cgroup.MinPrefix || len(id) > maxContainerID {
		return cgroup.Group{}, false
	}
	if g, ok := h.watched(h.full(id)); ok && g.ContainerID != "" {
		return g, true
	}
	now := h.now()
	if !h.mayWalk(id, now) {
		return cgroup.Group{}, false
	}
	g, ok, err := h.FindContainer(id)
	if !ok || err != nil {
		g = cgroup.Group{}
	}
	h.remember(id, g.ID, now)
	return g, g.ID != ""
}

// full returns the full container id that was last found for a prefix.
func (h *LocalHost) full(id string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if full, ok := h.prefixes[id]; ok {
		return full
	}
	return id
}

// remember stores the id that was found for a key. An empty id means that no container was
// found.
func (h *LocalHost) remember(key, id string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case id == "":
		if len(h.missing) >= maxMissing {
			clear(h.missing)
		}
		h.missing[key] = now.Add(missingFor)
	case id != key:
		if len(h.prefixes) >= maxMissing {
			clear(h.prefixes)
		}
		h.prefixes[key] = id
	}
}

func (h *LocalHost) mayWalk(id string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.missing[id]) {
		return false
	}
	if now.Sub(h.second) >= time.Second {
		h.second, h.walks = now, 0
	}
	h.walks++
	return h.walks <= walksPerSecond
}

// Cgroup returns the group of a cgroup by its path.
func (h *LocalHost) Cgroup(path string) (cgroup.Group, bool) {
	if id, ok := cgroup.ContainerID(path); ok {
		return h.Container(id)
	}
	if g, ok := h.watched(path); ok {
		return g, true
	}
	return h.GroupAt(path)
}

// SetClaims sets the ids for which Claimed returns true. Each of these ids is part of the
// names of two cgroups.
func (h *LocalHost) SetClaims(claims []cgroup.Claim) {
	ids := make(map[string]bool, len(claims))
	for _, c := range claims {
		ids[c.ContainerID] = true
	}
	h.claimed.Store(&ids)
}

// Claimed reports whether the names of two cgroups contain the id of a container.
func (h *LocalHost) Claimed(id string) bool {
	ids := h.claimed.Load()
	return ids != nil && (*ids)[id]
}

// Process returns the process that currently has the given pid. If the collector may not
// read the path of the executable, Executable is empty.
func (h *LocalHost) Process(pid int) (Process, bool) {
	stat, err := h.proc.Stat(pid)
	if err != nil {
		return Process{}, false
	}
	var group cgroup.Group
	if h.Tree != nil {
		paths, err := h.PathsOf(pid)
		if err != nil {
			return Process{}, false
		}
		group = h.GroupOf(paths)
	}
	executable, _ := h.proc.Executable(pid)
	// The start time is read before and after the cgroup, to ensure that the start time
	// and the cgroup belong to the same process.
	if again, err := h.proc.Stat(pid); err != nil || again.Start != stat.Start {
		return Process{}, false
	}
	return Process{
		Process:    procfs.Process{PID: pid, Start: stat.Start},
		Name:       ProcessName(pid, procfs.TimeOf(h.firstBoot, stat.Start)),
		Started:    procfs.TimeOf(h.boot(), stat.Start),
		Executable: executable,
		Comm:       string(stat.Comm),
		Kernel:     stat.Kernel,
		Group:      group,
	}, true
}

// IsName reports whether a name is this host's name. If only one of the two names has a
// domain, the domain is ignored.
func (h *LocalHost) IsName(name string) bool {
	for _, ours := range h.names {
		if strings.EqualFold(name, ours) {
			return true
		}
		short, domain, _ := strings.Cut(name, ".")
		ourShort, ourDomain, _ := strings.Cut(ours, ".")
		if strings.EqualFold(short, ourShort) && (domain == "" || ourDomain == "") {
			return true
		}
	}
	return false
}

// IsID reports whether id is one of this host's ids.
func (h *LocalHost) IsID(id string) bool {
	return slices.ContainsFunc(h.ids, func(ours string) bool { return strings.EqualFold(id, ours) })
}
