// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// throttling is cpu_throttling: at each step the count that grew by the largest
// share of throttled periods, of the unit's cgroup and those above it.
type throttling struct {
	opened[*cgroup.Throttling]
	periods, throttled float64
	epoch              int // of the CPU time
}

func newThrottling(w *Watcher) *throttling {
	return &throttling{opened: opened[*cgroup.Throttling]{w: w, open: func() (t *cgroup.Throttling, err error) {
		if w.process != nil {
			t, err = w.source.reader.OpenThrottling(w.paths)
		} else {
			t, err = w.source.reader.OpenUnitThrottling(w.unit)
		}
		if err != nil {
			return nil, err
		}
		t.Watched = w.use.wanted
		return t, nil
	}}}
}

func (m *throttling) read(now time.Time) (num, den float64, restarted bool, err error) {
	t, err := m.get()
	if err != nil {
		return 0, 0, false, err
	}
	if m.epoch != m.w.use.epoch {
		m.epoch = m.w.use.epoch
		t.Renew()
	}
	grown, replaced, err := t.Read(now)
	if err != nil {
		return 0, 0, false, err
	}
	m.periods += float64(grown.Total)
	m.throttled += float64(grown.Throttled)
	return m.throttled, m.periods, replaced, nil
}

func (m *throttling) moved() { m.close() }

func (m *throttling) from() string {
	if !m.ok {
		return ""
	}
	return m.it.From()
}
