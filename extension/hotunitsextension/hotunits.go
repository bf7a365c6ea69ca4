// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"cmp"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.uber.org/zap"
)

// Unit is a unit that is hot, with what is known of where its processes are. Of
// Cgroup, ContainerID and PID only those that apply are set.
type Unit struct {
	Name        string // what cpu_trigger calls it: container id, cgroup path, or pid:start time
	Cgroup      string // path below the cgroup root
	ContainerID string
	PID         int
	Start       uint64 // when the process started, in clock ticks since boot, since pids come again
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

// HotUnits is what the extension is to other components. All of it may be called
// at any time and from any goroutine.
type HotUnits interface {
	// Publisher begins to publish. It is a value of its own and not the
	// component's id, since a component in two pipelines is two with one id.
	Publisher(id component.ID) Publisher

	// Hot is the union of what all publishers say now, sorted by name. The slice
	// is the caller's.
	Hot() []Unit

	// Watch returns a channel that gets a token when Hot has changed, at first
	// too if it is not empty. It holds one token: who is slow sees the latest set,
	// once. stop must be called; it may be again. The channel is never closed.
	Watch() (changed <-chan struct{}, stop func())
}

// Publisher is one component that finds out what is hot.
type Publisher interface {
	// Publish replaces what this publisher said before. The hottest come first:
	// beyond MaxUnits the rest is not taken, and counted. It does not keep the
	// slice, never blocks on a watcher, and costs next to nothing where the set
	// is the same.
	Publish(hot []Unit)

	// Close takes back what this publisher said. Publishing after it does
	// nothing.
	Close()
}

// MaxUnits bounds the hot units of one publisher.
const MaxUnits = 1000

// Find returns the extension that a host has, nil if it has none, which is no
// fault. Of several it is the first by name, and the log says so.
func Find(host component.Host, log *zap.Logger) HotUnits {
	type found struct {
		id string
		HotUnits
	}
	var all []found
	for id, ext := range host.GetExtensions() {
		if h, ok := ext.(HotUnits); ok {
			all = append(all, found{id.String(), h})
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b found) int { return strings.Compare(a.id, b.id) })
	if len(all) > 1 {
		log.Warn("several hot_units extensions, the first by name is used", zap.String("used", all[0].id), zap.Int("extensions", len(all)))
	}
	return all[0].HotUnits
}
