// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/mem"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// ofWindows contains the meters of Windows.
var ofWindows = map[string]func(*Watcher) meter{
	CPUHostShare:       func(w *Watcher) meter { return &share{w: w, of: onlineCPUs{}} },
	CPUUtilization:     func(w *Watcher) meter { return &share{w: w, of: &affinity{w: w}} },
	HostCPUUtilization: func(w *Watcher) meter { return &hostTimes{list: w.source.list} },
	MemoryUtilization: func(w *Watcher) meter {
		return gauge{w, func(p procfs.Listed) (num, den float64) {
			return 100 * float64(p.Resident) / float64(w.source.list.memory), float64(p.Resident)
		}}
	},
	ThreadCount: func(w *Watcher) meter {
		return gauge{w, func(p procfs.Listed) (num, den float64) { return float64(p.Threads), 0 }}
	},
}

// list contains all processes and the CPU time of the host. It is
// read once for all units.
type list struct {
	at          time.Time
	err         error
	processes   map[int]procfs.Listed
	busy, total float64 // seconds of all CPUs
	memory      uint64  // bytes of the host
}

func newList() (*list, error) {
	m, err := mem.VirtualMemory()
	if err != nil {
		return nil, fmt.Errorf("find the memory of the host: %w", err)
	}
	return &list{processes: make(map[int]procfs.Listed), memory: m.Total}, nil
}

// read reads the list of processes. It returns at once if the list was read recently, for
// example for another unit.
func (l *list) read(now time.Time) error {
	if isFresh(l.at, now) {
		return l.err
	}
	l.at = now
	all, err := procfs.List()
	times, err2 := cpu.Times(false)
	if err == nil && len(times) == 0 {
		err = fmt.Errorf("read the CPU time of the host: %w", err2)
	}
	if l.err = err; err != nil {
		return err
	}
	clear(l.processes)
	for _, p := range all {
		l.processes[p.PID] = p
	}
	l.busy = times[0].User + times[0].System
	l.total = l.busy + times[0].Idle
	return nil
}

// find returns the entry of a process. If the list does not contain the
// process, find returns [ErrGone].
func (l *list) find(p procfs.Process, now time.Time) (procfs.Listed, error) {
	if err := l.read(now); err != nil {
		return procfs.Listed{}, err
	}
	if found, ok := l.processes[p.PID]; ok && (p.Start == 0 || found.Start == p.Start) {
		return found, nil
	}
	return procfs.Listed{}, ErrGone
}

// clock returns the clock of a process. If the process has ended,
// clock returns [ErrGone].
func (l *list) clock(p procfs.Process) (counter, error) {
	_, err := l.find(p, time.Now())
	return listed{l, p}, err
}

const listName = "the list of processes (NtQuerySystemInformation)"

// listed is the clock of one process. It reads the CPU time from the list of processes.
type listed struct {
	list    *list
	process procfs.Process
}

// Read returns the CPU time. The CPU time never starts over.
func (l listed) Read(now time.Time) (time.Duration, bool, error) {
	p, err := l.list.find(l.process, now)
	if err != nil {
		return 0, false, err
	}
	return p.Used, false, nil
}

// From returns the source of the CPU time.
func (listed) From() string { return listName }

// Close has no effect, because the list has no open files.
func (listed) Close() {}

// gauge is the meter of a momentary value from the list of processes.
type gauge struct {
	w  *Watcher
	of func(procfs.Listed) (num, den float64)
}

func (g gauge) read(now time.Time) (num, den float64, restarted bool, err error) {
	p, err := g.w.source.list.find(g.w.process.process, now)
	if err != nil {
		return 0, 0, false, err
	}
	num, den = g.of(p)
	return num, den, false, nil
}

func (gauge) from() string { return listName }
func (gauge) close()       {}

// hostTimes is the meter of host_cpu_utilization.
type hostTimes struct {
	list        *list
	began       bool
	busy, total float64 // at the first reading
}

func (m *hostTimes) read(now time.Time) (num, den float64, restarted bool, err error) {
	if err := m.list.read(now); err != nil {
		return 0, 0, false, err
	}
	if !m.began {
		m.began, m.busy, m.total = true, m.list.busy, m.list.total
	}
	return m.list.busy - m.busy, m.list.total - m.total, false, nil
}

func (*hostTimes) from() string { return "the CPU times of the host (GetSystemTimes)" }
func (*hostTimes) close()       {}

// onlineCPUs is the number of CPUs of the host.
type onlineCPUs struct{}

func (onlineCPUs) read(time.Time) (float64, error) { return float64(procfs.OnlineCPUs()), nil }
func (onlineCPUs) close()                          {}

// affinity is the number of CPUs that a process may use. The limits of job objects are not
// included, because Windows opens a job only by its name.
type affinity struct {
	w    *Watcher
	cpus int
	err  error
}

func (a *affinity) read(time.Time) (float64, error) {
	if a.cpus == 0 && a.err == nil || a.w.recheck {
		a.cpus, a.err = procfs.CPUs(a.w.process.process.PID)
		switch {
		case procfs.IsGone(a.err):
			a.err = ErrGone
		case errors.Is(a.err, fs.ErrPermission):
			a.err = cgroup.Unavailable(a.err.Error() + ": let the collector run as LocalSystem, or use cpu_usage")
		}
		a.w.capacity = cgroup.Capacity{Cores: float64(a.cpus), By: cgroup.ByCPUSet}
		if a.cpus == procfs.OnlineCPUs() {
			a.w.capacity.By = cgroup.ByOnline
		}
	}
	return float64(a.cpus), a.err
}

func (*affinity) close() {}
