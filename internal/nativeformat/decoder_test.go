// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	. "github.com/hotprofile/hotprofile/internal/nativeformat"
	. "github.com/hotprofile/hotprofile/test/nativeformattest"
)

// craft builds valid and invalid buffers field by field.
type craft []byte

func (c craft) byte(b ...byte) craft        { return append(c, b...) }
func (c craft) short(v int16) craft         { return binary.BigEndian.AppendUint16(c, uint16(v)) }
func (c craft) int(v int32) craft           { return binary.BigEndian.AppendUint32(c, uint32(v)) }
func (c craft) long(v int64) craft          { return binary.BigEndian.AppendUint64(c, uint64(v)) }
func (c craft) batch() craft                { return c.byte(OpThreadStart).int(1).long(1000) }
func (c craft) span() craft                 { return c.long(1).long(2).long(3) }
func (c craft) thread(nm string) craft      { return c.byte(OpThreadSample).str(nm).span() }
func (c craft) code(v int16) craft          { return c.short(v) }
func (c craft) def(v int16, s string) craft { return c.short(v).str(s) }
func (c craft) end() craft                  { return c.short(0) }

func (c craft) alloc(ms int64, size uint64, typ, thread string) craft {
	return c.byte(OpAllocation).long(ms).long(int64(size)).str(typ).str(thread).span()
}

func (c craft) sel(ms int64, thread string) craft {
	return c.byte(OpSelectedSample).long(ms).str(thread).span()
}

// str writes an ASCII string.
func (c craft) str(s string) craft {
	units := make([]uint16, len(s))
	for i := range units {
		units[i] = uint16(s[i])
	}
	return c.units(units...)
}

func (c craft) units(units ...uint16) craft {
	c = c.short(int16(len(units)))
	for _, u := range units {
		c = binary.LittleEndian.AppendUint16(c, u)
	}
	return c
}

var (
	threads     = Format{Kind: ThreadSamples}
	frequent    = Format{Kind: ThreadSamples, FrequentSampling: true}
	allocations = Format{Kind: AllocationSamples}
	selected    = Format{Kind: SelectedThreadSamples}
)

func TestEveryFieldIsDecoded(t *testing.T) {
	trace, span := [16]byte{7: 1, 15: 2}, [8]byte{7: 3}
	for name, tt := range map[string]struct {
		format Format
		buf    craft
		want   []Record
	}{
		"empty buffer": {format: threads},
		"thread sample": {
			format: threads,
			buf:    craft{}.batch().thread("worker").def(-1, "a").def(-2, "b").code(1).end(),
			want:   []Record{{UnixMilli: 1000, Thread: "worker", TraceID: trace, SpanID: span, Frames: []string{"a", "b", "a"}}},
		},
		"codes hold across thread samples and batches": {
			format: threads,
			buf: craft{}.batch().thread("x").def(-1, "a").end().byte(OpThreadEnd).
				byte(OpThreadStart).int(1).long(-5).thread("y").code(1).end(),
			want: []Record{
				{UnixMilli: 1000, Thread: "x", TraceID: trace, SpanID: span, Frames: []string{"a"}},
				{UnixMilli: -5, Thread: "y", TraceID: trace, SpanID: span, Frames: []string{"a"}},
			},
		},
		"selection byte": {
			format: frequent,
			buf:    craft{}.batch().thread("x").byte(1).end().thread("y").byte(0).def(-1, "a").end(),
			want: []Record{
				{UnixMilli: 1000, Thread: "x", Selected: true, TraceID: trace, SpanID: span},
				{UnixMilli: 1000, Thread: "y", TraceID: trace, SpanID: span, Frames: []string{"a"}},
			},
		},
		"a redefined code stands for the new name": {
			format: threads,
			buf:    craft{}.batch().thread("x").def(-9, "a").code(9).def(-9, "b").code(9).end(),
			want:   []Record{{UnixMilli: 1000, Thread: "x", TraceID: trace, SpanID: span, Frames: []string{"a", "a", "b", "b"}}},
		},
		"the lowest and the highest codes": {
			format: threads,
			buf:    craft{}.batch().thread("x").def(math.MinInt16, "low").def(-math.MaxInt16, "a").code(math.MaxInt16).end(),
			want:   []Record{{UnixMilli: 1000, Thread: "x", TraceID: trace, SpanID: span, Frames: []string{"low", "a", "a"}}},
		},
		"empty names": {
			format: threads,
			buf:    craft{}.batch().thread("").def(-1, "").code(1).end(),
			want:   []Record{{UnixMilli: 1000, TraceID: trace, SpanID: span, Frames: []string{"", ""}}},
		},
		"allocation": {
			format: allocations,
			buf:    craft{}.alloc(77, math.MaxUint64, "T", "x").def(-1, "a").end(),
			want:   []Record{{UnixMilli: 77, Bytes: math.MaxUint64, Type: "T", Thread: "x", TraceID: trace, SpanID: span, Frames: []string{"a"}}},
		},
		"selected, outside a batch too": {
			format: selected,
			buf:    craft{}.sel(5, "x").def(-1, "a").end().byte(OpSelectedStart).sel(6, "y").def(-1, "b").end().byte(OpSelectedEnd),
			want: []Record{
				{UnixMilli: 5, Thread: "x", TraceID: trace, SpanID: span, Frames: []string{"a"}},
				{UnixMilli: 6, Thread: "y", TraceID: trace, SpanID: span, Frames: []string{"b"}},
			},
		},
		"NUL, newline and quotes": {
			format: threads,
			buf:    craft{}.batch().thread("a\x00b\n\"").end(),
			want:   []Record{{UnixMilli: 1000, Thread: "a\x00b\n\"", TraceID: trace, SpanID: span}},
		},
		"surrogates, paired, alone and the wrong way round": {
			format: threads,
			buf: craft{}.batch().byte(OpThreadSample).units(0xD83D, 0xDE00, 'a', 0xD83D).span().
				short(-1).units(0xDE00, 0xD83D, 'b').short(-2).units(0xD83D, 0xD83D, 0xDE00).end(),
			want: []Record{{
				UnixMilli: 1000, Thread: "\U0001F600a\uFFFD", TraceID: trace, SpanID: span,
				Frames: []string{"\uFFFD\uFFFDb", "\uFFFD\U0001F600"},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDecoder(0)
			for range 2 { // first with unknown names, then with known names
				got, sum, err := decodeAll(d, tt.format, tt.buf)
				require.NoError(t, err)
				require.Equal(t, tt.want, got)
				require.Equal(t, len(tt.want), sum.Samples)
				require.Zero(t, sum.Tail)
			}
		})
	}
}

func TestSummary(t *testing.T) {
	buf := craft{}.batch().thread("x").end().thread("y").def(-1, "a").end().byte(OpThreadEnd).
		byte(OpStatistics).int(150).int(2).int(1).int(math.MinInt32)
	sum, err := NewDecoder(0).Decode(threads, buf, nil)
	require.NoError(t, err)
	require.Equal(t, Summary{Samples: 2}, sum)

	for cut, want := range map[int]Summary{
		5:  {Tail: 5},                 // in the start of the batch
		13: {},                        // after the start of the batch
		14: {Tail: 1, Incomplete: 1},  // in a sample
		42: {Tail: 29, Incomplete: 1}, // before the last byte of the sample
		44: {Samples: 1},
		83: {Samples: 2, Tail: 1}, // in the statistics, after the end of the batch
	} {
		sum, err := NewDecoder(0).Decode(threads, buf[:cut], nil)
		require.NoError(t, err, "cut at %d", cut)
		require.Equal(t, want, sum, "cut at %d", cut)
	}
}

func TestErrorHasOffsetOpcodeAndExpectedValue(t *testing.T) {
	const size = 50
	good := slices.Clip(craft{}.batch().thread("x").def(-1, "a").end())
	require.Len(t, good, size)
	for name, tt := range map[string]struct {
		format  Format
		buf     craft
		samples int
		want    Error
		says    string
	}{
		"version 2": {
			format: threads, buf: craft{}.byte(OpThreadStart).int(2).long(0),
			want: Error{Offset: 1, Opcode: 1, Expected: "version 1", Found: 2},
			says: "buffer is not readable as thread samples from offset 1, opcode 0x01: expected version 1, found 2",
		},
		"unknown opcode": {
			format: threads, buf: good.byte(0x03), samples: 1,
			want: Error{Offset: size, Opcode: 3, Expected: "opcode of thread samples (0x01, 0x02, 0x06 or 0x07)", Found: 3},
		},
		"sample before its batch": {
			format: threads, buf: good[13:],
			want: Error{Offset: 0, Opcode: 2, Expected: "start batch (0x01) before samples", Found: 2},
		},
		"sample after its batch": {
			format: threads, buf: append(good.byte(OpThreadEnd), good[13:]...), samples: 1,
			want: Error{Offset: size + 1, Opcode: 2, Expected: "start batch (0x01) before samples", Found: 2},
		},
		"undefined code": {
			format: threads, buf: good.thread("x").code(1).code(2).end(), samples: 1,
			want: Error{Offset: size + 31, Opcode: 2, Expected: "frame code defined before", Found: 2},
		},
		"negative length of a thread name": {
			format: threads, buf: good.byte(OpThreadSample).short(-1), samples: 1,
			want: Error{Offset: size + 1, Opcode: 2, Expected: "string of 0 to 512 UTF-16 units", Found: -1},
		},
		"huge length of a function name": {
			format: threads, buf: good.thread("x").short(-2).short(math.MaxInt16), samples: 1,
			want: Error{Offset: size + 31, Opcode: 2, Expected: "string of 0 to 512 UTF-16 units", Found: math.MaxInt16},
		},
		"one unit too many": {
			format: threads, buf: good.byte(OpThreadSample).str(strings.Repeat("n", 513)).span(), samples: 1,
			want: Error{Offset: size + 1, Opcode: 2, Expected: "string of 0 to 512 UTF-16 units", Found: 513},
		},
		"selection byte that is neither 0 nor 1": {
			format: frequent, buf: good,
			want: Error{Offset: 13 + 29, Opcode: 2, Expected: "0 or 1, whether selected for frequent sampling", Found: 0xFF},
		},
		"codes of one allocation do not hold in the next": {
			format: allocations, buf: craft{}.alloc(1, 1, "T", "x").def(-1, "a").end().alloc(1, 1, "T", "x").code(1).end(), samples: 1,
			want: Error{Offset: 106, Opcode: 8, Expected: "frame code defined before", Found: 1},
		},
		"codes of one selected batch do not hold in the next": {
			format: selected, buf: craft{}.byte(OpSelectedStart).sel(1, "x").def(-1, "a").end().byte(OpSelectedStart).sel(1, "x").code(1).end(), samples: 1,
			want: Error{Offset: 84, Opcode: 9, Expected: "frame code defined before", Found: 1},
		},
		"allocation length": {
			format: allocations, buf: craft{}.byte(OpAllocation).long(1).long(1).short(-32768),
			want: Error{Offset: 17, Opcode: 8, Expected: "string of 0 to 512 UTF-16 units", Found: -32768},
		},
		"unknown kind of buffer": {
			format: Format{Kind: 9}, buf: good,
			want: Error{Offset: 0, Opcode: 1, Expected: "format with a known kind", Found: 9},
			says: "buffer is not readable as kind 9 from offset 0, opcode 0x01: expected format with a known kind, found 9",
		},
	} {
		t.Run(name, func(t *testing.T) {
			records, sum, err := decodeAll(NewDecoder(0), tt.format, tt.buf)
			var got *Error
			require.True(t, errors.As(err, &got))
			tt.want.Kind = tt.format.Kind
			require.Equal(t, tt.want, *got)
			require.Len(t, records, tt.samples, "samples before the fault are valid")
			require.Equal(t, tt.samples, sum.Samples)
			require.Zero(t, sum.Incomplete)
			require.Zero(t, sum.Tail)
			if tt.says != "" {
				require.EqualError(t, err, tt.says)
			}
		})
	}
}

func TestFaultDoesNotAffectTheNextBuffer(t *testing.T) {
	d := NewDecoder(0)
	_, err := d.Decode(threads, craft{}.batch().thread("x").def(-5, "a").code(6), nil)
	require.Error(t, err)
	_, err = d.Decode(threads, craft{}.batch().thread("x").code(5).end(), nil)
	require.Error(t, err, "a code of an earlier buffer")
	for _, c := range captures(t, "*") {
		c.requireDecoded(t, d)
	}
}

func TestBufferOfAnotherKindFailsAtItsFirstByte(t *testing.T) {
	for _, c := range captures(t, "*") {
		for _, kind := range []Kind{ThreadSamples, AllocationSamples, SelectedThreadSamples} {
			if kind == c.format.Kind {
				continue
			}
			records, sum, err := decodeAll(NewDecoder(0), Format{Kind: kind}, c.buf)
			var fault *Error
			require.True(t, errors.As(err, &fault), "%s as %v", c.name, kind)
			require.Zero(t, fault.Offset)
			require.Equal(t, c.buf[0], fault.Opcode)
			require.Empty(t, records)
			require.Zero(t, sum)
		}
	}
}

func TestWrongFrequentSamplingOptionIsDetected(t *testing.T) {
	for _, c := range captures(t, "*") {
		if c.format.Kind != ThreadSamples {
			continue
		}
		f := c.format
		f.FrequentSampling = !f.FrequentSampling
		_, _, err := decodeAll(NewDecoder(0), f, c.buf)
		require.Error(t, err, c.name)
	}
}

// sameSample compares two samples by the numbers of their names. Both samples
// must come from the same decoder.
func sameSample(a, b *Sample) bool {
	frames := slices.Equal(a.Frames, b.Frames)
	x, y := *a, *b
	x.Frames, y.Frames = nil, nil
	return frames && fmt.Sprint(x) == fmt.Sprint(y)
}

// whole decodes a valid buffer into samples. The samples stay valid.
func whole(t *testing.T, d *Decoder, c *capture) []Sample {
	t.Helper()
	var all []Sample
	_, err := d.Decode(c.format, c.buf, func(s *Sample) {
		kept := *s
		kept.Frames = slices.Clone(s.Frames)
		all = append(all, kept)
	})
	require.NoError(t, err)
	return all
}

func TestBulkEveryPrefixDecodesToItsCompleteSamples(t *testing.T) {
	for _, c := range captures(t, "*") {
		d := NewDecoder(0)
		all := whole(t, d, &c)
		step := 1
		switch { // prime steps, so that cuts occur at every place in a record
		case raceDetector && len(c.buf) > 1<<15:
			step = 997
		case raceDetector || len(c.buf) > 1<<15:
			step = 61
		}
		last := 0
		for n := 0; n <= len(c.buf); n++ {
			if n%step != 0 && n != len(c.buf) {
				continue
			}
			i := 0
			sum, err := d.Decode(c.format, c.buf[:n], func(s *Sample) {
				if i >= len(all) || s.Thread != all[i].Thread || s.UnixMilli != all[i].UnixMilli || s.SpanID != all[i].SpanID ||
					!slices.Equal(s.Frames, all[i].Frames) {
					t.Fatalf("%s, %d bytes: sample %d differs", c.name, n, i)
				}
				i++
			})
			if err != nil || sum.Samples != i || i < last || sum.Incomplete > 1 || sum.Tail > n || (sum.Incomplete == 1 && sum.Tail == 0) {
				t.Fatalf("%s, %d bytes: %+v, %v", c.name, n, sum, err)
			}
			// Everything before the tail is complete. Decoding without the tail must
			// therefore have the same result.
			again, err := d.Decode(c.format, c.buf[:n-sum.Tail], nil)
			if err != nil || again.Samples != i || again.Tail != 0 || again.Incomplete != 0 {
				t.Fatalf("%s, %d bytes less a tail of %d: %+v, %v", c.name, n, sum.Tail, again, err)
			}
			last = i
		}
		require.Equal(t, len(all), last)
	}
}

func TestBulkChangedByteDoesNotAffectSamplesBeforeIt(t *testing.T) {
	for _, name := range []string{"idle/001.threads.bin", "names/003.allocations.bin", "names/005.allocations.bin", "selected/041.selected.bin", "selected/042.threads.bin"} {
		folder, file, _ := strings.Cut(name, "/")
		all := captures(t, folder)
		c := all[slices.IndexFunc(all, func(c capture) bool { return strings.HasSuffix(c.name, file) })]
		d := NewDecoder(1 << 30)
		want := whole(t, d, &c)
		ends := sampleEnds(t, d, &c)
		for i := range want[1:] { // only batches occur between two samples
			require.LessOrEqual(t, ends[i], want[i+1].Offset)
			require.LessOrEqual(t, want[i+1].Offset-ends[i], 2)
		}
		buf := slices.Clone(c.buf)
		errs, values := 0, []byte{0xFF, 0x80, 0x40, 0x20, 0x10, 0x08, 0x04, 0x02, 0x01}
		if raceDetector {
			values = values[:1]
		}
		for at := range buf {
			before := 0
			for before < len(ends) && ends[before] <= at {
				before++
			}
			for _, flip := range values {
				buf[at] ^= flip
				i := 0
				_, err := d.Decode(c.format, buf, func(s *Sample) {
					if i < before && !sameSample(s, &want[i]) {
						t.Fatalf("%s: byte %d changed by %#x: sample %d, which ends at %d, differs", c.name, at, flip, i, ends[i])
					}
					i++
				})
				if i < before {
					t.Fatalf("%s: byte %d changed by %#x: %d samples, %d stand before it", c.name, at, flip, i, before)
				}
				if err != nil {
					errs++
					var fault *Error
					if !errors.As(err, &fault) || fault.Offset > len(buf) || fault.Offset < 0 {
						t.Fatalf("%v", err)
					}
				}
				buf[at] ^= flip
			}
		}
		require.Positive(t, errs)
		require.Equal(t, c.buf, buf)
	}
}

// sampleEnds returns the end of each sample of a valid buffer.
func sampleEnds(t *testing.T, d *Decoder, c *capture) (ends []int) {
	t.Helper()
	for n := range len(c.buf) + 1 {
		sum, err := d.Decode(c.format, c.buf[:n], nil)
		require.NoError(t, err)
		if sum.Samples > len(ends) {
			ends = append(ends, n)
		}
	}
	return ends
}

func TestBuffersOfKnownNamesAllocateNothing(t *testing.T) {
	for _, c := range captures(t, "*") {
		d := NewDecoder(0)
		seen := 0
		visit := func(s *Sample) { seen += len(s.Frames) }
		decode := func() {
			if _, err := d.Decode(c.format, c.buf, visit); err != nil {
				t.Fatal(err)
			}
		}
		require.Zero(t, testing.AllocsPerRun(10, decode), c.name)
		require.Positive(t, seen)
	}
}

func TestNamesAreDenseEqualAndKept(t *testing.T) {
	d := NewDecoder(0)
	require.Equal(t, ExportThreadName, d.Text(ExportThread))
	require.Empty(t, d.Text(NoName))
	require.Equal(t, 2, d.Held().Names)
	var first []Name
	buf := craft{}.batch().thread(ExportThreadName).def(-1, "a").def(-2, "b").def(-3, "a").def(-4, ExportThreadName).end()
	_, err := d.Decode(threads, buf, func(s *Sample) {
		require.Equal(t, ExportThread, s.Thread)
		require.Equal(t, NoName, s.Type)
		first = slices.Clone(s.Frames)
	})
	require.NoError(t, err)
	require.Equal(t, []Name{2, 3, 2, ExportThread}, first)
	_, err = d.Decode(allocations, craft{}.alloc(1, 1, "b", "").def(-1, "a").end(), func(s *Sample) {
		require.Equal(t, Name(3), s.Type)
		require.Equal(t, NoName, s.Thread)
		require.Equal(t, []Name{2}, s.Frames)
	})
	require.NoError(t, err)
	require.Equal(t, 4, d.Held().Names)
}

func TestNamesAtTheBoundAreRemovedAndCounted(t *testing.T) {
	const limit = 64 << 10
	d := NewDecoder(limit)
	most := 0
	for i := range 5000 {
		name := fmt.Sprintf("Some.Namespace.Type.Method%d()", i)
		was, forgotten := d.Held().NameBytes, d.Forgotten()
		sum, err := d.Decode(threads, craft{}.batch().thread("x").def(-1, name).code(1).end(), func(s *Sample) {
			require.Equal(t, name, d.Text(s.Frames[0]))
			require.Equal(t, name, d.Text(s.Frames[1]))
			require.Equal(t, "x", d.Text(s.Thread))
		})
		require.NoError(t, err)
		require.Equal(t, 1, sum.Samples)
		most = max(most, d.Held().NameBytes)
		require.Equal(t, was > limit, d.Forgotten() > forgotten)
		require.Equal(t, ExportThreadName, d.Text(ExportThread))
	}
	require.Greater(t, d.Forgotten(), uint64(5))
	require.Greater(t, most, limit)
	require.Less(t, most, limit+512, "exceeds the bound by the names of one buffer at most")
}

func TestTextsStayValidWhenNamesAreRemoved(t *testing.T) {
	d := NewDecoder(1)
	var kept string
	_, err := d.Decode(threads, craft{}.batch().thread("kept").end(), func(s *Sample) { kept = d.Text(s.Thread) })
	require.NoError(t, err)
	for i := range 100 {
		_, err := d.Decode(threads, craft{}.batch().thread(fmt.Sprint("other", i)).end(), nil)
		require.NoError(t, err)
	}
	runtime.GC()
	require.Equal(t, "kept", kept)
}

// TestBulkMemoryIsASmallMultipleOfTheInput checks that the allocated memory is proportional
// to the input. Short names need up to 32 times their length. Other names and frames
// need up to 8 times their length.
func TestBulkMemoryIsASmallMultipleOfTheInput(t *testing.T) {
	const size = 1 << 20
	shortNames := craft{}.batch().thread("x")
	for i := 0; len(shortNames) < size; i++ {
		shortNames = shortNames.short(-1).units(uint16(i), uint16(1+i>>16))
	}
	codes := craft{}.batch().thread("x").def(-1, "a")
	for len(codes) < size {
		codes = codes.code(1)
	}
	wideNames := craft{}.batch().thread("x") // each unit is three bytes of UTF-8
	for i := 0; len(wideNames) < size; i++ {
		units := slices.Repeat([]uint16{0xD800}, 512)
		units[0] = uint16(i)
		wideNames = wideNames.short(-1).units(units...)
	}
	highCodes := craft{}
	for len(highCodes) < size {
		highCodes = highCodes.alloc(1, 1, "", "").def(math.MinInt16, "").end()
	}
	lengths := craft{}
	for len(lengths) < size {
		lengths = lengths.batch().byte(OpThreadSample).short(512)
	}
	for name, tt := range map[string]struct {
		format Format
		buf    craft
		times  uint64
	}{
		"short names": {threads, shortNames, 32},
		"wide names":  {threads, wideNames, 8},
		"codes":       {threads, codes, 8},
		"high codes":  {allocations, highCodes, 1},
		"long string": {threads, lengths, 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDecoder(0)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _ = d.Decode(tt.format, tt.buf, nil)
			runtime.ReadMemStats(&after)
			allocated := after.TotalAlloc - before.TotalAlloc // includes the garbage of growing slices
			t.Logf("%.2f times", float64(allocated)/float64(len(tt.buf)))
			require.LessOrEqual(t, allocated, tt.times*uint64(len(tt.buf)))
			held := d.Held()
			require.LessOrEqual(t, held.Frames, 2*MaxKeptFrames, "frames kept for the next buffer")
			require.LessOrEqual(t, held.Defined, 2*held.Codes, "a code that is defined repeatedly is listed once")
		})
	}
}

func TestMoreNamesThanCodes(t *testing.T) {
	var r Record
	for i := range MaxCode + 1 {
		r.Frames = append(r.Frames, fmt.Sprint(i))
	}
	r.Frames = append(r.Frames, r.Frames[MaxCode-2:]...) // the last name that is remembered and two names that are not
	e := NewEncoder(threads)
	buf := encode(e, []Record{r}, nil)
	require.False(t, e.Full())
	require.Equal(t, 4, strings.Count(string(buf), "\xd8\xf0\x00\x05\x31\x00\x30\x00\x30\x00\x30\x00")+
		strings.Count(string(buf), "\xd8\xf0\x00\x04\x39\x00\x39\x00\x39\x00\x39\x00"), "definitions of code 10,000: %s", hex.EncodeToString(buf[len(buf)-64:]))
	got, sum, err := decodeAll(NewDecoder(0), threads, buf)
	require.NoError(t, err)
	require.Equal(t, Summary{Samples: 1}, sum)
	require.Equal(t, []Record{r}, got)
}

func TestBulkTextIsValidUTF8(t *testing.T) {
	d := NewDecoder(0)
	for unit := range 0x1_0000 {
		_, err := d.Decode(threads, craft{}.batch().byte(OpThreadSample).units(uint16(unit), 0xDC00, uint16(unit)).span().end(), func(s *Sample) {
			require.True(t, utf8.ValidString(d.Text(s.Thread)), "unit %#x", unit)
		})
		require.NoError(t, err)
	}
}
