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

// A Tool is another program, or a library of its kind, that is asked twice about
// the CPU time of one unit.
type Tool struct {
	Name string
	// Start takes the first reading. The function finish takes the second reading.
	Start func() (finish func() (Figures, error), err error)
	// Least is the least time between the two, of a tool that waits by itself.
	Least time.Duration
}

// Figures holds a tool's figures for the time between its two readings, in cores. A
// figure that it does not have is NaN.
type Figures struct {
	Total, User, System float64
	// Elapsed is the time between its readings, by its own clock.
	Elapsed time.Duration
	// TotalStep and SplitStep are by how much CPU time the total, and user and
	// system each, may be off because the tool counts or shows in steps.
	TotalStep, SplitStep time.Duration
	// Clock is the part by which the tool's idea of the time gone by is off, where
	// the tool divides by something else than a clock.
	Clock float64
}

// Shows is set when the tool has the figure.
func Shows(figure float64) bool { return !math.IsNaN(figure) }

// A Point is a cumulative reading of ours: the figure over a span between two of
// them is ΔNum / ΔDen. Both only grow.
type Point struct {
	At       time.Time
	Num, Den float64
}

// Ours reads our own figures, always the same number of them.
type Ours func() ([]Point, error)

// A Measurement holds a tool's figures, and ours from just before to just
// after each of its two readings.
type Measurement struct {
	Tool          string
	Theirs        Figures
	least         time.Duration
	first, second [][]Point
}

// Measure reads every tool at two instants that are window apart, and our own
// figures all the while. A tool that waits by itself is asked last for its second
// reading, and should wait a little longer than window.
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
		// The tool may have read its figures before it was asked for them.
		for from > 0 && m.least > 0 && r.log[from][0].At.Sub(m.first[0][0].At) > m.least {
			from--
		}
		m.second = r.log[from:]
	}
	return all, nil
}

// A recorder reads our figures while others are asked for theirs.
type recorder struct {
	ours Ours
	log  [][]Point
}

func (r *recorder) take() error {
	points, err := r.ours()
	r.log = append(r.log, points)
	return err
}

// during takes readings before something else, again and again until it is done,
// and after. It returns the place of the one before in the log.
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

// Ours is our figure from one of the tool's instants to the other.
func (m *Measurement) Ours(figure int) float64 {
	a, b := m.first[0][figure], m.second[len(m.second)-1][figure]
	return (b.Num - a.Num) / (b.Den - a.Den)
}

// Range is the least and the most that our figure says from any instant at which
// the tool can have read first to any at which it can have read last.
func (m *Measurement) Range(figure int) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for i := range len(m.first) - 1 {
		for j := range len(m.second) - 1 {
			a0, a1 := m.first[i][figure], m.first[i+1][figure]
			b0, b1 := m.second[j][figure], m.second[j+1][figure]
			if b1.At.Sub(a0.At) < m.least {
				continue // it cannot have read so soon
			}
			low = min(low, (b0.Num-a1.Num)/(b1.Den-a0.Den))
			high = max(high, (b1.Num-a0.Num)/(b0.Den-a1.Den))
		}
	}
	return low, high
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }
