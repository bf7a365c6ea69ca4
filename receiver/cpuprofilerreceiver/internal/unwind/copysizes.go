// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"math/bits"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// sizes chooses the number of bytes that the kernel copies of each stack, based on the bytes
// that unwinding needed. The number is the same for all programs.
//
// The number grows when the copies of one program are too short. It then grows at once to at
// least the initial size, which is enough for most programs, because several seconds may
// pass until larger copies are read. The number shrinks after calmBatches batches in which
// all programs needed less. The initial size is only a guess, so the first batch may already
// shrink it.
type sizes struct {
	// initial is the configured size.
	initial int
	// bytes is the current size of copies. It is either the size
	// of a level or the initial size.
	bytes int
	// programs contains the needs of each program in this batch.
	programs map[program]*needs
	// calm is the number of consecutive batches that needed a smaller size than the
	// current size. calmed is the largest size that these batches needed.
	calm, calmed int
}

// needs counts the samples of a program, in total and by the level that they needed.
type needs struct {
	samples uint32
	levels  [levels + 1]uint32
}

// The size of level n is leastCopy<<n bytes, but at most perfevent.MaxUserStack. A need
// above the highest level counts as the highest level.
const (
	leastCopy = 2048
	levels    = 6

	// A size is too small for a program if more than 1/tolerated of the program's samples,
	// and at least leastCut samples, need a larger size.
	tolerated = 50
	leastCut  = 8
	// calmBatches is the number of calm batches before the size shrinks. With the default
	// export interval, the size shrinks after half a minute.
	calmBatches = 6
	// maxPrograms is the maximum number of programs that are counted separately in a
	// batch. All further programs count as one program.
	maxPrograms = 1024
)

func newSizes(bytes int) *sizes {
	return &sizes{initial: bytes, bytes: bytes, calm: calmBatches - 1, programs: make(map[program]*needs)}
}

// sizeOf returns the size of a level in bytes.
func sizeOf(level int) int { return min(leastCopy<<level, perfevent.MaxUserStack) }

// levelOf returns the lowest level of at least the given size.
func levelOf(bytes int) int {
	return min(bits.Len(uint(max(bytes-1, 0))/leastCopy), levels)
}

// add records the number of bytes that were needed to unwind a sample of a program. cut
// reports whether the copy was too short.
func (s *sizes) add(of program, needed int, cut bool) {
	if s.programs[of] == nil && len(s.programs) >= maxPrograms {
		of = program{}
	}
	n := s.programs[of]
	if n == nil {
		n = new(needs)
		s.programs[of] = n
	}
	level := levelOf(needed)
	if cut {
		level = min(levelOf(s.bytes)+1, levels)
	}
	n.samples++
	n.levels[level]++
	if cut && n.levels[level] >= leastCut && n.levels[level] > n.samples/tolerated {
		s.set(max(sizeOf(level), s.initial))
	}
}

// set changes the current size and discards the counts for the old size.
func (s *sizes) set(bytes int) {
	s.bytes, s.calm, s.calmed = bytes, 0, 0
	clear(s.programs)
}

// nextBatch ends a batch. It ignores a batch without samples.
func (s *sizes) nextBatch() {
	if len(s.programs) == 0 {
		return
	}
	most := 0
	for _, n := range s.programs {
		most = max(most, n.level())
	}
	clear(s.programs)
	if sizeOf(most) >= s.bytes {
		s.calm, s.calmed = 0, 0
		return
	}
	s.calmed = max(s.calmed, sizeOf(most))
	if s.calm++; s.calm == calmBatches {
		s.set(s.calmed)
	}
}

// level returns the lowest level that is large enough for the program. At most
// 1/tolerated of the program's samples may need a higher level.
func (n *needs) level() int {
	more := uint32(0)
	for level := levels; level > 0; level-- {
		if more += n.levels[level]; more > n.samples/tolerated {
			return level
		}
	}
	return 0
}
