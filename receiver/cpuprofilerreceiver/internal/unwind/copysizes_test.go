// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

func TestLevelsOfCopies(t *testing.T) {
	for bytes, level := range map[int]int{0: 0, 1: 0, 2048: 0, 2049: 1, 4096: 1, 16384: 3, 16385: 4, 65528: 5, 1 << 30: levels} {
		require.Equal(t, level, levelOf(bytes), bytes)
	}
	require.Equal(t, 2048, sizeOf(0))
	require.Equal(t, perfevent.MaxUserStack, sizeOf(5))
	require.Equal(t, perfevent.MaxUserStack, sizeOf(levels))
}

func TestCopiesAreAsLargeAsProgramsNeed(t *testing.T) {
	small, deep := program{mapped: 1}, program{mapped: 2}
	s := newSizes(16384)
	batch := func(batches int) {
		for range batches {
			for range 1000 {
				s.add(small, 1500, false)
			}
			for i := range 100 {
				s.add(deep, 3000+i, false)
			}
			s.add(deep, 12000, false)
			s.nextBatch()
		}
	}
	s.nextBatch()
	require.Equal(t, 16384, s.bytes, "without samples nothing is known")
	batch(1)
	require.Equal(t, 4096, s.bytes, "one of a hundred is tolerated; the first size is a guess")
	batch(2 * calmBatches)
	require.Equal(t, 4096, s.bytes)

	for range leastCut - 1 {
		s.add(deep, 4000, true)
	}
	require.Equal(t, 4096, s.bytes)
	s.add(deep, 4000, true)
	require.Equal(t, 16384, s.bytes, "at once")
	for range leastCut {
		require.Equal(t, 16384, s.bytes)
		s.add(deep, 4000, true)
	}
	require.Equal(t, 32768, s.bytes)
	for range 10 * leastCut {
		s.add(deep, 4000, true)
	}
	require.Equal(t, perfevent.MaxUserStack, s.bytes, "recursion without an end")

	for range 100 {
		s.nextBatch()
	}
	require.Equal(t, perfevent.MaxUserStack, s.bytes, "without samples nothing is known")
	batch(calmBatches - 1)
	require.Equal(t, perfevent.MaxUserStack, s.bytes, "a program needed this size")
	batch(1)
	require.Equal(t, 4096, s.bytes)
}

func TestNeedsOfManyProgramsAreBounded(t *testing.T) {
	s := newSizes(4096)
	for i := range 10 * maxPrograms {
		s.add(program{first: &samples.Mapping{Start: uint64(i)}}, 3000, false)
	}
	require.LessOrEqual(t, len(s.programs), maxPrograms+1)
}

// TestProgramsBeyondTheBoundCountAsOne checks that all programs beyond the limit count as one
// program. If their copies are too short, the size must still grow.
func TestProgramsBeyondTheBoundCountAsOne(t *testing.T) {
	s := newSizes(2048)
	for i := range maxPrograms {
		s.add(program{mapped: i + 1}, 1500, false)
	}
	for i := range leastCut {
		require.Equal(t, 2048, s.bytes)
		s.add(program{mapped: maxPrograms + i + 1}, 1500, true)
	}
	require.Equal(t, 4096, s.bytes)
}
