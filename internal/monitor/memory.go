// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"fmt"
	"os"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// MemoryUtilization is the name of the monitor of the memory in use, in
// percent of the smallest limit.
const MemoryUtilization = "memory_utilization"

// memory is the meter of memory_utilization.
type memory struct {
	w     *Watcher
	use   opened[memoryUse]
	limit *cgroup.MemoryLimit
}

// memoryUse is the memory that a unit uses, in bytes.
type memoryUse interface {
	Read() (uint64, error)
	From() string
	Close()
}

func newMemory(w *Watcher, _ string) meter {
	return &memory{w: w, use: opened[memoryUse]{w: w, open: func() (memoryUse, error) {
		if w.process != nil {
			return &residentSet{w.processFile("statm")}, nil
		}
		return w.source.reader.OpenMemoryUse(w.unit)
	}}}
}

func (m *memory) read(now time.Time) (num, den float64, restarted bool, err error) {
	use, err := m.use.get()
	if err != nil {
		return 0, 0, false, err
	}
	if m.limit == nil {
		m.limit = m.w.source.reader.OpenMemoryLimit(m.w.paths)
	}
	limit, err := m.limit.Read(now)
	if err != nil {
		return 0, 0, false, err
	}
	bytes, err := use.Read()
	if err != nil {
		return 0, 0, false, err
	}
	return 100 * float64(bytes) / float64(limit), float64(bytes), false, nil
}

// moved closes the limits of the cgroup that the process left.
func (m *memory) moved() {
	if m.limit != nil {
		m.limit.Close()
		m.limit = nil
	}
}

func (m *memory) from() string { return m.use.from() }

func (m *memory) close() {
	m.use.close()
	m.moved()
}

// A residentSet reads the resident memory of one process.
type residentSet struct{ processFile }

// Read returns the resident memory in bytes.
func (r *residentSet) Read() (uint64, error) {
	b, err := r.read()
	if err != nil {
		return 0, err
	}
	pages, err := procfs.ParseStatm(b)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", r.From(), err)
	}
	return pages * uint64(os.Getpagesize()), nil
}
