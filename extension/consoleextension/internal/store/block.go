// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
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

// series contains the points of one condition. The field condition is the index of this
// condition in the unit.
type series struct {
	condition int
	points    []point
}

const (
	maxBlockPoints = 4096    // points of a condition
	maxBlockBytes  = 8 << 20 // of a block after decompression
	pointColumns   = 6
)

var errBlock = errors.New("damaged block of readings")

// packer and unpacker encode and decode all blocks. EncodeAll and DecodeAll may be
// called concurrently.
var (
	packer, _   = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(64<<10), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	unpacker, _ = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxBlockBytes), zstd.WithDecoderConcurrency(1))
)

// short converts a float to an integer that sorts in the same order. It keeps 14 bits
// after the leading bit. The error is therefore at most 0.004 %.
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

// appendBlock encodes the readings of a unit in a time span. For each condition,
// the block contains the index of the condition, the number of points, and the
// columns of the points. Each column is stored as the differences from point to
// point. All numbers are varints.
func appendBlock(b []byte, all []series) []byte {
	var raw []byte
	for _, s := range all {
		raw = binary.AppendVarint(raw, int64(s.condition))
		raw = binary.AppendVarint(raw, int64(len(s.points)))
		for column := range pointColumns {
			last := int64(0)
			for _, p := range s.points {
				v := p.columns()[column]
				raw = binary.AppendVarint(raw, v-last)
				last = v
			}
		}
	}
	return packer.EncodeAll(raw, b)
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
