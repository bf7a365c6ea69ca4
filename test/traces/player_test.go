// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gateOpen and gateRest are the gate that all algorithms decide behind: how long
// an opening lasts, and how long the next one has to wait after it.
const (
	gateOpen = 30 // seconds
	gateRest = 60
)

// trace is a schedule, its labels and what was read of it.
type trace struct {
	*Schedule
	labels    Labels
	hot, grey []Stretch
	seconds   []second
	// phase is the number of seconds before the trace's beginning at which the loops of an
	// algorithm began to count.
	phase int
}

// second is the input of an algorithm at one second of a trace.
type second struct {
	row  *Row // nil: nothing was read
	down bool // there is no cgroup
}

// corpus reads all traces that there are.
func corpus(t testing.TB) (all []*trace) {
	t.Helper()
	for _, s := range schedules(t) {
		dir := "synthetic"
		if s.Recorded {
			dir = "recorded"
		}
		f, err := os.Open(filepath.Join(dir, s.Name+".csv"))
		require.NoError(t, err)
		_, rows, err := ReadTrace(f)
		f.Close()
		require.NoError(t, err, s.Name)
		tr := &trace{Schedule: s, labels: LabelsOf(s), seconds: make([]second, s.Seconds+1)}
		tr.hot = tr.labels.Stretches(Hot)
		_, tr.grey = s.Runs()
		for i := range tr.seconds {
			tr.seconds[i].down = s.IsDown(float64(i))
		}
		for i := range rows {
			tr.seconds[int(rows[i].At)].row = &rows[i]
		}
		all = append(all, tr)
	}
	return all
}

// An algorithm is one set of parameters of a way to decide.
type algorithm struct {
	// name of the set, for the report.
	name string
	// play returns the seconds at which it opens.
	play func(*trace) []int
}

// behindGate plays an algorithm that only reports whether it would open, after each
// second's reading.
func behindGate(begin func(*trace) func(second int, now second) bool) func(*trace) []int {
	return func(tr *trace) (opened []int) {
		wants, next := begin(tr), 0
		for i, now := range tr.seconds {
			if wants(i, now) && i >= next {
				opened = append(opened, i)
				next = i + gateOpen + gateRest
			}
		}
		return opened
	}
}

// meter turns readings into the share of the limit that was used between them.
type meter struct{ last *Row }

// percent is the use since the last reading; there is none when there was
// no reading before, or the cgroup was made anew.
func (m *meter) percent(now *Row) (percent float64, ok bool) {
	last := m.last
	m.last = now
	if last == nil || now.CPU < last.CPU {
		return 0, false
	}
	return 100 * (now.CPU - last.CPU) / ((now.At - last.At) * now.Capacity), true
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }
