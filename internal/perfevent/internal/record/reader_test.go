// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/perftest"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

func TestReaderCountsWhatItDoesNotReturn(t *testing.T) {
	k := perftest.NewRing(256, 0)
	for _, p := range []*perftest.Packed{
		perftest.Record(sys.RecordThrottle, 0, 1, 99, 99).SampleID(1),
		perftest.Record(sys.RecordLostSamples, 0, 17).SampleID(2),
		perftest.Record(sys.RecordFork, 0).SampleID(3), // without its body
		perftest.Record(16, 0, 1, 2).SampleID(4),       // nobody asks for it
		perftest.Record(sys.RecordLost, 0, 99, 5).SampleID(6),
		perftest.Record(sys.RecordExit, 0, 1, 2, 3).SampleID(7),
	} {
		require.True(t, k.Write(p.Words))
	}
	k.Reader().Kinds = ring.Records
	now := int64(6)
	r := NewReader(perftest.Readers([]*perftest.Ring{k}), Decoder{MaxStack: sys.MaxStackDepth}, func() int64 { return now })
	var rec Record
	words, unfinished := r.Next(&rec)
	require.NotNil(t, words)
	require.True(t, unfinished)
	require.Equal(t, TypeLost, rec.Type)
	require.Equal(t, Lost{Count: 5, Kinds: ring.Records}, rec.Lost)
	words, unfinished = r.Next(&rec)
	require.Nil(t, words)
	require.True(t, unfinished, "the exit is younger than the round")
	require.EqualValues(t, 1, r.Throttled.Load())
	require.EqualValues(t, 17, r.LostSamples.Load())
	require.EqualValues(t, 5, r.LostRecords.Load())
	require.Zero(t, r.Lost.Load())
	require.EqualValues(t, 1, r.Corrupt.Load())

	now = 7
	words, _ = r.Next(&rec)
	require.NotNil(t, words)
	require.Equal(t, TypeExit, rec.Type)
	_, unfinished = r.Next(&rec)
	require.False(t, unfinished)
}
