// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
)

// hotUnit is a unit that is hot and by how much.
type hotUnit struct {
	hotunitsextension.Unit
	heat float64
}

// hotList publishes which units are hot. It may be told to from any goroutine:
// the set that is found last is published last.
type hotList struct {
	units *units
	to    hotunitsextension.Publisher

	mu   sync.Mutex
	hot  []hotUnit
	list []hotunitsextension.Unit
}

// publish does nothing where there is nobody to publish to.
func (h *hotList) publish() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hot = h.units.appendHot(h.hot[:0])
	if len(h.hot) > hotunitsextension.MaxUnits {
		slices.SortFunc(h.hot, func(a, b hotUnit) int {
			return cmp.Or(cmp.Compare(b.heat, a.heat), strings.Compare(a.Name, b.Name))
		})
	}
	h.list = h.list[:0]
	for i := range h.hot {
		h.list = append(h.list, h.hot[i].Unit)
	}
	h.to.Publish(h.list)
}

// close takes back what was published.
func (h *hotList) close() {
	if h != nil {
		h.to.Close()
	}
}

// appendHot appends the units that are hot, in no order.
func (us *units) appendHot(dst []hotUnit) []hotUnit {
	us.mu.Lock()
	defer us.mu.Unlock()
	for _, u := range us.byName {
		if !u.gate.Hot() {
			continue
		}
		hot := hotUnit{Unit: hotunitsextension.Unit{Name: u.name}, heat: u.gate.Heat()}
		if u.process.PID != 0 { // where it is, others are that are not hot
			hot.PID, hot.Start = u.process.PID, u.process.Start
		} else {
			hot.Cgroup, hot.ContainerID = u.path, u.containerID
		}
		dst = append(dst, hot)
	}
	return dst
}
