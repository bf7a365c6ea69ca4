// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

const (
	// idleBelow is the usage, in cores, below which a unit is hardly ever throttled.
	// It is a fifth of the smallest quota that the kernel accepts.
	idleBelow = 0.002

	// The counts of an idle unit are read only at every idleReadings-th reading. The
	// counts are cumulative, so skipped readings lose no events.
	idleReadings = 8
)

// CPUThrottling is the name of the monitor that measures throttling. Its value is the
// share of CFS periods in which the unit was throttled. Throttling of an ancestor cgroup
// is weighted by the part of the ancestor's quota that the unit uses.
const CPUThrottling = "cpu_throttling"

// throttling is the meter of cpu_throttling. Each reading considers the unit's cgroup and
// the cgroups above it. It adds the counts of the cgroup with the largest share of
// throttled periods.
type throttling struct {
	opened[*cgroup.Throttling]
	periods, throttled float64
	epoch              int // cpuUse.epoch when the counts were last read
	idle               int // number of readings since the counts were read
}

func newThrottling(w *Watcher, _ string) meter {
	return &throttling{opened: opened[*cgroup.Throttling]{w: w, open: func() (*cgroup.Throttling, error) {
		return w.source.reader.OpenThrottling(w.unit, w.paths)
	}}}
}

func (m *throttling) read(now time.Time) (num, den float64, restarted bool, err error) {
	t, err := m.get()
	if err != nil {
		return 0, 0, false, err
	}
	if m.isIdle() && m.idle+1 < idleReadings && !t.LimitedAbove(now) {
		m.idle++
		return m.throttled, m.periods, false, nil
	}
	m.idle = 0
	if m.epoch != m.w.use.epoch {
		m.epoch = m.w.use.epoch
		t.Renew()
	}
	cores, _ := m.w.use.cores()
	grown, replaced, err := t.Read(now, cores)
	if err != nil {
		return 0, 0, false, err
	}
	m.periods += grown.Total
	m.throttled += grown.Throttled
	return m.throttled, m.periods, replaced, nil
}

// isIdle reports whether the unit uses so little CPU time that its own quota
// hardly ever throttles it. For a process, isIdle returns false, because the
// cgroup of the process may be busy.
func (m *throttling) isIdle() bool {
	cores, known := m.w.use.cores()
	return known && cores < m.w.source.idleBelow && m.w.process == nil && m.epoch == m.w.use.epoch
}

func (m *throttling) moved() { m.close() }
