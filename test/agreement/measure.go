// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package agreement

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Tool is another program or library that reports figures of a unit. The figures are the
// difference between two readings.
type Tool struct {
	Name string
	// Start takes the first reading. The function finish takes the second reading.
	Start func() (finish func() (Figures, error), err error)
	// Least is the minimum time between the two readings of a tool that waits by
	// itself. It is 0 for other tools.
	Least time.Duration
}

// Figures holds a tool's figures for the time between its two readings, in cores. A
// figure is NaN if the tool does not report it.
type Figures struct {
	Total, User, System float64
	// Elapsed is the time between the readings according to the tool's own clock.
	Elapsed time.Duration
	// TotalStep and SplitStep are the errors due to the tool's resolution, in CPU time.
	// SplitStep applies to the user time and to the system time.
	TotalStep, SplitStep time.Duration
	// Clock is the relative error of the elapsed time, for a
	// tool that does not use a clock.
	Clock float64
}

// Shows reports whether a tool has reported the figure.
func Shows(figure float64) bool { return !math.IsNaN(figure) }

// Point is one cumulative reading of our own figures. The figure for the time between two
// points is ΔNum / ΔDen. Num and Den never decrease.
type Point struct {
	At       time.Time
	Num, Den float64
}

// Ours reads our own figures. It always returns the same number of points.
type Ours func() ([]Point, error)

// Measurement holds a tool's figures and our own readings. Our readings begin just before
// and end just after each of the tool's two readings.
type Measurement struct {
	Tool          string
	Theirs        Figures
	least         time.Duration
	first, second [][]Point
}

// Measure reads every tool twice. The parameter window is the time between the two
// readings. Measure reads our own figures during the whole time. The second readings of
// tools that wait by themselves come last, so such a tool should wait a little longer
// than window.
func Measure(ours Ours, tools []Tool, window time.Duration) ([]*Measurement, error) {
	all := make([]*Measurement, len(tools))
	finish := make([]func() (Figures, error), len(tools))
	r := recorder{ours: ours}
	for i, tool := range tools {
		from, err := r.during(func() (err error) { finish[i], err = tool.Start(); return err })
		if err != nil {
			return nil, fmt.Errorf("%s, first reading: %w", tool.Name, err)
		}
		all[i] = &Measurement{Tool: tool.Name, least: tool.Least, first: r.log[from:]}
	}
	if _, err := r.during(func() error { time.Sleep(window); return nil }); err != nil {
		return nil, fmt.Errorf("between the readings: %w", err)
	}
	order := make([]int, len(tools))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(tools[a].Least, tools[b].Least) })
	for _, i := range order {
		m := all[i]
		from, err := r.during(func() (err error) { m.Theirs, err = finish[i](); return err })
		if err != nil {
			return nil, fmt.Errorf("%s, second reading: %w", m.Tool, err)
		}
		// The tool may have taken its second reading
		// earlier, while other tools were read.
		for from > 0 && m.least > 0 && r.log[from][0].At.Sub(m.first[0][0].At) > m.least {
			from--
		}
		m.second = r.log[from:]
	}
	return all, nil
}

// recorder reads our own figures while a tool reads its figures.
type recorder struct {
	ours Ours
	log  [][]Point
}

func (r *recorder) take() error {
	points, err := r.ours()
	r.log = append(r.log, points)
	return err
}

// during calls something and takes readings of our own figures before, during and after
// the call. It returns the log index of the first of these readings.
func (r *recorder) during(something func() error) (from int, err error) {
	from = len(r.log)
	if err := r.take(); err != nil {
		return from, err
	}
	done := make(chan error, 1)
	go func() { done <- something() }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				return from, err
			}
			return from, r.take()
		case <-tick.C:
			if err := r.take(); err != nil {
				return from, errors.Join(err, <-done)
			}
		}
	}
}

// Ours returns our figure for the time from the tool's first
// reading to its second reading.
func (m *Measurement) Ours(figure int) float64 {
	a, b := m.first[0][figure], m.second[len(m.second)-1][figure]
	return (b.Num - a.Num) / (b.Den - a.Den)
}

// Range returns the minimum and the maximum of our figure. It considers all instants at
// which the tool may have taken its first reading and its second reading.
func (m *Measurement) Range(figure int) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for i := range len(m.first) - 1 {
		for j := range len(m.second) - 1 {
			a0, a1 := m.first[i][figure], m.first[i+1][figure]
			b0, b1 := m.second[j][figure], m.second[j+1][figure]
			if b1.At.Sub(a0.At) < m.least {
				continue // the tool waits longer than this
			}
			low = min(low, (b0.Num-a1.Num)/(b1.Den-a0.Den))
			high = max(high, (b1.Num-a0.Num)/(b0.Den-a1.Den))
		}
	}
	return low, high
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }
