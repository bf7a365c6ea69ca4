// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/cgroup/openfile"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

const (
	// busyEnough is the minimum CPU usage, in cores, at which the threads of a unit are
	// read one by one. At a lower usage, no thread can be busy for half of the time.
	busyEnough = 0.5

	// maxThreads is the maximum number of threads of a unit that are read.
	maxThreads = 16384
)

const (
	// NotBusy is returned for a unit in which no thread can be busy for half of the time.
	NotBusy Gap = "it uses less than half a core, so its threads are not looked at"

	// TooManyThreads is returned for a unit with more than maxThreads threads.
	TooManyThreads cgroup.Unavailable = "it has too many threads to look at one by one"

	// NoThreadClocks is returned if the kernel does not report the CPU time of single
	// threads.
	NoThreadClocks cgroup.Unavailable = "the kernel does not say how long a thread ran: it has no /proc/PID/schedstat (CONFIG_SCHED_INFO)"
)

// CPUBusiestThread is the name of the monitor that measures the busiest thread. Its value
// is the share of time for which this thread was on a CPU.
const CPUBusiestThread = "cpu_busiest_thread"

// busiest is the meter of cpu_busiest_thread. Each reading adds the CPU time of the
// thread that used the most CPU time since the last reading. A thread's clock advances
// once per scheduler tick. Only busy units are read, so the first reading after a
// pause is a new starting point.
type busiest struct {
	w       *Watcher
	tasks   opened[threadLister]
	threads map[int]*threadClock
	visit   func(tid int) bool // created once, so that listing does not allocate

	began, running bool // read at least once; read since the last pause
	at             time.Time
	span, step     time.Duration // of this reading
	round          uint64
	err            error
	busy, elapsed  time.Duration
}

type threadClock struct {
	file  openfile.File
	used  time.Duration
	round uint64 // the round of the last reading
}

// threadLister lists the threads of a unit.
type threadLister interface {
	List(visit func(tid int) bool) error
	From() string
	Close()
}

func newBusiest(w *Watcher, _ string) meter {
	m := &busiest{w: w, threads: map[int]*threadClock{}, tasks: opened[threadLister]{w: w, open: func() (threadLister, error) {
		if w.process != nil {
			return processTasks{w.source.procfs, w.process.process.PID}, nil
		}
		t, err := w.source.reader.OpenTasks(w.unit)
		if err != nil {
			return nil, err
		}
		if !t.Listed() {
			t.Close()
			return nil, cgroup.Shared
		}
		return t, nil
	}}}
	m.visit = m.look
	return m
}

func (m *busiest) read(now time.Time) (num, den float64, restarted bool, err error) {
	if m.w.use.err != nil {
		return 0, 0, false, m.w.use.err
	}
	if cores, known := m.w.use.cores(); !known || cores < m.w.source.busyFrom {
		m.pause()
		return 0, 0, false, NotBusy
	}
	tasks, err := m.tasks.get()
	if err != nil {
		m.pause()
		return 0, 0, false, err
	}
	m.round++
	m.step, m.span, m.err = 0, now.Sub(m.at), nil
	if err := tasks.List(m.visit); err != nil {
		return 0, 0, false, err
	}
	if m.err != nil {
		m.pause()
		return 0, 0, false, m.err
	}
	for tid, t := range m.threads {
		if t.round != m.round {
			t.file.Close()
			delete(m.threads, tid)
		}
	}
	if m.running {
		m.busy += min(m.step, m.span)
		m.elapsed += m.span
	} else {
		restarted = m.began
		m.began, m.running = true, true
	}
	m.at = now
	return m.busy.Seconds(), m.elapsed.Seconds(), restarted, nil
}

// look reads the clock of one thread.
func (m *busiest) look(tid int) bool {
	t := m.threads[tid]
	fresh := t == nil
	if fresh {
		if len(m.threads) == maxThreads {
			m.err = TooManyThreads
			return false
		}
		s := m.w.source
		t = &threadClock{file: s.files.File(s.procfs.File(tid, "schedstat"))}
		m.threads[tid] = t
	}
	used, err := t.read(m.w.source.buf)
	if err != nil {
		t.file.Close()
		delete(m.threads, tid) // the thread has ended, and a new thread may get its tid
		if errors.Is(err, errNoSchedstat) {
			m.err = NoThreadClocks
		}
		return m.err == nil
	}
	switch grown := used - t.used; {
	case fresh && used <= m.span, !fresh && grown > 0:
		m.step = max(m.step, grown)
	}
	t.used, t.round = used, m.round
	return true
}

var errNoSchedstat = errors.New("no schedstat")

func (t *threadClock) read(buf []byte) (time.Duration, error) {
	n, _, err := t.file.Read(buf)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			if _, stat := os.Stat(t.file.Path()[:len(t.file.Path())-len("/schedstat")]); stat == nil {
				return 0, errNoSchedstat
			}
		}
		return 0, err
	}
	return procfs.ParseSchedstat(buf[:n])
}

// pause forgets the threads until the unit is busy again.
func (m *busiest) pause() {
	m.running = false
	for tid, t := range m.threads {
		t.file.Close()
		delete(m.threads, tid)
	}
	m.tasks.close()
}

func (m *busiest) from() string { return m.w.source.procfs.Path("*", "schedstat") }
func (m *busiest) close()       { m.pause() }

// processTasks lists the threads of one process.
type processTasks struct {
	procfs procfs.FS
	pid    int
}

// List calls visit for each thread.
func (p processTasks) List(visit func(tid int) bool) error {
	tids, err := p.procfs.Threads(p.pid)
	if procfs.IsGone(err) {
		return ErrGone
	}
	for _, tid := range tids {
		if !visit(tid) {
			return nil
		}
	}
	return err
}

// From returns the path of the listed directory.
func (p processTasks) From() string { return p.procfs.File(p.pid, "task") }

// Close has no effect, because no file stays open.
func (p processTasks) Close() {}
