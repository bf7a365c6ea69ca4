// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// ThreadCount is the name of the monitor that counts threads.
const ThreadCount = "thread_count"

// threadCount is the meter of thread_count.
type threadCount struct{ opened[number] }

func newThreadCount(w *Watcher, _ string) meter {
	return &threadCount{opened[number]{w: w, open: func() (number, error) {
		if w.process != nil {
			return w.processFile("stat", threadsOf), nil
		}
		return w.source.reader.OpenTasks(w.unit)
	}}}
}

func (m *threadCount) read(time.Time) (num, den float64, restarted bool, err error) {
	c, err := m.get()
	if err != nil {
		return 0, 0, false, err
	}
	n, _, err := c.Read()
	return float64(n), 0, false, err
}

// threadsOf returns the number of threads in a stat file.
func threadsOf(stat []byte) (uint64, error) {
	s, err := procfs.ParseStat(stat)
	return uint64(s.Threads), err
}
