// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"math"
	"math/rand/v2"
)

// defaultRate is the runtime's MemProfileRate, unless the program sets it.
const defaultRate = 512 << 10

// weight returns the number of objects that a sampled object of size bytes represents. The
// runtime samples one object per rate bytes on average.
func weight(size uint64, rate int64) float64 {
	if rate <= 1 || size == 0 { // at 1 every allocation is sampled
		return 1
	}
	return -1 / math.Expm1(-float64(size)/float64(rate))
}

// round rounds v at random to one of the two adjacent integers. The mean of
// the result is v.
func round(v float64, r *rand.Rand) int64 {
	const most = 1 << 62
	if v >= most {
		return most
	}
	return int64(math.Floor(v + r.Float64()))
}

// reservoir keeps up to k values. It keeps each value with the same probability.
type reservoir struct {
	seen int
	kept []allocation
}

// slot returns the memory for the next value, or false if the value is not kept. The
// returned memory is an element of kept, so the caller must fill it.
func (s *reservoir) slot(k int, r *rand.Rand) (*allocation, bool) {
	s.seen++
	if len(s.kept) < k {
		s.kept = append(s.kept, allocation{})
		return &s.kept[len(s.kept)-1], true
	}
	if i := r.IntN(s.seen); i < k {
		return &s.kept[i], true
	}
	return nil, false
}

// factor returns the factor by which each kept value is multiplied.
func (s *reservoir) factor() float64 {
	if len(s.kept) == 0 {
		return 0
	}
	return float64(s.seen) / float64(len(s.kept))
}

// reset empties the reservoir. It reuses the memory of the reservoir unless this memory is
// large.
func (s *reservoir) reset() {
	const much = 1024
	s.seen = 0
	if cap(s.kept) > much {
		s.kept = nil
		return
	}
	clear(s.kept) // frees the stacks
	s.kept = s.kept[:0]
}
