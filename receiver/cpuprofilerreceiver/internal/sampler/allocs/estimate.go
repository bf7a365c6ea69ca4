// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"math"
	"math/rand/v2"
)

// defaultRate is the runtime's MemProfileRate unless the program sets it.
const defaultRate = 512 << 10

// weight is how many objects a sampled one of size bytes stands for, where the
// runtime samples one per rate bytes on average.
func weight(size uint64, rate int64) float64 {
	if rate <= 1 || size == 0 { // at 1 every allocation is sampled
		return 1
	}
	return -1 / math.Expm1(-float64(size)/float64(rate))
}

// round is one of the two integers next to v, each as often as makes the mean v.
func round(v float64, r *rand.Rand) int64 {
	const most = 1 << 62
	if v >= most {
		return most
	}
	return int64(math.Floor(v + r.Float64()))
}

// reservoir keeps up to k of what it is offered, each with the same probability.
type reservoir struct {
	seen int
	kept []allocation
}

// place is where the next one offered goes; false where it is not kept. What is
// kept must be put there: kept grows by one where there is room.
func (s *reservoir) place(k int, r *rand.Rand) (*allocation, bool) {
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

// factor is what each kept value is to be multiplied by.
func (s *reservoir) factor() float64 {
	if len(s.kept) == 0 {
		return 0
	}
	return float64(s.seen) / float64(len(s.kept))
}

// reset empties the reservoir and keeps its memory, unless that is much.
func (s *reservoir) reset() {
	const much = 1024
	s.seen = 0
	if cap(s.kept) > much {
		s.kept = nil
		return
	}
	clear(s.kept) // lets go of stacks
	s.kept = s.kept[:0]
}
