// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// point is one reading, or a summary of several thinned readings.
type point struct {
	at             int64 // end of the time span, in seconds since 1970
	min, mean, max float32
	threshold      float32
	count          uint32 // number of readings; 0 if their values are not known
}

// newPoint returns the point of one reading. An unknown value or threshold is NaN.
func newPoint(at int64, value, threshold float32) point {
	p := point{at: at, min: value, mean: value, max: value, threshold: threshold}
	if value == value {
		p.count = 1
	}
	return p
}

const (
	maxBlockPoints = 4096    // points of a condition
	maxBlockBytes  = 8 << 20 // of a block after decompression
	pointColumns   = 6
	droppedBits    = 9 // of a float, in a block
)

var errBlock = errors.New("damaged block of readings")

// packer and unpacker encode and decode all blocks. EncodeAll and DecodeAll may be
// called concurrently.
var (
	packer, _   = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(64<<10), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	unpacker, _ = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxBlockBytes), zstd.WithDecoderConcurrency(1))
)

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
func (p point) columns() [pointColumns]int64 {
	mean := short(p.mean)
	return [...]int64{p.at, int64(math.Float32bits(p.threshold)), mean, mean - short(p.min), short(p.max) - mean, int64(p.count)}
}

func pointOf(c [pointColumns]int64) point {
	return point{
		at: c[0], threshold: math.Float32frombits(uint32(c[1])), mean: long(c[2]),
		min: long(c[2] - c[3]), max: long(c[2] + c[4]), count: uint32(c[5]),
	}
}

// packBlock encodes the points of a unit in a time span, by the index of their condition.
// It encodes at most the last maxBlockPoints points of a condition. For each condition, the
// block contains the index of the condition, the number of points, and the columns of the
// points. Each column is stored as the differences from point to point. All numbers are
// varints.
func packBlock(all map[int][]point) []byte {
	var raw []byte
	for _, condition := range slices.Sorted(maps.Keys(all)) {
		points := all[condition]
		points = points[max(0, len(points)-maxBlockPoints):]
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
	return packer.EncodeAll(raw, nil)
}

// readBlock decodes a block, and calls add for each point.
func readBlock(b []byte, add func(condition int, p point)) error {
	raw, err := unpacker.DecodeAll(b, nil)
	if err != nil {
		return errBlock
	}
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
		if condition < 0 || condition >= maxConditions || n <= 0 || n > maxBlockPoints {
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
