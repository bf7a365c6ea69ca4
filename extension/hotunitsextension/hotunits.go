// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"cmp"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.uber.org/zap"
)

// Unit identifies a hot unit and its processes. Cgroup, ContainerID and PID are set
// only if they apply.
type Unit struct {
	Name        string // container id, cgroup path, or pid:start time
	Cgroup      string // path below the cgroup root
	ContainerID string
	PID         int
	Start       uint64 // start time of the process in clock ticks since boot, because PIDs are reused
}

func (u Unit) compare(v Unit) int {
	return cmp.Or(
		strings.Compare(u.Name, v.Name),
		strings.Compare(u.Cgroup, v.Cgroup),
		strings.Compare(u.ContainerID, v.ContainerID),
		cmp.Compare(u.PID, v.PID),
		cmp.Compare(u.Start, v.Start),
	)
}

// Publisher publishes the hot units of one component.
type Publisher interface {
	// Publish replaces the set of this publisher. The hottest units must come first,
	// because units beyond MaxUnits are dropped and counted. Publish does not keep the
	// slice, and never waits for a watcher. It is cheap if the set did not change.
	Publish(hot []Unit)

	// Close removes the set of this publisher. Publish has no effect after Close.
	Close()
}

// MaxUnits is the maximum number of hot units of one publisher.
const MaxUnits = 1000

// Find returns the extension of a host. It returns nil if the host has no such extension.
// If there are several extensions, Find logs a warning and returns the first by name.
func Find(host component.Host, log *zap.Logger) *HotUnits {
	var first *HotUnits
	var used string
	extensions := 0
	for id, ext := range host.GetExtensions() {
		h, ok := ext.(*HotUnits)
		if !ok {
			continue
		}
		if extensions++; first == nil || id.String() < used {
			first, used = h, id.String()
		}
	}
	if extensions > 1 {
		log.Warn("found several hot_units extensions", zap.String("used", used), zap.Int("extensions", extensions))
	}
	return first
}
