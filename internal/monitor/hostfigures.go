// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup/keptfile"
)

// sharedFor is how long a figure of the host holds for the other units of one
// round; it is well below the least interval between two rounds.
const sharedFor = 50 * time.Millisecond

// hostFigures are those that are the same for all units, read once for all.
type hostFigures struct {
	buf []byte

	load    keptfile.File
	loadAt  time.Time
	loadNow float64
	loadErr error

	stat     keptfile.File
	statAt   time.Time
	statErr  error
	last     cpuTicks
	began    bool
	busy     uint64 // ticks since the first reading
	total    uint64
	restarts int
}

func isFresh(at, now time.Time) bool {
	age := now.Sub(at)
	return age >= 0 && age < sharedFor
}

// loadAverage is that of the last minute.
func (h *hostFigures) loadAverage(now time.Time) (float64, error) {
	if isFresh(h.loadAt, now) {
		return h.loadNow, h.loadErr
	}
	h.loadAt = now
	var n int
	if n, _, h.loadErr = h.load.Read(h.buf); h.loadErr != nil {
		return 0, h.loadErr
	}
	if h.loadNow, h.loadErr = parseLoad(h.buf[:n]); h.loadErr != nil {
		h.loadErr = fmt.Errorf("read %s: %w", h.load.Path(), h.loadErr)
	}
	return h.loadNow, h.loadErr
}

// parseLoad reads the first figure of a /proc/loadavg.
func parseLoad(b []byte) (float64, error) {
	first, _, ok := bytes.Cut(b, []byte(" "))
	load, err := strconv.ParseFloat(string(first), 64)
	if !ok || err != nil || !(load >= 0) || math.IsInf(load, 0) {
		return 0, errors.New("not the content of a /proc/loadavg")
	}
	return load, nil
}

// readStat reads the time of all CPUs.
func (h *hostFigures) readStat(now time.Time) error {
	if isFresh(h.statAt, now) {
		return h.statErr
	}
	h.statAt = now
	var n int
	if n, h.statErr = h.stat.ReadHead(h.buf); h.statErr != nil {
		return h.statErr
	}
	ticks, err := parseCPUTicks(h.buf[:n])
	if err != nil {
		h.statErr = fmt.Errorf("read %s: %w", h.stat.Path(), err)
		return h.statErr
	}
	if h.began {
		busy, total, ok := ticks.since(h.last)
		if !ok {
			h.restarts++
		}
		h.busy += busy
		h.total += total
	}
	h.last, h.began = ticks, true
	return nil
}

// cpuTicks is the first line of a /proc/stat: user, nice, system, idle, iowait,
// irq, softirq and steal. Guest time is within user and nice.
type cpuTicks [8]uint64

const (
	idleTicks   = 3
	iowaitTicks = 4
	userTicks   = 0
	systemTicks = 2
)

func parseCPUTicks(b []byte) (t cpuTicks, err error) {
	line, _, ok := bytes.Cut(b, []byte("\n"))
	line, isCPU := bytes.CutPrefix(line, []byte("cpu "))
	if !ok || !isCPU {
		return t, errors.New("not the content of a /proc/stat")
	}
	i := 0
	for f := range bytes.FieldsSeq(line) {
		if i == len(t) {
			break
		}
		if t[i], err = strconv.ParseUint(string(f), 10, 64); err != nil {
			return t, errors.New("malformed line of CPU time")
		}
		i++
	}
	if i <= iowaitTicks {
		return t, errors.New("malformed line of CPU time")
	}
	return t, nil
}

// since returns the ticks that were spent busy, and all, since an earlier
// reading; not ok where the counters began anew. The kernel lets the time of an
// idle CPU run backwards a little, so each is taken for itself.
func (t cpuTicks) since(before cpuTicks) (busy, total uint64, ok bool) {
	if t[userTicks] < before[userTicks] || t[systemTicks] < before[systemTicks] {
		return 0, 0, false
	}
	for i := range t {
		if t[i] <= before[i] {
			continue
		}
		grown := t[i] - before[i]
		total += grown
		if i != idleTicks && i != iowaitTicks {
			busy += grown
		}
	}
	return busy, total, true
}

func (h *hostFigures) close() {
	h.load.Close()
	h.stat.Close()
}

// hostCPU is host_cpu_utilization.
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

// hostLoad is system_load.
type hostLoad struct{ host *hostFigures }

func (m hostLoad) read(now time.Time) (num, den float64, restarted bool, err error) {
	load, err := m.host.loadAverage(now)
	return load, 0, false, err
}

func (m hostLoad) from() string { return m.host.load.Path() }
func (m hostLoad) close()       {}
