// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import "time"

const usageNotKnown Gap = "its CPU usage since the last reading is not known"

// onCPU is cpu_bottleneck.
type onCPU struct {
	w        *Watcher
	switches *bottleneck
	began    bool
	epoch    int
}

func newOnCPU(w *Watcher) *onCPU {
	m := &onCPU{w: w}
	if b := w.source.followSwitches(); w.process != nil {
		m.switches = b.process(w.process.process)
	} else {
		m.switches = b.unit(w.unit.ID)
	}
	return m
}

func (m *onCPU) read(now time.Time) (num, den float64, restarted bool, err error) {
	u := &m.w.use
	if u.err != nil {
		return 0, 0, false, u.err
	}
	cores, known := u.cores()
	if !known && m.began {
		return 0, 0, false, usageNotKnown // what it is then is for the next reading
	}
	m.began = true
	num, den, err = m.switches.Read(now, cores)
	if err != nil {
		return 0, 0, false, err
	}
	restarted = m.epoch != 0 && m.epoch != u.epoch
	m.epoch = u.epoch
	return num, den, restarted, nil
}

func (m *onCPU) from() string { return "context switches (perf events)" }
func (m *onCPU) close()       { m.switches.Close() }
