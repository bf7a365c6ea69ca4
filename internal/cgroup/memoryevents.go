// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// The memory events that the kernel counts for a cgroup. v1 counts only max (in
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

// MemoryEvents counts memory events of one cgroup. On v2 the counts include the cgroups
// below.
type MemoryEvents struct {
	counts []memoryCount // files of one hierarchy; the first file exists
}

// memoryCount is one file with event counts.
type memoryCount struct {
	figure
	keys [][]byte // keys of the lines to add up, each with a trailing space; empty if the file is one number
}

// OpenMemoryEvents opens the counts of the named events of the group's own cgroup. The
// error is an [Unavailable] if the group has no separate cgroup, or if the kernel does
// not count any of the events.
func (r *Reader) OpenMemoryEvents(g Group, events []string) (*MemoryEvents, error) {
	h, dir, err := r.tree.ownOf(g, Memory)
	if err != nil {
		return nil, err
	}
	e := &MemoryEvents{}
	if h == V2Tree {
		var keys [][]byte
		for _, name := range events {
			keys = append(keys, []byte(name+" "))
		}
		e.counts = []memoryCount{{r.figure(dir, "memory.events"), keys}}
	} else {
		if slices.Contains(events, MemoryMax) {
			e.counts = append(e.counts, memoryCount{r.figure(dir, "memory.failcnt"), nil})
		}
		if slices.Contains(events, MemoryOOMKill) {
			e.counts = append(e.counts, memoryCount{r.figure(dir, "memory.oom_control"), [][]byte{[]byte(MemoryOOMKill + " ")}})
		}
	}
	if len(e.counts) == 0 {
		return nil, NoMemoryEvents
	}
	for i := range e.counts {
		c := &e.counts[i]
		err := c.exists()
		if err == nil {
			_, err = c.read()
		}
		if errors.Is(err, ErrGone) || errors.Is(err, NoFile) || errors.Is(err, NoMemoryEvents) {
			e.Close()
			return nil, err
		}
		// Other errors may be temporary.
	}
	return e, nil
}

// Read returns the number of events since the cgroup was created.
func (e *MemoryEvents) Read() (events uint64, replaced bool, err error) {
	for i := range e.counts {
		n, err := e.counts[i].read()
		if err != nil {
			return 0, false, err
		}
		events += n
	}
	for i := range e.counts {
		replaced = e.counts[i].wasReplaced() || replaced
	}
	return events, replaced, nil
}

func (c *memoryCount) read() (events uint64, err error) {
	if len(c.keys) == 0 {
		return c.number()
	}
	b, err := c.figure.read()
	if err != nil {
		return 0, err
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return 0, fmt.Errorf("read %s: it is empty", c.From())
	}
	found := false
	for _, key := range c.keys {
		line, ok := lineOf(b, key)
		if !ok {
			continue // older kernels do not count the event
		}
		n, err := c.parse(line)
		if err != nil {
			return 0, err
		}
		events += n
		found = true
	}
	if !found {
		return 0, NoMemoryEvents
	}
	return events, nil
}

// From returns the path of the first file that is read.
func (e *MemoryEvents) From() string { return e.counts[0].From() }

// Close closes the files.
func (e *MemoryEvents) Close() {
	for i := range e.counts {
		e.counts[i].Close()
	}
}
