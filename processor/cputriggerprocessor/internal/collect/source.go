// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"slices"
	"sync"
	"time"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// maxOpenFiles limits the files that are kept open for readings. Further files are opened
// for each reading.
const maxOpenFiles = 4096

// OpenFiles returns the number of files that may be kept open for readings. limit is the
// file limit of the process. Readings may use a quarter of the limit, because samplers
// need up to half, and other components need files too.
func OpenFiles(limit int) int { return min(limit/4, maxOpenFiles) }

// Watcher reads the monitors of one unit.
type Watcher interface {
	Read(now time.Time, out []monitor.Result)
	Capacity() cgroup.Capacity
	// From returns the file or event from which monitor i is read. The result is empty
	// while the monitor is unavailable.
	From(i int) string
	// SetMonitors replaces the monitors. Monitors that are in both lists continue from
	// their last readings. After an error, the watcher must be closed.
	SetMonitors(monitors []string) error
	Close()
}

// Source opens watchers.
type Source interface {
	// Watch returns a watcher for a unit. The watcher is only valid if there is no error.
	Watch(u *units.Unit, monitors []string) (Watcher, error)
	// SetLeast sets the lowest threshold in use for each monitor.
	SetLeast(least map[string]float64)
	// Started returns the start time of the first process of a cgroup.
	Started(u *units.Unit) (time.Time, error)
	Close()
}

// HostSource returns the source of this machine.
func HostSource(source *monitor.Source) Source { return hostSource{source} }

type hostSource struct{ *monitor.Source }

func (s hostSource) Watch(u *units.Unit, monitors []string) (Watcher, error) {
	return s.Source.Watch(u.Group, u.Process, monitors)
}

func (s hostSource) Started(u *units.Unit) (time.Time, error) { return s.StartedAt(u.Group) }

// HotList publishes the hot units. It is safe for concurrent use. A nil HotList publishes
// no units.
type HotList struct {
	units *units.Set
	to    hotunitsextension.Publisher

	mu   sync.Mutex // held while publishing, so that the latest set is published last
	hot  []units.Hot
	list []hotunitsextension.Unit
}

// NewHotList returns a list that publishes the hot units of a set through a publisher.
func NewHotList(set *units.Set, to hotunitsextension.Publisher) *HotList {
	return &HotList{units: set, to: to}
}

// Publish publishes the current hot units. If there are more than MaxUnits hot units, the
// hottest come first.
func (h *HotList) Publish() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hot = h.units.AppendHot(h.hot[:0])
	if len(h.hot) > hotunitsextension.MaxUnits {
		slices.SortFunc(h.hot, units.Hotter)
	}
	h.list = h.list[:0]
	for _, u := range h.hot {
		hot := hotunitsextension.Unit{Name: u.Name}
		if u.IsProcess() { // the other processes of its cgroup may not be hot
			hot.PID, hot.Start = u.Process.PID, u.Process.Start
		} else {
			hot.Cgroup, hot.ContainerID = u.Path, u.ContainerID
		}
		h.list = append(h.list, hot)
	}
	clear(h.hot) // let the garbage collector free units that are gone
	h.to.Publish(h.list)
}

// Close withdraws the published units.
func (h *HotList) Close() {
	if h != nil {
		h.to.Close()
	}
}
