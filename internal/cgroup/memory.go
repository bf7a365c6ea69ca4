// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"fmt"
	"time"
)

// OpenMemoryUse opens the memory usage of the processes in the group's own cgroup, in
// bytes. The usage excludes inactive file pages, because the kernel reclaims these pages
// first. The error is an [Unavailable] if the group has no separate cgroup.
func (r *Reader) OpenMemoryUse(g Group) (*Value, error) {
	h, dir, err := r.tree.ownOf(g, Memory)
	if err != nil {
		return nil, err
	}
	key := h.file("inactive_file", "total_inactive_file")
	stat := r.part(dir, "memory.stat", func(content []byte) (uint64, error) { return Keyed(content, key) })
	stat.minus = true
	return openValue(r.part(dir, h.file("memory.current", "memory.usage_in_bytes"), parseFigure), stat)
}

// Keyed returns the number that follows a key. Each line of the content consists of a key
// and a number.
func Keyed(content []byte, key string) (uint64, error) {
	line, ok := lineOf(content, []byte(key+" "))
	if !ok {
		return 0, fmt.Errorf("no %s", key)
	}
	return parseFigure(line)
}

// lineOf returns the rest of the first line that begins with the given key.
func lineOf(b, key []byte) ([]byte, bool) {
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, key); ok {
			return rest, true
		}
	}
	return nil, false
}

// A MemoryLimit reads the amount of memory that processes on a path may use. The amount is
// the lowest limit on the path, or the host's memory if no limit is lower.
type MemoryLimit struct {
	r      *Reader
	levels []*level[uint64]
}

// OpenMemoryLimit opens the limits on the paths of a group or a process.
func (r *Reader) OpenMemoryLimit(p Paths) *MemoryLimit {
	m := &MemoryLimit{r: r}
	h, ok := r.tree.owner(Memory)
	if !ok {
		return m
	}
	m.levels = acquireAll(r, r.memory, h, p[h], h.file("memory.max", "memory.limit_in_bytes"))
	return m
}

// Read returns the limit in bytes.
func (m *MemoryLimit) Read(now time.Time) (uint64, error) {
	least, err := m.r.hostMemory(now)
	if err != nil {
		return 0, err
	}
	for _, l := range m.levels {
		limit, err := l.get(m.r, now, (*Reader).readMemoryLimit)
		if err != nil {
			return 0, err
		}
		if limit > 0 {
			least = min(least, limit)
		}
	}
	return least, nil
}

// Close closes the files.
func (m *MemoryLimit) Close() {
	release(m.r.memory, m.levels...)
	m.levels = nil
}

// readMemoryLimit returns the limit of one cgroup. If there is no limit, it returns 0 on
// v2, and a number above the memory of any host on v1.
func (r *Reader) readMemoryLimit(l *level[uint64]) (limit uint64, replaced bool, err error) {
	f := &l.files[0]
	n, replaced, err := f.Read(r.buf)
	if err != nil {
		return 0, replaced, err
	}
	b := trimSpace(r.buf[:n])
	if bytes.Equal(b, []byte("max")) {
		return 0, replaced, nil
	}
	if limit, err = parseFigure(b); err != nil {
		err = fmt.Errorf("read %s: %w", f.Path(), err)
	}
	return limit, replaced, err
}

// hostMemoryFor is the time after which the host's memory is read again. The size changes
// only by hotplug, and reading it costs a hundred times as much as reading other files.
const hostMemoryFor = time.Minute

// hostMemory returns the size of the host's memory in bytes.
func (r *Reader) hostMemory(now time.Time) (uint64, error) {
	l := &r.host
	if l.within(hostMemoryFor, now) && l.err == nil && l.value > 0 {
		return l.value, nil
	}
	l.at = now
	var n int
	if n, l.err = l.files[0].ReadHead(r.buf); l.err != nil {
		return 0, l.err
	}
	b, _ := lineOf(r.buf[:n], []byte("MemTotal:"))
	text, _, _ := bytes.Cut(bytes.TrimLeft(b, " "), []byte(" "))
	kib, err := parseFigure(text)
	if err != nil || kib == 0 || kib > 1<<50 {
		l.err = fmt.Errorf("read %s: no MemTotal", l.files[0].Path())
		return 0, l.err
	}
	l.value = kib << 10
	return l.value, nil
}
