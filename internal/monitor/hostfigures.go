// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"fmt"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup/openfile"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// sharedFor is the time for which a reading of the host is reused for other units. It is
// well below the shortest interval between two rounds of readings.
const sharedFor = 50 * time.Millisecond

// hostFigures contains values of the host. The values are read once for all units.
type hostFigures struct {
	buf []byte

	load    openfile.File
	loadAt  time.Time
	loadNow float64
	loadErr error

	stat     openfile.File
	statAt   time.Time
	statErr  error
	last     procfs.CPUTicks
	began    bool
	busy     uint64 // ticks since the first reading
	total    uint64
	restarts int
}

func isFresh(at, now time.Time) bool {
	age := now.Sub(at)
	return age >= 0 && age < sharedFor
}

// loadAverage returns the one-minute load average.
func (h *hostFigures) loadAverage(now time.Time) (float64, error) {
	if isFresh(h.loadAt, now) {
		return h.loadNow, h.loadErr
	}
	h.loadAt = now
	var n int
	if n, _, h.loadErr = h.load.Read(h.buf); h.loadErr != nil {
		return 0, h.loadErr
	}
	if h.loadNow, h.loadErr = procfs.ParseLoadavg(h.buf[:n]); h.loadErr != nil {
		h.loadErr = fmt.Errorf("read %s: %w", h.load.Path(), h.loadErr)
	}
	return h.loadNow, h.loadErr
}

// readStat reads the busy time and the total time of all CPUs.
func (h *hostFigures) readStat(now time.Time) error {
	if isFresh(h.statAt, now) {
		return h.statErr
	}
	h.statAt = now
	var n int
	if n, h.statErr = h.stat.ReadHead(h.buf); h.statErr != nil {
		return h.statErr
	}
	ticks, err := procfs.ParseCPUTicks(h.buf[:n])
	if err != nil {
		h.statErr = fmt.Errorf("read %s: %w", h.stat.Path(), err)
		return h.statErr
	}
	if h.began {
		busy, total, ok := ticks.Since(h.last)
		if !ok {
			h.restarts++
		}
		h.busy += busy
		h.total += total
	}
	h.last, h.began = ticks, true
	return nil
}

func (h *hostFigures) close() {
	h.load.Close()
	h.stat.Close()
}

// These are the host-wide monitors.
const (
	HostCPUUtilization = "host_cpu_utilization" // busy share of all CPUs
	SystemLoad         = "system_load"          // one-minute load average
)

func newHostCPU(w *Watcher, _ string) meter { return &hostCPU{host: &w.source.host} }

func newHostLoad(w *Watcher, _ string) meter { return hostLoad{&w.source.host} }

// hostCPU is the meter of host_cpu_utilization.
type hostCPU struct {
	host        *hostFigures
	began       bool
	busy, total uint64 // at the first reading
	restarts    int
}

func (m *hostCPU) read(now time.Time) (num, den float64, restarted bool, err error) {
	if err := m.host.readStat(now); err != nil {
		return 0, 0, false, err
	}
	if !m.began {
		m.began, m.busy, m.total, m.restarts = true, m.host.busy, m.host.total, m.host.restarts
	}
	restarted = m.restarts != m.host.restarts
	m.restarts = m.host.restarts
	return float64(m.host.busy - m.busy), float64(m.host.total - m.total), restarted, nil
}

func (m *hostCPU) from() string { return m.host.stat.Path() }
func (m *hostCPU) close()       {}

// hostLoad is the meter of system_load.
type hostLoad struct{ host *hostFigures }

func (m hostLoad) read(now time.Time) (num, den float64, restarted bool, err error) {
	load, err := m.host.loadAverage(now)
	return load, 0, false, err
}

func (m hostLoad) from() string { return m.host.load.Path() }
func (m hostLoad) close()       {}
