// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// MemoryEvents is the number of events of the unit's memory per second: by default the
// times that it had no memory left. [MemoryEventsOf] names one of other events.
const MemoryEvents = "memory_events"

// defaultMemoryEvents are the events of memory_events if none are named. max is not a
// default, because a healthy program that reads files reaches its limit all the time.
func defaultMemoryEvents() []string { return []string{cgroup.MemoryOOM, cgroup.MemoryOOMKill} }

// MemoryEventsOf returns the name of the monitor of some of [cgroup.MemoryEventNames]. It
// is memory_events for the default events, and memory_events(high,max) for other events.
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
	return newCounted(w, 1, func() (kernelCounter, error) { return w.source.reader.OpenMemoryEvents(w.unit, events) })
}
