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

// gateOpen and gateRest describe the gate, which is the same for all algorithms. An
// opening lasts gateOpen. Afterwards, the next opening has to wait for gateRest.
const (
	gateOpen = 30 // in seconds
	gateRest = 60
)

// trace is a schedule with its labels and its readings.
type trace struct {
	*Schedule
	labels    Labels
	hot, grey []Stretch
	seconds   []second
	// phase is the number of seconds between the start of an algorithm's loops
	// and the beginning of the trace.
	phase int
}

// second is the input of an algorithm for one second of a trace.
type second struct {
	row  *Row // nil if there is no reading
	down bool // whether the cgroup does not exist
}

// corpus returns all traces.
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

// algorithm is an algorithm with one set of parameters.
type algorithm struct {
	// name describes the parameters in the report.
	name string
	// play returns the seconds at which the gate opens.
	play func(*trace) []int
}

// behindGate returns a play function for an algorithm that only reports, after each
// second's reading, whether it wants to open the gate.
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

// meter computes the usage between readings as a percentage of the limit.
type meter struct{ last *Row }

// percent returns the usage since the previous reading. ok is false if there is no
// previous reading or if the cgroup was created again since then.
func (m *meter) percent(now *Row) (percent float64, ok bool) {
	last := m.last
	m.last = now
	if last == nil || now.CPU < last.CPU {
		return 0, false
	}
	return 100 * (now.CPU - last.CPU) / ((now.At - last.At) * now.Capacity), true
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }
