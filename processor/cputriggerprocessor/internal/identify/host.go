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
	// walksPerSecond bounds how often the cgroup tree is walked for an unknown container.
	// Container ids come from outside, and may be invented.
	walksPerSecond = 10

	// maxMissing bounds the containers that are remembered as not found, each for
	// missingFor. At the bound all are discarded, and looked up again at the rate above.
	// maxMissing bounds the prefixes too.
	maxMissing = 1024
	missingFor = 5 * time.Second

	maxContainerID = 256 // bytes; container engines use at most 74
)

// LocalHost is this machine. It is safe for concurrent use.
type LocalHost struct {
	proc procfs.FS
	tree *cgroup.Tree
	// watched returns the group of a unit that is already watched.
	watched func(name string) (cgroup.Group, bool)
	podLogs string
	names   []string
	ids     []string
	now     func() time.Time
	// boot returns the boot time by the current clock. Names of processes use firstBoot, so
	// that they do not change when the clock is set.
	boot      func() time.Time
	firstBoot time.Time

	claimed atomic.Pointer[map[string]bool] // claimed container ids, from the last scan

	mu       sync.Mutex
	missing  map[string]time.Time // containers that were not found, with the time until which they are not looked up
	prefixes map[string]string    // full container ids, by the prefix that was looked up
	second   time.Time            // the second in which walks are counted
	walks    int                  // walks of the tree in this second
}

// NewHost returns the machine with its root mounted at root. watched returns the groups of
// watched units, which need no walk of the tree.
func NewHost(root string, tree *cgroup.Tree, watched func(name string) (cgroup.Group, bool), now func() time.Time) *LocalHost {
	return &LocalHost{
		proc: procfs.At(root), podLogs: filepath.Join(root, podLogs), tree: tree, watched: watched, now: now,
		boot: procfs.BootTime, firstBoot: procfs.BootTime(),
		names: hostid.Names(root), ids: hostid.IDs(root),
		missing: map[string]time.Time{}, prefixes: map[string]string{},
	}
}

// Container returns the group of a container by its id or a prefix of the id. It returns a
// watched group, or else one that it finds in the tree.
func (h *LocalHost) Container(id string) (cgroup.Group, bool) {
	if len(id) < cgroup.MinPrefix || len(id) > maxContainerID {
		return cgroup.Group{}, false
	}
	if g, ok := h.watched(h.full(id)); ok && g.ContainerID != "" {
		return g, true
	}
	return h.walk(id)
}

// full returns the full id that was last found for a prefix.
func (h *LocalHost) full(id string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if full, ok := h.prefixes[id]; ok {
		return full
	}
	return id
}

// walk looks for a container in the whole tree. It does not walk the tree if the container
// was just not found, or if the tree was walked too often.
func (h *LocalHost) walk(id string) (cgroup.Group, bool) {
	now := h.now()
	if !h.mayWalk(id, now) {
		return cgroup.Group{}, false
	}
	g, ok, err := h.tree.FindContainer(id)
	if !ok || err != nil {
		g = cgroup.Group{}
	}
	h.remember(id, g.ID, now)
	return g, g.ID != ""
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
	return h.tree.GroupAt(path)
}

// RealContainer calls cgroup.Tree.RealContainer.
func (h *LocalHost) RealContainer(g cgroup.Group, path string) (cgroup.Group, bool) {
	return h.tree.RealContainer(g, path)
}

// SetClaims sets the container ids that a second cgroup carries.
func (h *LocalHost) SetClaims(claims []cgroup.Claim) {
	ids := make(map[string]bool, len(claims))
	for _, c := range claims {
		ids[c.ContainerID] = true
	}
	h.claimed.Store(&ids)
}

// Claimed reports whether a second cgroup carries a container's id.
func (h *LocalHost) Claimed(id string) bool {
	ids := h.claimed.Load()
	return ids != nil && (*ids)[id]
}

// Process returns the process that has a pid now. Its executable is empty if this process
// lacks the right to read it.
func (h *LocalHost) Process(pid int) (Process, bool) {
	stat, err := h.proc.Stat(pid)
	if err != nil {
		return Process{}, false
	}
	paths, err := h.tree.PathsOf(pid)
	if err != nil {
		return Process{}, false
	}
	executable, _ := h.proc.Executable(pid)
	// The start time is read before and after the cgroup, so that both belong to one
	// process.
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
		Group:      h.tree.GroupOf(paths),
	}, true
}

// IsName reports whether a name is this host's name. A short name equals a full name that
// begins with it.
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

// IsID reports whether an id is this host's id.
func (h *LocalHost) IsID(id string) bool {
	return slices.ContainsFunc(h.ids, func(ours string) bool { return strings.EqualFold(id, ours) })
}
