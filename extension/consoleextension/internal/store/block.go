// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"math"
)

// point is one reading, or a summary of several readings that were thinned.
type point struct {
	at             int64 // end of the time span, in seconds since 1970
	min, mean, max float32
	threshold      float32
	count          uint32 // number of readings; 0 if their values are not known
}

// series contains the points of one condition. condition is its index in the unit.
type series struct {
	condition int
	points    []point
}

// A block contains the readings of a unit over a time span. For each condition, a block
// contains the index, the number of points, the delta-of-delta encoded times, the
// run-length encoded thresholds, and the deltas of the values as short floats. A reading
// takes two bytes if its value did not change, and else about four. A thinned point takes
// three to nine bytes.

const (
	maxBlockPoints = 4096 // points of a condition
	thinnedBlock   = 1    // kind of a block with min, max and count besides the mean
)

var errBlock = errors.New("damaged block of readings")

// short converts a float to an integer that sorts in the same order. It keeps 14 bits after
// the leading bit, so the error is at most 0.004 %.
func short(f float32) int64 {
	const drop = 9
	if f != f {
		return 0x7FC00000 >> drop
	}
	bits := int64(math.Float32bits(f) & 0x7FFFFFFF)
	bits = min(bits+1<<(drop-1), 0x7F800000) >> drop
	if math.Signbit(float64(f)) {
		return -bits
	}
	return bits
}

func long(s int64) float32 {
	const drop = 9
	if s < 0 {
		return -math.Float32frombits(uint32(min(-s, 0x7FFFFFFF>>drop)) << drop)
	}
	return math.Float32frombits(uint32(min(s, 0x7FFFFFFF>>drop)) << drop)
}

// appendBlock encodes series of at most maxBlockPoints points each.
func appendBlock(b []byte, all []series, thinned bool) []byte {
	kind := byte(0)
	if thinned {
		kind = thinnedBlock
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, s := range all {
		b = binary.AppendUvarint(b, uint64(s.condition))
		b = binary.AppendUvarint(b, uint64(len(s.points)))
		var at, step int64
		for i, p := range s.points {
			b = binary.AppendVarint(b, p.at-at-step)
			if i > 0 {
				step = p.at - at
			}
			at = p.at
		}
		for i := 0; i < len(s.points); {
			bits := math.Float32bits(s.points[i].threshold)
			n := 1
			for i+n < len(s.points) && math.Float32bits(s.points[i+n].threshold) == bits {
				n++
			}
			b = binary.AppendUvarint(b, uint64(n))
			b = binary.LittleEndian.AppendUint32(b, bits)
			i += n
		}
		var last int64
		for _, p := range s.points {
			mean := short(p.mean)
			b = binary.AppendVarint(b, mean-last)
			last = mean
			if thinned {
				b = binary.AppendVarint(b, mean-short(p.min))
				b = binary.AppendVarint(b, short(p.max)-mean)
				b = binary.AppendUvarint(b, uint64(p.count))
			}
		}
	}
	return b
}

// readBlock decodes a block, and calls add for each point.
func readBlock(b []byte, add func(condition int, p point)) error {
	r := blockReader{rest: b}
	kind := r.byte()
	n := r.uvarint(maxConditions)
	var times []int64
	var thresholds []float32
	for range n {
		condition, points := int(r.uvarint(maxConditions-1)), int(r.uvarint(maxBlockPoints))
		times, thresholds = times[:0], thresholds[:0]
		var at, step int64
		for i := range points {
			d := r.varint() + step
			if at += d; i > 0 {
				step = d
			}
			times = append(times, at)
		}
		for len(thresholds) < points && !r.bad {
			run, bits := int(r.uvarint(uint64(points-len(thresholds)))), r.uint32()
			if run == 0 {
				return errBlock
			}
			for range run {
				thresholds = append(thresholds, math.Float32frombits(bits))
			}
		}
		if r.bad {
			return errBlock
		}
		var last int64
		for i := range points {
			last += r.varint()
			p := point{at: times[i], threshold: thresholds[i], mean: long(last)}
			if kind == thinnedBlock {
				p.min, p.max = long(last-r.varint()), long(last+r.varint())
				p.count = uint32(r.uvarint(math.MaxUint32))
			} else if p.min, p.max = p.mean, p.mean; p.mean == p.mean {
				p.count = 1
			}
			if r.bad {
				return errBlock
			}
			add(condition, p)
		}
	}
	if r.bad || kind > thinnedBlock {
		return errBlock
	}
	return nil
}

// blockReader reads numbers. After a missing or too large number, all numbers are 0.
type blockReader struct {
	rest []byte
	bad  bool
}

func (r *blockReader) advance(n int) {
	if n <= 0 {
		r.bad, r.rest = true, nil
		return
	}
	r.rest = r.rest[n:]
}

func (r *blockReader) byte() byte {
	if len(r.rest) == 0 {
		r.bad = true
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *blockReader) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.rest)
	if r.advance(n); r.bad || v > limit {
		r.bad, r.rest = true, nil
		return 0
	}
	return v
}

func (r *blockReader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if r.advance(n); r.bad {
		return 0
	}
	return v
}

func (r *blockReader) uint32() uint32 {
	if len(r.rest) < 4 {
		r.bad, r.rest = true, nil
		return 0
	}
	v := binary.LittleEndian.Uint32(r.rest)
	r.rest = r.rest[4:]
	return v
}
