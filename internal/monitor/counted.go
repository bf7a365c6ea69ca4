// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// counted is the meter of a kernel counter. The counter starts over when its cgroup is
// replaced, so counted adds up the increments of the counter.
type counted struct {
	opened[*cgroup.Value]
	scale   float64 // value of one count
	began   bool
	last    uint64
	lastAt  time.Time
	sum     uint64 // since the first reading
	elapsed time.Duration
}

func newCounted(w *Watcher, scale float64, open func() (*cgroup.Value, error)) meter {
	return &counted{opened: opened[*cgroup.Value]{w: w, open: open}, scale: scale}
}

func (m *counted) read(now time.Time) (num, den float64, restarted bool, err error) {
	c, err := m.get()
	if err != nil {
		return 0, 0, false, err
	}
	total, replaced, err := c.Read()
	if err != nil {
		return 0, 0, false, err
	}
	switch {
	case !m.began:
		m.began = true
	case replaced || total < m.last:
		restarted = true
	default:
		m.sum += total - m.last
		m.elapsed += max(0, now.Sub(m.lastAt))
	}
	m.last, m.lastAt = total, now
	return float64(m.sum) * m.scale, m.elapsed.Seconds(), restarted, nil
}
