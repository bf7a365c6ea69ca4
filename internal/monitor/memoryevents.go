// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// MemoryEvents is the name of the monitor that counts the unit's memory events per second.
// By default, these are out-of-memory events. [MemoryEventsOf] returns the name of the
// monitor for other events.
const MemoryEvents = "memory_events"

// defaultMemoryEvents returns the events that memory_events counts without
// parameters. The event max is not included, because a healthy program that reads
// files often reaches its limit.
func defaultMemoryEvents() []string { return []string{cgroup.MemoryOOM, cgroup.MemoryOOMKill} }

// MemoryEventsOf returns the name of the monitor that counts the given
// [cgroup.MemoryEventNames]. For the default events, the name is memory_events. For other
// events, the name contains the events, such as memory_events(high,max).
func MemoryEventsOf(events []string) string {
	list := slices.DeleteFunc(cgroup.MemoryEventNames(), func(e string) bool { return !slices.Contains(events, e) })
	if len(list) == 0 || slices.Equal(list, defaultMemoryEvents()) {
		return MemoryEvents
	}
	return MemoryEvents + "(" + strings.Join(list, ",") + ")"
}

func newMemoryEvents(w *Watcher, parameters string) meter {
	events := defaultMemoryEvents()
	if parameters != "" {
		events = strings.Split(parameters, ",")
	}
	return newCounted(w, 1, func() (*cgroup.Value, error) { return w.source.reader.OpenMemoryEvents(w.unit, events) })
}
