// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package golabels

import "slices"

// goroutine identifies the runtime.g of a goroutine. The runtime reuses a runtime.g after
// its goroutine has ended. The address 0 is used for changes that free memory.
type goroutine struct {
	pid int
	g   uint64
}

// change is one hit of a probe.
type change struct {
	time int64
	// labels is the address of the labels that the goroutine set. It is 0 for no labels.
	labels uint64
	// ended is true if the goroutine ended. Afterwards, another goroutine may use the
	// runtime.g, with labels that this goroutine inherited.
	ended bool
}

const (
	// horizon is the time in nanoseconds for which changes are remembered. A sample gets
	// no labels if it is older than the horizon when its labels must be proven.
	horizon = int64(500e6)
	// maxChanges is the maximum number of remembered changes of all goroutines. When this
	// number is reached, all changes are forgotten.
	maxChanges = 1 << 16
)

// history remembers the changes of goroutines.
type history struct {
	of map[goroutine][]change // sorted by time
	n  int
	// since is the time after which all changes are known.
	since int64
}

// add remembers a change. It keeps all changes since the horizon, and only the last
// change before the horizon.
func (h *history) add(of goroutine, c change) {
	all, known := h.of[of]
	for len(all) > 1 && all[1].time < c.time-horizon {
		all = all[1:]
		h.n--
	}
	if h.n >= maxChanges || !known && len(h.of) >= maxChanges/2 {
		h.forget(c.time)
		all = nil
	}
	i := len(all)
	for i > 0 && all[i-1].time > c.time { // rings are merged only within a round
		i--
	}
	h.of[of] = slices.Insert(all, i, c)
	h.n++
}

// forget forgets all changes, because some changes before the given time may be unknown.
func (h *history) forget(before int64) {
	clear(h.of)
	h.n, h.since = 0, max(h.since, before)
}

// last returns the labels that a goroutine set last before a time. It ignores changes
// before the time since, because another process may have had the pid then.
func (h *history) last(of goroutine, since, time int64) (labels uint64, known bool) {
	for _, c := range slices.Backward(h.of[of]) {
		if c.time <= time {
			return c.labels, !c.ended && c.time > since
		}
	}
	return 0, false
}

// changed reports whether a known change of a goroutine is later than after, and not later
// than upTo.
func (h *history) changed(of goroutine, after, upTo int64) bool {
	for _, c := range slices.Backward(h.of[of]) {
		if c.time <= after {
			break
		}
		if c.time <= upTo {
			return true
		}
	}
	return false
}

// at returns the address of the labels that a goroutine had at the time of its sample.
// read is the address that a read of the goroutine returned, and readAt is the time
// after this read. All changes up to readAt must have been added. If the goroutine
// neither changed its labels nor ended between the sample and readAt, at returns read.
// Otherwise at returns the labels that the goroutine set last before the sample. The
// memory of these labels is still valid if no memory was freed before readAt. ok is
// false if the labels are not certain. All changes of the process after since are known.
func (h *history) at(of goroutine, since, time, readAt int64, read uint64) (labels uint64, ok bool) {
	if time <= max(since, h.since) {
		return 0, false
	}
	set, known := h.last(of, since, time)
	if !h.changed(of, time, readAt) {
		return read, !known || set == read // otherwise a hit is missing
	}
	return set, known && !h.changed(goroutine{pid: of.pid}, time, readAt)
}
