// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

const usageNotKnown Gap = "its CPU usage since the last reading is not known"

// onCPU is cpu_bottleneck.
type onCPU struct {
	w        *Watcher
	switches *bottleneck
	began    bool
	epoch    int
	bounds   *bottleneckBounds // nil unless they are asked for
}

func newOnCPU(w *Watcher) *onCPU {
	m := &onCPU{w: w}
	if b := w.source.followSwitches(); w.process != nil {
		m.switches = b.process(w.process.process)
	} else {
		m.switches = b.unit(w.unit.ID)
	}
	if w.source.options.BottleneckBounds {
		m.bounds = &bottleneckBounds{busiest: newBusiest(w)}
	}
	return m
}

func (m *onCPU) read(now time.Time) (num, den float64, restarted bool, err error) {
	u := &m.w.use
	if m.bounds != nil {
		m.bounds.known = false
	}
	if u.err != nil {
		return 0, 0, false, u.err
	}
	cores, known := u.cores()
	if !known && m.began {
		return 0, 0, false, usageNotKnown // what it is then is for the next reading
	}
	m.began = true
	num, den, err = m.switches.Read(now, cores)
	m.bounds.read(now, cores, err)
	if err != nil {
		return 0, 0, false, err
	}
	restarted = m.epoch != 0 && m.epoch != u.epoch
	m.epoch = u.epoch
	return num, den, restarted, nil
}

func (m *onCPU) from() string { return "context switches (perf events)" }
func (m *onCPU) close() {
	m.switches.Close()
	m.bounds.close()
}

// bottleneckBounds are what the clocks of threads say where switches cannot be
// followed: at least as much as the busiest thread, at most all of them in turn.
type bottleneckBounds struct {
	busiest     *busiest
	busy, span  float64 // as of the last reading
	least, most float64 // in %
	known       bool
}

func (b *bottleneckBounds) read(now time.Time, cores float64, err error) {
	if b == nil {
		return
	}
	var unavailable cgroup.Unavailable
	if !errors.As(err, &unavailable) {
		b.busiest.close()
		return
	}
	busy, span, restarted, err := b.busiest.read(now)
	b.known = err == nil && !restarted && span > b.span
	if b.known {
		b.least = 100 * (busy - b.busy) / (span - b.span)
		b.most = max(b.least, 100*min(1, cores)) // the clocks are not read at one moment
	}
	b.busy, b.span = busy, span
}

func (b *bottleneckBounds) close() {
	if b != nil {
		b.busiest.close()
	}
}
