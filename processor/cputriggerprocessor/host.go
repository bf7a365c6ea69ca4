// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor"
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

	maxStat = 4096 // bytes of a /proc/PID/stat, and of a file with a name of the host
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
		missing: map[string]time.Time{}, prefixes: map[string]string{},
	}
	h.firstBoot = h.boot(now())
	if name, err := os.Hostname(); err == nil {
		h.names = append(h.names, name)
	}
	// In a container the name of the host itself is in its file. Its id is the
	// machine's, or in clouds the instance's, as resource detection gives it.
	h.names = appendWord(h.names, filepath.Join(root, "etc/hostname"))
	for _, file := range []string{"etc/machine-id", "var/lib/dbus/machine-id", "sys/class/dmi/id/product_uuid", "var/lib/cloud/data/instance-id"} {
		h.ids = appendWord(h.ids, filepath.Join(root, file))
	}
	return h
}

// appendWord appends what a file of one word says.
func appendWord(words []string, file string) []string {
	b, err := readBounded(file)
	if word := strings.TrimSpace(string(b)); err == nil && word != "" {
		words = append(words, word)
	}
	return words
}

func readBounded(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxStat))
}

// Container returns a unit that is watched, else one that is found.
func (h *realHost) Container(id string) (cgroup.Unit, bool) {
	if len(id) < cgroup.MinPrefix || len(id) > maxContainerID {
		return cgroup.Unit{}, false
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
func (h *realHost) walk(id string) (cgroup.Unit, bool) {
	now := h.now()
	if !h.mayWalk(id, now) {
		return cgroup.Unit{}, false
	}
	u, ok, err := h.tree.FindContainer(id)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !ok || err != nil {
		if len(h.missing) >= maxMissing {
			clear(h.missing)
		}
		h.missing[id] = now.Add(missingFor)
		return cgroup.Unit{}, false
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

func (h *realHost) Cgroup(path string) (cgroup.Unit, bool) {
	if id, ok := cgroup.ContainerID(path); ok {
		return h.Container(id)
	}
	if u, ok := h.units.Watched(path); ok {
		return u, true
	}
	return h.tree.UnitAt(path)
}

func (h *realHost) Process(pid int) (process, bool) {
	dir := filepath.Join(h.root, "proc", strconv.Itoa(pid))
	b, err := readBounded(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, false
	}
	stat, ok := parseStat(b)
	if !ok {
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
		Process:    monitor.Process{PID: pid, Start: stat.start},
		Name:       unitNameOf(pid, startedAt(h.firstBoot, stat.start)),
		Started:    startedAt(h.boot(h.now()), stat.start),
		Executable: strings.TrimSuffix(executable, " (deleted)"),
		Comm:       stat.comm,
		Kernel:     stat.kernel,
		Unit:       h.tree.UnitOf(paths),
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

// stat is what is read of a /proc/PID/stat; times are in clock ticks.
type stat struct {
	comm                string
	kernel              bool // a kernel thread
	user, system, start uint64
}

// parseStat reads a /proc/PID/stat. The second field, the name in parentheses,
// may hold anything, so its end is the last parenthesis.
func parseStat(b []byte) (s stat, ok bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return stat{}, false
	}
	const (
		first     = 3 // number of the first field after the name
		isKThread = 0x00200000
	)
	f := bytes.Fields(b[end+1:])
	number := func(field int) uint64 {
		n, err := strconv.ParseUint(string(f[field-first]), 10, 64)
		ok = ok && err == nil
		return n
	}
	if ok = len(f) > 22-first; !ok {
		return stat{}, false
	}
	s = stat{
		comm:   string(b[open+1 : end]),
		kernel: number(9)&isKThread != 0,
		user:   number(14), system: number(15), start: number(22),
	}
	return s, ok
}

// ticksPerSecond is USER_HZ, which is the same on every architecture of Linux
// that Go runs on.
const ticksPerSecond = 100

func startedAt(boot time.Time, ticks uint64) time.Time {
	return boot.Add(time.Duration(min(ticks, 1<<40)) * (time.Second / ticksPerSecond))
}

// startFormat is the start time in the name of a unit that is a process.
const startFormat = "2006-01-02T15:04:05.00Z"

func unitNameOf(pid int, started time.Time) string {
	return strconv.Itoa(pid) + ":" + started.UTC().Format(startFormat)
}
