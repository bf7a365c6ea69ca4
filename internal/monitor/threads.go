// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"fmt"
	"time"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// ThreadCount is the name of the monitor of the number of threads.
const ThreadCount = "thread_count"

// threadCount is the meter of thread_count.
type threadCount struct{ opened[threadCounter] }

type threadCounter interface {
	Count() (int, error)
	From() string
	Close()
}

func newThreadCount(w *Watcher, _ string) meter {
	return &threadCount{opened[threadCounter]{w: w, open: func() (threadCounter, error) {
		if w.process != nil {
			return &processThreads{w.processFile("stat")}, nil
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

// processThreads counts the threads of one process.
type processThreads struct{ processFile }

// Count returns the number of threads.
func (p *processThreads) Count() (int, error) {
	b, err := p.read()
	if err != nil {
		return 0, err
	}
	stat, err := procfs.ParseStat(b)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", p.From(), err)
	}
	return stat.Threads, nil
}
