// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"fmt"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup/keptfile"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// ThreadCount is the number of threads.
const ThreadCount = "thread_count"

func threadCountKind() definition {
	return definition{
		Kind: Kind{Name: ThreadCount, Unit: "threads", Scale: 1, Gauge: true, Scopes: anyScope},
		open: func(w *Watcher) meter { return newThreadCount(w) },
	}
}

// threadCount is the meter of thread_count.
type threadCount struct{ opened[threadCounter] }

type threadCounter interface {
	Count() (int, error)
	From() string
	Close()
}

func newThreadCount(w *Watcher) *threadCount {
	return &threadCount{opened[threadCounter]{w: w, open: func() (threadCounter, error) {
		if w.process != nil {
			s := w.source
			return &processThreads{source: s, file: s.files.File(s.procfs.File(w.process.process.PID, "stat"))}, nil
		}
		return w.source.reader.OpenTasks(w.unit)
	}}}
}

func (m *threadCount) read(time.Time) (num, den float64, restarted bool, err error) {
	c, err := m.get()
	if err != nil {
		return 0, 0, false, err
	}
	n, err := c.Count()
	return float64(n), 0, false, err
}

func (m *threadCount) from() string {
	if !m.ok {
		return ""
	}
	return m.it.From()
}

// processThreads counts the threads of one process.
type processThreads struct {
	source *Source
	file   keptfile.File
}

// Count returns the number of threads.
func (p *processThreads) Count() (int, error) {
	n, _, err := p.file.Read(p.source.buf)
	if err != nil {
		if procfs.IsGone(err) {
			return 0, ErrGone
		}
		return 0, err
	}
	stat, err := procfs.ParseStat(p.source.buf[:n])
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", p.file.Path(), err)
	}
	return stat.Threads, nil
}

// From returns the file that is read.
func (p *processThreads) From() string { return p.file.Path() }

// Close closes the file.
func (p *processThreads) Close() { p.file.Close() }
