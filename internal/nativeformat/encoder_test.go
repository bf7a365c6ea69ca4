// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/hotprofile/hotprofile/internal/nativeformat"
	. "github.com/hotprofile/hotprofile/test/nativeformattest"
)

func TestCapturesEncodeToTheSameBytes(t *testing.T) {
	for _, c := range captures(t, "*") {
		// Only the decoded samples are the same for these captures. Unpaired
		// surrogates are decoded as U+FFFD, and the decoder does not report where
		// selected batches begin.
		if strings.HasPrefix(c.name, "names/") || c.format.Kind == SelectedThreadSamples {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			got := encode(NewEncoder(c.format), c.golden.records(t), (*Statistics)(c.golden.Statistics))
			if !c.golden.Truncated {
				require.Equal(t, c.buf, got)
				return
			}
			_, sum, err := decodeAll(NewDecoder(0), c.format, c.buf)
			require.NoError(t, err)
			complete := len(c.buf) - sum.Tail
			require.Equal(t, c.buf[:complete], got[:complete])
		})
	}
}

func TestBulkCapturesDecodeTheSameAfterEncoding(t *testing.T) {
	for _, c := range captures(t, "*") {
		t.Run(c.name, func(t *testing.T) {
			want, _, err := decodeAll(NewDecoder(0), c.format, c.buf)
			require.NoError(t, err)
			got, sum, err := decodeAll(NewDecoder(0), c.format, encode(NewEncoder(c.format), want, nil))
			require.NoError(t, err)
			require.Zero(t, sum.Tail)
			require.Equal(t, want, got)
		})
	}
}

func TestStringsAreCutAtMaxUnits(t *testing.T) {
	for name, tt := range map[string]struct{ name, want string }{
		"512 units":              {strings.Repeat("é", 512), strings.Repeat("é", 512)},
		"513 units":              {strings.Repeat("é", 512) + "x", strings.Repeat("é", 512)},
		"between two surrogates": {strings.Repeat("a", 511) + "\U0001F600", strings.Repeat("a", 511) + "\uFFFD"},
		"invalid UTF-8":          {"a\xffb", "a\uFFFDb"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Record{UnixMilli: 1, Thread: tt.name, Type: tt.name, Frames: []string{tt.name, tt.name}}
			got, _, err := decodeAll(NewDecoder(0), allocations, encode(NewEncoder(allocations), []Record{r}, nil))
			require.NoError(t, err)
			require.Equal(t, []Record{{UnixMilli: 1, Thread: tt.want, Type: tt.want, Frames: []string{tt.want, tt.want}}}, got)
		})
	}
}

// fill writes n samples that are equal to r except for their times.
func fill(e *Encoder, r Record, n int, batches bool) {
	for i := range n {
		r.UnixMilli = int64(i)
		if batches {
			e.StartBatch(r.UnixMilli)
		}
		e.Sample(&r)
		if batches {
			e.EndBatch()
		}
	}
}

func TestFullBufferOfThreadSamplesEndsInsideASample(t *testing.T) {
	r := Record{Thread: "worker", Frames: []string{strings.Repeat("long", 100)}}
	for i := range 3000 {
		r.Frames = append(r.Frames, fmt.Sprint("f", i))
	}
	e := NewEncoder(threads)
	e.StartBatch(5)
	for range 100 {
		e.Sample(&r)
	}
	e.EndBatch()
	e.Statistics(Statistics{Threads: 100})
	require.True(t, e.Full())
	require.GreaterOrEqual(t, len(e.Bytes()), MaxBuffer)
	require.Less(t, len(e.Bytes()), MaxBuffer+2+2+2*MaxUnits, "exceeds the size by one field at most")
	for _, buf := range [][]byte{e.Bytes(), e.Bytes()[:MaxBuffer]} {
		records, sum, err := decodeAll(NewDecoder(0), threads, buf)
		require.NoError(t, err)
		require.Equal(t, 1, sum.Incomplete)
		require.Greater(t, len(records), 20)
		for _, got := range records {
			require.Equal(t, Record{UnixMilli: 5, Thread: r.Thread, Frames: r.Frames}, got)
		}
	}
	e.Reset()
	require.Empty(t, e.Bytes())
	require.False(t, e.Full())
	e.StartBatch(6)
	e.Sample(&Record{Frames: []string{"a"}})
	records, _, err := decodeAll(NewDecoder(0), threads, e.Bytes())
	require.NoError(t, err)
	require.Equal(t, []Record{{UnixMilli: 6, Frames: []string{"a"}}}, records)
}

func TestFullBufferOfAllocationsHasCompleteSamples(t *testing.T) {
	e := NewEncoder(allocations)
	fill(e, Record{Thread: "worker", Type: "T", Bytes: 24, Frames: []string{strings.Repeat("n", 512)}}, 500, false)
	require.Less(t, len(e.Bytes()), MaxBuffer)
	records, sum, err := decodeAll(NewDecoder(0), allocations, e.Bytes())
	require.NoError(t, err)
	require.Zero(t, sum.Tail)
	require.Equal(t, 500, len(records)+e.Discarded())
	require.Positive(t, e.Discarded())

	e.Reset()
	e.Sample(&Record{Frames: strings.Split(strings.Repeat("a,", MaxBuffer), ",")}) // one sample that is as large as a buffer
	require.Empty(t, e.Bytes())
	require.Equal(t, 1, e.Discarded())
}

func TestFullBufferOfSelectedSamplesHasCompleteBatches(t *testing.T) {
	e := NewEncoder(selected)
	fill(e, Record{Thread: "worker", Frames: []string{strings.Repeat("n", 512)}}, 500, true)
	require.Less(t, len(e.Bytes()), MaxBuffer)
	_, sum, err := decodeAll(NewDecoder(0), selected, e.Bytes())
	require.NoError(t, err)
	require.Zero(t, sum.Tail)
	require.Equal(t, 500, sum.Samples+e.Discarded())
	require.Positive(t, e.Discarded())

	e.Reset()
	e.StartBatch(0)
	for range 100 { // one batch that is as large as a buffer
		e.Sample(&Record{Frames: strings.Split(strings.Repeat("a,", 2000), ",")})
	}
	e.EndBatch()
	require.Empty(t, e.Bytes())
	require.Equal(t, 1, e.Discarded())
}

func TestEncodingAllocatesNothingForKnownNames(t *testing.T) {
	c := captures(t, "web")[0]
	records := c.golden.records(t)
	e := NewEncoder(c.format)
	require.Zero(t, testing.AllocsPerRun(10, func() { encode(e, records, nil) }))
}
