// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// The shares of time in which some thread of the unit waits: for a CPU, for memory (for
// pages that are reclaimed or read back), or for a disk.
const (
	CPUPressure    = "cpu_pressure"
	MemoryPressure = "memory_pressure"
	IOPressure     = "io_pressure"
)

// pressure is the meter of a pressure.
type pressure struct {
	opened[*cgroup.Pressure]
	cumulative // in nanoseconds
}

func newPressure(of string) func(*Watcher, string) meter {
	return func(w *Watcher, _ string) meter {
		return &pressure{opened: opened[*cgroup.Pressure]{w: w, open: func() (*cgroup.Pressure, error) {
			return w.source.reader.OpenPressure(w.unit, of)
		}}}
	}
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
	restarted = m.add(uint64(total), replaced, now)
	return time.Duration(m.sum).Seconds(), m.elapsed.Seconds(), restarted, nil
}

// cumulative adds up the steps of a counter of the kernel that starts over with its
// cgroup.
type cumulative struct {
	began   bool
	last    uint64
	lastAt  time.Time
	sum     uint64 // since the first reading
	elapsed time.Duration
}

// add adds the step to the counter's value at a time. It returns true where the counter
// started over.
func (c *cumulative) add(total uint64, replaced bool, now time.Time) (restarted bool) {
	switch {
	case !c.began:
		c.began = true
	case replaced || total < c.last:
		restarted = true
	default:
		c.sum += total - c.last
		c.elapsed += max(0, now.Sub(c.lastAt))
	}
	c.last, c.lastAt = total, now
	return restarted
}
