// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package series packs, thins and draws the readings of conditions.
package series

import (
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"time"
)

// Point is one reading, or a summary of several thinned readings.
type Point struct {
	At             int64 // end of the time span, in seconds since 1970
	Min, Mean, Max float32
	Threshold      float32
	Count          uint32 // number of readings; 0 if their values are not known
}

// New returns the point of one reading. An unknown value or threshold is NaN.
func New(at int64, value, threshold float32) Point {
	p := Point{At: at, Min: value, Mean: value, Max: value, Threshold: threshold}
	if value == value {
		p.Count = 1
	}
	return p
}

const (
	// MaxConditions is the maximum number of conditions in a block.
	MaxConditions = 64

	maxPoints    = 4096 // of a condition, in a block
	pointColumns = 6
	droppedBits  = 9 // of a float, in a block
)

var errBlock = errors.New("damaged block of readings")

// short converts a float to an integer, and keeps 14 bits after the leading bit. The error
// is therefore at most 0.004 %. Close floats with the same sign become close integers.
func short(f float32) int64 {
	if f != f {
		f = float32(math.NaN())
	}
	return (int64(math.Float32bits(f)) + 1<<(droppedBits-1)) >> droppedBits
}

func long(s int64) float32 { return math.Float32frombits(uint32(s) << droppedBits) }

// columns returns the numbers of a point. Each number is often 0, or close to the same
// number of the previous point. Such numbers compress well.
func (p Point) columns() [pointColumns]int64 {
	mean := short(p.Mean)
	return [...]int64{p.At, int64(math.Float32bits(p.Threshold)), mean, mean - short(p.Min), short(p.Max) - mean, int64(p.Count)}
}

func pointOf(c [pointColumns]int64) Point {
	return Point{
		At: c[0], Threshold: math.Float32frombits(uint32(c[1])), Mean: long(c[2]),
		Min: long(c[2] - c[3]), Max: long(c[2] + c[4]), Count: uint32(c[5]),
	}
}

// Pack encodes the points of a unit in a time span, by the index of their condition.
// It encodes at most the last maxPoints points of a condition. For each condition, the
// block contains the index of the condition, the number of points, and the columns of the
// points. Each column is stored as the differences from point to point. All numbers are
// varints.
func Pack(all map[int][]Point) []byte {
	var raw []byte
	for _, condition := range slices.Sorted(maps.Keys(all)) {
		points := all[condition]
		points = points[max(0, len(points)-maxPoints):]
		raw = binary.AppendVarint(raw, int64(condition))
		raw = binary.AppendVarint(raw, int64(len(points)))
		for column := range pointColumns {
			last := int64(0)
			for _, p := range points {
				v := p.columns()[column]
				raw = binary.AppendVarint(raw, v-last)
				last = v
			}
		}
	}
	return raw
}

// Unpack decodes a block, and calls add for each point.
func Unpack(raw []byte, add func(condition int, p Point)) error {
	var err error
	next := func() int64 {
		v, n := binary.Varint(raw)
		if n <= 0 {
			err, n = errBlock, len(raw)
		}
		raw = raw[n:]
		return v
	}
	var points [][pointColumns]int64
	for len(raw) > 0 {
		condition, n := next(), next()
		if condition < 0 || condition >= MaxConditions || n <= 0 || n > maxPoints {
			return errBlock
		}
		points = slices.Grow(points[:0], int(n))[:n]
		for column := range pointColumns {
			last := int64(0)
			for i := range points {
				last += next()
				points[i][column] = last
			}
		}
		if err != nil {
			return err
		}
		for _, c := range points {
			add(int(condition), pointOf(c))
		}
	}
	return nil
}

// Stepped is a point that covers a step of the given number of seconds. The step of a single
// reading is 0.
type Stepped struct {
	Point
	Step int64
}

// Draw returns at most n points of a condition's readings. If n is 0, it returns all points.
// A point with NaN values marks a gap. from and to are the ends of the time span that is
// drawn, unless they are zero.
func Draw(list []Stepped, from, to time.Time, n int) []Point {
	slices.SortStableFunc(list, func(a, b Stepped) int { return cmp.Compare(a.At, b.At) })
	gaps := gapsOf(list)
	n = cmp.Or(max(n, 0), math.MaxInt32)
	out := sketch(list, gaps, from, to, n)
	if len(out) > n {
		out = sketch(list, gaps, from, to, n/2)
	}
	return out
}

// gapsOf returns the gap limit of each step, in seconds. If two points are further apart
// than the limit, there is a gap between them. The limit is three times the median distance
// of the readings, plus the step and 5 seconds. Points with the same time are two parts of a
// reading, or a reading that arrived twice.
func gapsOf(list []Stepped) map[int64]int64 {
	distances := map[int64][]int64{}
	for i, p := range list {
		known := distances[p.Step]
		if i > 0 && p.Step == list[i-1].Step && p.At > list[i-1].At {
			known = append(known, (p.At-list[i-1].At)/max(int64(p.Count), 1))
		}
		distances[p.Step] = known
	}
	usual := int64(10)
	gaps := map[int64]int64{}
	for _, step := range slices.Sorted(maps.Keys(distances)) {
		if d := distances[step]; len(d) > 0 {
			slices.Sort(d)
			usual = d[len(d)/2]
		}
		gaps[step] = step + 3*usual + 5
	}
	return gaps
}

// sketch merges points into n spans of equal length, and marks gaps.
func sketch(list []Stepped, gaps map[int64]int64, from, to time.Time, n int) []Point {
	start, end := list[0].At, list[len(list)-1].At
	if !from.IsZero() {
		start = max(start, from.Unix())
	}
	if !to.IsZero() {
		end = min(end, to.Unix())
	}
	width := max(1, (end-start)/int64(max(n, 1))+1)
	var out []Point
	for i := 0; i < len(list); {
		first := i
		merged := list[i].Point
		for i++; i < len(list) && (list[i].At-start)/width == (merged.At-start)/width; i++ {
			merged = merge(merged, list[i].Point)
		}
		if first > 0 {
			if limit := gaps[list[first].Step]; list[first].At-list[first-1].At > limit {
				nan := float32(math.NaN())
				out = append(out, Point{At: list[first-1].At + limit/3, Min: nan, Mean: nan, Max: nan, Threshold: nan})
			}
		}
		out = append(out, merged)
	}
	return out
}

// merge merges two points. b is the later point.
func merge(a, b Point) Point {
	b.Threshold = Known(a.Threshold, b.Threshold)
	if b.Count == 0 {
		a.At, a.Threshold = b.At, b.Threshold
		return a
	}
	if a.Count == 0 {
		return b
	}
	b.Min, b.Max = min(a.Min, b.Min), max(a.Max, b.Max)
	count := a.Count + b.Count
	b.Mean = float32((float64(a.Mean)*float64(a.Count) + float64(b.Mean)*float64(b.Count)) / float64(count))
	b.Count = count
	return b
}

// Thin merges all points of the same step into one point.
func Thin(list []Point, step int64) []Point {
	slices.SortStableFunc(list, func(a, b Point) int { return cmp.Compare(a.At, b.At) })
	var out []Point
	for _, p := range list {
		if n := len(out); n > 0 && (out[n-1].At-1)/step == (p.At-1)/step {
			out[n-1] = merge(out[n-1], p)
		} else {
			out = append(out, p)
		}
	}
	return out
}

// Known returns b, or a if b is NaN.
func Known[T float32 | float64](a, b T) T {
	if b != b {
		return a
	}
	return b
}
