// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	. "github.com/hotprofile/hotprofile/internal/nativeformat"
	. "github.com/hotprofile/hotprofile/test/nativeformattest"
)

// written returns the string that results from encoding and decoding a string. It
// computes the result without the codec.
func written(s string) string {
	units := utf16.Encode([]rune(s))
	return string(utf16.Decode(units[:min(len(units), MaxUnits)]))
}

// addCaptures seeds a fuzz target with the captures of one kind.
func addCaptures(f *testing.F, kind Kind, add func(c *capture)) {
	all := captures(f, "*")
	for i := range all {
		if c := &all[i]; c.format.Kind == kind {
			if len(c.buf) > 1<<15 {
				c.buf = c.buf[:1<<13] // the fuzzer is slow on large seeds
			}
			add(c)
		}
	}
}

// checkDecode checks the documented properties of Decode for any bytes.
func checkDecode(t *testing.T, d *Decoder, f Format, buf []byte) {
	t.Helper()
	kept := bytes.Clone(buf)
	records, sum, err := decodeAll(d, f, buf)
	require.Equal(t, kept, buf, "Decode must not change the buffer")
	require.Len(t, records, sum.Samples)
	good := len(buf)
	frames := 0
	for _, r := range records {
		frames += len(r.Frames)
		require.Equal(t, strings.ToValidUTF8(r.Thread, ""), r.Thread)
		require.Equal(t, strings.ToValidUTF8(r.Type, ""), r.Type)
	}
	require.LessOrEqual(t, frames, len(buf)/2)
	require.LessOrEqual(t, d.Held().Frames, max(64, MaxKeptFrames))
	if err != nil {
		var fault *Error
		require.True(t, errors.As(err, &fault))
		require.GreaterOrEqual(t, fault.Offset, 0)
		require.Less(t, fault.Offset, len(buf))
		require.NotEmpty(t, fault.Expected)
		require.NotEmpty(t, fault.Error())
		require.Zero(t, sum.Tail)
		require.Zero(t, sum.Incomplete)
		good = fault.Offset
	} else {
		require.LessOrEqual(t, sum.Tail, len(buf))
		require.LessOrEqual(t, sum.Incomplete, min(1, sum.Tail))
	}
	// For the part before the fault, a new decoder must return the same samples.
	fresh := NewDecoder(0)
	again, _, err := decodeAll(fresh, f, buf[:good])
	require.NoError(t, err)
	require.Equal(t, records, again)
	require.LessOrEqual(t, fresh.Held().NameBytes, NewDecoder(0).Held().NameBytes+16*len(buf))
}

func FuzzThreadSamples(f *testing.F) {
	addCaptures(f, ThreadSamples, func(c *capture) { f.Add(c.buf, c.format.FrequentSampling) })
	f.Add([]byte(craft{}.batch().thread("x").def(-1, "a").end().thread("y").code(2)), false)
	d := NewDecoder(1 << 16)
	f.Fuzz(func(t *testing.T, buf []byte, frequentSampling bool) {
		checkDecode(t, d, Format{Kind: ThreadSamples, FrequentSampling: frequentSampling}, buf)
	})
}

func FuzzAllocationSamples(f *testing.F) {
	addCaptures(f, AllocationSamples, func(c *capture) { f.Add(c.buf) })
	d := NewDecoder(1 << 16)
	f.Fuzz(func(t *testing.T, buf []byte) { checkDecode(t, d, allocations, buf) })
}

func FuzzSelectedThreadSamples(f *testing.F) {
	addCaptures(f, SelectedThreadSamples, func(c *capture) { f.Add(c.buf) })
	d := NewDecoder(1 << 16)
	f.Fuzz(func(t *testing.T, buf []byte) { checkDecode(t, d, selected, buf) })
}

// kindOf returns a format that depends on a fuzzed byte.
func kindOf(b byte) Format {
	return []Format{threads, frequent, allocations, selected}[b%4]
}

// checkEncode encodes records. Consecutive records with the same time form one batch. The
// decoded result must equal want. If the encoder's buffer was too small, the decoded result
// must equal the first part of want.
func checkEncode(t *testing.T, f Format, records, want []Record) {
	t.Helper()
	e := NewEncoder(f)
	for i := range records {
		if i == 0 || records[i].UnixMilli != records[i-1].UnixMilli {
			if i > 0 {
				e.EndBatch()
			}
			e.StartBatch(records[i].UnixMilli)
		}
		e.Sample(&records[i])
	}
	if len(records) > 0 {
		e.EndBatch()
	}
	got, sum, err := decodeAll(NewDecoder(0), f, e.Bytes())
	require.NoError(t, err)
	if !e.Full() && e.Discarded() == 0 {
		require.Equal(t, want, got)
		require.Zero(t, sum.Tail)
	} else if f.Kind == ThreadSamples {
		require.Equal(t, want[:len(got)], got)
	}
}

// FuzzEncodeDecode creates records from the fuzzed bytes, and encodes
// and decodes the records.
func FuzzEncodeDecode(f *testing.F) {
	for kind := range byte(4) {
		f.Add(kind, int64(1_795_257_307_361), uint64(24), "worker", "System.Byte[]", "a\nb\na\n\n\xff\U0001F600", true, byte(3), byte(1))
	}
	f.Fuzz(func(t *testing.T, kind byte, at int64, size uint64, thread, typ, frames string, isSelected bool, samples, id byte) {
		format := kindOf(kind)
		var in, want []Record
		for i := range samples {
			r := Record{UnixMilli: at + int64(i/2), Thread: thread}
			r.TraceID[i%16], r.SpanID[i%8] = id, id
			if format.FrequentSampling {
				r.Selected = isSelected
			}
			if format.Kind == AllocationSamples {
				r.Type, r.Bytes = typ, size
			}
			if i%5 != 4 { // every fifth record has no frames
				r.Frames = strings.Split(frames, "\n")
			}
			in = append(in, r)
			r.Thread, r.Type, r.Frames = written(r.Thread), written(r.Type), nil
			for _, f := range in[len(in)-1].Frames {
				r.Frames = append(r.Frames, written(f))
			}
			want = append(want, r)
		}
		checkEncode(t, format, in, want)
	})
}

// FuzzDecodeEncodeDecode decodes arbitrary bytes, encodes the samples, and decodes the
// result.
func FuzzDecodeEncodeDecode(f *testing.F) {
	for i := range byte(4) {
		format := kindOf(i)
		addCaptures(f, format.Kind, func(c *capture) {
			if c.format == format {
				f.Add(i, c.buf)
			}
		})
	}
	f.Fuzz(func(t *testing.T, kind byte, buf []byte) {
		format := kindOf(kind)
		want, _, _ := decodeAll(NewDecoder(0), format, buf)
		checkEncode(t, format, want, want)
	})
}
