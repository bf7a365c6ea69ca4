// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"os"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// MemoryUtilization is the name of the monitor that measures the memory in use, in percent
// of the smallest limit.
const MemoryUtilization = "memory_utilization"

// memory is the meter of memory_utilization.
type memory struct {
	w     *Watcher
	use   opened[number] // in bytes
	limit *cgroup.MemoryLimit
}

func newMemory(w *Watcher, _ string) meter {
	return &memory{w: w, use: opened[number]{w: w, open: func() (number, error) {
		if w.process != nil {
			return w.processFile("statm", residentSet), nil
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
	bytes, _, err := use.Read()
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

// residentSet returns the resident memory in a statm file, in bytes.
func residentSet(statm []byte) (uint64, error) {
	pages, err := procfs.ParseStatm(statm)
	return pages * uint64(os.Getpagesize()), err
}
