// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/monitor/bottleneck"
)

// CPUBottleneck is the name of a monitor. The monitor measures the time in which at least
// one thread of a unit was on a CPU, as a share of the elapsed time.
const CPUBottleneck = "cpu_bottleneck"

const usageNotKnown Gap = "its CPU usage since the last reading is not known"

type cpuBottleneck struct {
	w      *Watcher
	reader *bottleneck.Reader
	began  bool
	epoch  int
}

func newCPUBottleneck(w *Watcher, _ string) meter {
	return &cpuBottleneck{w: w, reader: w.source.switchFollower().Reader(w.unit.ID, w.processOf())}
}

// switchFollower returns the follower of context switches, which all cpu_bottleneck
// monitors of the source share. The first call creates the follower.
func (s *Source) switchFollower() *bottleneck.Follower {
	if s.switches == nil {
		s.switches = bottleneck.New(s.tree, s.procfs, bottleneck.Options{
			Least: s.options.Least[CPUBottleneck], ForeignPIDs: s.foreignPIDs,
		})
	}
	return s.switches
}

func (m *cpuBottleneck) read(now time.Time) (num, den float64, restarted bool, err error) {
	u := &m.w.use
	if u.err != nil {
		return 0, 0, false, u.err
	}
	cores, known := u.cores()
	if !known && m.began {
		return 0, 0, false, usageNotKnown // the next reading covers this span too
	}
	m.began = true
	num, den, err = m.reader.Read(now, cores)
	if err != nil {
		return 0, 0, false, err
	}
	restarted = m.epoch != 0 && m.epoch != u.epoch
	m.epoch = u.epoch
	return num, den, restarted, nil
}

func (m *cpuBottleneck) from() string { return "context switches (perf events)" }
func (m *cpuBottleneck) close()       { m.reader.Close() }
