// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/hotprofile/hotprofile/internal/nativeformat"
	. "github.com/hotprofile/hotprofile/test/nativeformattest"
)

const captureFolder = "../../testdata/dotnet"

// capture contains a recorded buffer and the expected contents.
type capture struct {
	name   string
	buf    []byte
	format Format
	golden golden
}

type golden struct {
	Kind         string            `json:"kind"`
	Size         int               `json:"size"`
	SelectedFlag bool              `json:"selected_flag"`
	Truncated    bool              `json:"truncated"`
	Statistics   *goldenStatistics `json:"statistics"`
	Functions    []string          `json:"functions"`
	Samples      []goldenSample    `json:"samples"`
}

type goldenStatistics struct {
	SuspendedMicroseconds int32 `json:"suspended_microseconds"`
	Threads               int32 `json:"threads"`
	Frames                int32 `json:"frames"`
	NameCacheMisses       int32 `json:"name_cache_misses"`
}

type goldenSample struct {
	UnixMilli int64  `json:"unix_ms"`
	Thread    string `json:"thread"`
	Selected  bool   `json:"selected"`
	TraceID   string `json:"trace_id"`
	SpanID    string `json:"span_id"`
	Type      string `json:"type"`
	Bytes     uint64 `json:"bytes"`
	Frames    []int  `json:"frames"`
}

// captures reads the recorded buffers of one folder. The folder "*" means all folders.
func captures(t testing.TB, folder string) []capture {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(captureFolder, folder, "*.bin"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var all []capture
	for _, file := range files {
		name, err := filepath.Rel(captureFolder, file)
		require.NoError(t, err)
		c := capture{name: filepath.ToSlash(name)}
		c.buf, err = os.ReadFile(file)
		require.NoError(t, err)
		content, err := os.ReadFile(strings.TrimSuffix(file, ".bin") + ".json")
		require.NoError(t, err)
		decoder := json.NewDecoder(strings.NewReader(string(content)))
		decoder.DisallowUnknownFields() // an unknown field would not be compared
		require.NoError(t, decoder.Decode(&c.golden), c.name)
		kinds := map[string]Kind{"threads": ThreadSamples, "allocations": AllocationSamples, "selected": SelectedThreadSamples}
		c.format = Format{Kind: kinds[c.golden.Kind], FrequentSampling: c.golden.SelectedFlag}
		require.NotZero(t, c.format.Kind, c.name)
		all = append(all, c)
	}
	return all
}

// records returns the samples of the golden file as records.
func (g *golden) records(t testing.TB) []Record {
	t.Helper()
	var records []Record
	for _, s := range g.Samples {
		r := Record{UnixMilli: s.UnixMilli, Thread: s.Thread, Selected: s.Selected, Type: s.Type, Bytes: s.Bytes}
		unhex(t, r.TraceID[:], s.TraceID)
		unhex(t, r.SpanID[:], s.SpanID)
		for _, f := range s.Frames {
			r.Frames = append(r.Frames, g.Functions[f])
		}
		records = append(records, r)
	}
	return records
}

func unhex(t testing.TB, into []byte, text string) {
	t.Helper()
	if text == "" {
		return
	}
	b, err := hex.DecodeString(text)
	require.NoError(t, err)
	require.Len(t, b, len(into))
	copy(into, b)
}

// decodeAll decodes a buffer into records. The records stay valid.
func decodeAll(d *Decoder, f Format, buf []byte) ([]Record, Summary, error) {
	var records []Record
	sum, err := d.Decode(f, buf, func(s *Sample) {
		var r Record
		RecordOf(d, s, &r)
		records = append(records, r)
	})
	return records, sum, err
}

func (c *capture) requireDecoded(t *testing.T, d *Decoder) {
	t.Helper()
	records, sum, err := decodeAll(d, c.format, c.buf)
	require.NoError(t, err)
	require.Len(t, c.buf, c.golden.Size)
	want := c.golden.records(t)
	require.Equal(t, want, records)
	require.Equal(t, len(want), sum.Samples)
	require.Equal(t, c.golden.Truncated, sum.Incomplete == 1)
	require.Equal(t, c.golden.Truncated, sum.Tail > 0)
	if c.golden.Statistics != nil {
		require.EqualValues(t, sum.Samples, c.golden.Statistics.Threads)
	}
	// functions lists each function once, in the order of first use.
	var functions []string
	seen := map[string]bool{}
	for _, r := range records {
		for _, f := range r.Frames {
			if !seen[f] {
				seen[f] = true
				functions = append(functions, f)
			}
		}
	}
	if !c.golden.Truncated { // otherwise the truncated sample may have defined more
		require.Equal(t, c.golden.Functions, functions)
	}
}

func TestEveryCaptureDecodesToItsRecordedContent(t *testing.T) {
	for _, c := range captures(t, "*") {
		t.Run(c.name, func(t *testing.T) {
			d := NewDecoder(0)
			c.requireDecoded(t, d)
			held := d.Held().Names
			c.requireDecoded(t, d) // all names are known now
			require.Equal(t, held, d.Held().Names)
		})
	}
}

func TestCapturesOfAllServicesThroughOneDecoder(t *testing.T) {
	d := NewDecoder(0)
	for range 2 {
		for _, c := range captures(t, "*") {
			c.requireDecoded(t, d)
		}
	}
	require.Zero(t, d.Forgotten())
}

func TestCapturesWithNoRoomForNames(t *testing.T) {
	d := NewDecoder(1)
	all := captures(t, "*")
	for _, c := range all {
		c.requireDecoded(t, d)
	}
	require.EqualValues(t, len(all), d.Forgotten())
}
