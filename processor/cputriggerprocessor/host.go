// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/hostid"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

const (
	// walksPerSecond bounds how often the cgroup tree is walked for a container
	// that is not known: an id comes from outside and may be anything.
	walksPerSecond = 10

	// maxMissing and missingFor bound the memory of containers not found; at the
	// bound all are forgotten, and looked for again at the rate above.
	maxMissing = 1024
	missingFor = 5 * time.Second

	maxContainerID = 256 // bytes; engines have at most 74
)

// realHost is this machine, read below root.
type realHost struct {
	root  string
	tree  *cgroup.Tree
	units *units
	names []string
	ids   []string
	now   func() time.Time
	// boot returns when the machine was started, by the clock as it is set now.
	// Names of units keep to what it was first, so that they do not change.
	boot      func(now time.Time) time.Time
	firstBoot time.Time

	mu       sync.Mutex
	missing  map[string]time.Time // containers not found, and until when to believe that
	prefixes map[string]string    // container ids by a prefix that was asked for
	second   time.Time
	walks    int // of the tree since second
}

func newRealHost(root string, tree *cgroup.Tree, units *units, now func() time.Time) *realHost {
	h := &realHost{
		root: root, tree: tree, units: units, now: now, boot: bootTime,
		names: hostid.Names(root), ids: hostid.IDs(root),
		missing: map[string]time.Time{}, prefixes: map[string]string{},
	}
	h.firstBoot = h.boot(now())
	return h
}

func readBounded(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, procfs.MaxStat))
}

// Container returns a unit that is watched, else one that is found.
func (h *realHost) Container(id string) (cgroup.Group, bool) {
	if len(id) < cgroup.MinPrefix || len(id) > maxContainerID {
		return cgroup.Group{}, false
	}
	if u, ok := h.units.Watched(h.full(id)); ok && u.ContainerID != "" {
		return u, true
	}
	return h.walk(id)
}

func (h *realHost) full(id string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if full, ok := h.prefixes[id]; ok {
		return full
	}
	return id
}

// walk looks for a container in the whole tree, unless it was missed just now or
// others were looked for too often.
func (h *realHost) walk(id string) (cgroup.Group, bool) {
	now := h.now()
	if !h.mayWalk(id, now) {
		return cgroup.Group{}, false
	}
	u, ok, err := h.tree.FindContainer(id)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !ok || err != nil {
		if len(h.missing) >= maxMissing {
			clear(h.missing)
		}
		h.missing[id] = now.Add(missingFor)
		return cgroup.Group{}, false
	}
	if u.ID != id {
		if len(h.prefixes) >= maxMissing {
			clear(h.prefixes)
		}
		h.prefixes[id] = u.ID
	}
	return u, true
}

func (h *realHost) mayWalk(id string, now time.Time) bool {
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

func (h *realHost) Cgroup(path string) (cgroup.Group, bool) {
	if id, ok := cgroup.ContainerID(path); ok {
		return h.Container(id)
	}
	if u, ok := h.units.Watched(path); ok {
		return u, true
	}
	return h.tree.GroupAt(path)
}

func (h *realHost) Process(pid int) (process, bool) {
	dir := filepath.Join(h.root, "proc", strconv.Itoa(pid))
	b, err := readBounded(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, false
	}
	stat, err := procfs.ParseStat(b)
	if err != nil {
		return process{}, false
	}
	paths, err := h.tree.PathsOf(pid)
	if err != nil {
		return process{}, false
	}
	// Unreadable without the right to look at others' processes: then its other
	// witnesses must do.
	executable, _ := os.Readlink(filepath.Join(dir, "exe"))
	return process{
		Process:    procfs.Process{PID: pid, Start: stat.Start},
		Name:       unitNameOf(pid, startedAt(h.firstBoot, stat.Start)),
		Started:    startedAt(h.boot(h.now()), stat.Start),
		Executable: strings.TrimSuffix(executable, " (deleted)"),
		Comm:       string(stat.Comm),
		Kernel:     stat.Kernel,
		Unit:       h.tree.GroupOf(paths),
	}, true
}

// IsName takes a short name and a full one for the same where one of the two is
// all that there is.
func (h *realHost) IsName(name string) bool {
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

func (h *realHost) IsID(id string) bool {
	for _, ours := range h.ids {
		if strings.EqualFold(id, ours) {
			return true
		}
	}
	return false
}

func startedAt(boot time.Time, ticks uint64) time.Time {
	return boot.Add(time.Duration(min(ticks, 1<<39)) * (time.Second / procfs.TicksPerSecond))
}

// startFormat is the start time in the name of a unit that is a process.
const startFormat = "2006-01-02T15:04:05.00Z"

func unitNameOf(pid int, started time.Time) string {
	return strconv.Itoa(pid) + ":" + started.UTC().Format(startFormat)
}
