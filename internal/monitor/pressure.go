// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// CPUPressure is the share of time in which some thread of the unit waits for a CPU.
const CPUPressure = "cpu_pressure"

// pressure is the meter of cpu_pressure.
type pressure struct {
	opened[*cgroup.Pressure]
	began   bool
	last    time.Duration
	lastAt  time.Time
	waited  time.Duration // since the first reading
	elapsed time.Duration
}

func newPressure(w *Watcher) meter {
	return &pressure{opened: opened[*cgroup.Pressure]{w: w, open: func() (*cgroup.Pressure, error) {
		return w.source.reader.OpenPressure(w.unit)
	}}}
}

func (m *pressure) read(now time.Time) (num, den float64, restarted bool, err error) {
	p, err := m.get()
	if err != nil {
		return 0, 0, false, err
	}
	total, replaced, err := p.Read()
	if err != nil {
		return 0, 0, false, err
	}
	switch {
	case !m.began:
		m.began = true
	case replaced || total < m.last:
		restarted = true
	default:
		m.waited += total - m.last
		m.elapsed += max(0, now.Sub(m.lastAt))
	}
	m.last, m.lastAt = total, now
	return m.waited.Seconds(), m.elapsed.Seconds(), restarted, nil
}
