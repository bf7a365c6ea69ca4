// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/test/perftest"
)

// TestLostSamplesAreAtMostOnePerPeriod checks that at most one lost sample per period is
// counted if samples share a ring with other records.
func TestLostSamplesAreAtMostOnePerPeriod(t *testing.T) {
	for name, test := range map[string]struct {
		kinds            ring.Kinds
		period           int64
		samples, records uint64
	}{
		"records alone":               {ring.Records, 100, 0, 500},
		"samples alone":               {ring.Samples, 100, 500, 0},
		"both":                        {ring.Records | ring.Samples, 100, 31, 469},
		"both, few":                   {ring.Records | ring.Samples, 1, 500, 0},
		"both, not in time":           {ring.Records | ring.Samples, 0, 500, 0},
		"with context switches":       {ring.Records | ring.Samples | ring.Switches, 100, 500, 0},
		"samples or context switches": {ring.Samples | ring.Switches, 100, 500, 0},
	} {
		t.Run(name, func(t *testing.T) {
			k := newRing(64, 0)
			require.True(t, k.Write(perftest.Record(sys.RecordExit, 0, 1, 2, 3).SampleID(1000).Words))
			require.True(t, k.Write(perftest.Record(sys.RecordLost, 0, 99, 500).SampleID(4000).Words))
			k.Reader().Kinds = test.kinds
			r := NewReader(perftest.Readers([]*fakeRing{k}), Decoder{MaxStack: sys.MaxStackDepth}, func() int64 { return 5000 })
			r.Period.Store(test.period)
			var rec Record
			for words, _ := r.Next(&rec); words != nil; words, _ = r.Next(&rec) {
			}
			require.Equal(t, test.samples, r.Lost.Load())
			require.Equal(t, test.records, r.LostRecords.Load())
			require.EqualValues(t, 1000, rec.Lost.Since)
		})
	}
}

func TestReaderCountsWhatItDoesNotReturn(t *testing.T) {
	k := newRing(256, 0)
	for _, p := range []*perftest.Packed{
		perftest.Record(sys.RecordThrottle, 0, 1, 99, 99).SampleID(1),
		perftest.Record(sys.RecordLostSamples, 0, 17).SampleID(2),
		perftest.Record(sys.RecordFork, 0).SampleID(3), // without a body
		// The reader does not request this kind of record.
		perftest.Record(16, 0, 1, 2).SampleID(4),
		perftest.Record(sys.RecordLost, 0, 99, 5).SampleID(6),
		perftest.Record(sys.RecordExit, 0, 1, 2, 3).SampleID(7),
	} {
		require.True(t, k.Write(p.Words))
	}
	k.Reader().Kinds = ring.Records
	now := int64(6)
	r := NewReader(perftest.Readers([]*fakeRing{k}), Decoder{MaxStack: sys.MaxStackDepth}, func() int64 { return now })
	var rec Record
	words, unfinished := r.Next(&rec)
	require.NotNil(t, words)
	require.True(t, unfinished)
	require.Equal(t, TypeLost, rec.Type)
	require.Equal(t, Lost{Count: 5, Kinds: ring.Records, Since: now}, rec.Lost)
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
