// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"slices"
)

// These are the memory events that the kernel counts for a cgroup. v1 counts only max (in
// memory.failcnt) and oom_kill (in memory.oom_control).
const (
	MemoryHigh    = "high"     // usage exceeded memory.high, so the kernel slowed the processes down
	MemoryMax     = "max"      // usage reached the limit, so memory had to be reclaimed
	MemoryOOM     = "oom"      // memory could not be allocated within the limit
	MemoryOOMKill = "oom_kill" // the kernel killed a process because of oom
)

// MemoryEventNames returns the names of all events.
func MemoryEventNames() []string {
	return []string{MemoryHigh, MemoryMax, MemoryOOM, MemoryOOMKill}
}

// OpenMemoryEvents opens a counter of the named events since the group's own cgroup was
// created. On v2, the counter includes the cgroups below. The error is an [Unavailable] if
// the group has no separate cgroup, or if the kernel does not count any of the events.
func (r *Reader) OpenMemoryEvents(g Group, events []string) (*Value, error) {
	h, dir, err := r.tree.ownOf(g, Memory)
	if err != nil {
		return nil, err
	}
	if h == V2Tree {
		return openValue(r.part(dir, "memory.events", linesOf(events)))
	}
	var parts []part
	if slices.Contains(events, MemoryMax) {
		parts = append(parts, r.part(dir, "memory.failcnt", parseFigure))
	}
	if slices.Contains(events, MemoryOOMKill) {
		parts = append(parts, r.part(dir, "memory.oom_control", linesOf([]string{MemoryOOMKill})))
	}
	if len(parts) == 0 {
		return nil, NoMemoryEvents
	}
	return openValue(parts...)
}

// linesOf returns a function that adds up the lines of the named events.
func linesOf(events []string) func([]byte) (uint64, error) {
	var keys [][]byte
	for _, name := range events {
		keys = append(keys, []byte(name+" "))
	}
	return func(content []byte) (sum uint64, err error) {
		if len(bytes.TrimSpace(content)) == 0 {
			return 0, errors.New("it is empty")
		}
		err = NoMemoryEvents
		for _, key := range keys {
			line, ok := lineOf(content, key)
			if !ok {
				continue // older kernels do not count the event
			}
			n, malformed := parseFigure(line)
			if malformed != nil {
				return 0, malformed
			}
			sum, err = sum+n, nil
		}
		return sum, err
	}
}
