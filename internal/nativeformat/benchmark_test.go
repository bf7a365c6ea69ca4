// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat_test

import (
	"encoding/binary"
	"math"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	. "github.com/hotprofile/hotprofile/internal/nativeformat"
	. "github.com/hotprofile/hotprofile/test/nativeformattest"
)

// size returns the total size of all buffers, in bytes.
func size(all []capture) (n int64) {
	for _, c := range all {
		n += int64(len(c.buf))
	}
	return n
}

// measure runs round for the benchmark. In addition to the mean, it reports the fastest
// round as best-MB/s. The fastest round is the round that other programs disturbed least.
func measure(b *testing.B, bytes int64, round func()) {
	b.SetBytes(bytes)
	b.ReportAllocs()
	best := time.Duration(math.MaxInt64)
	for b.Loop() {
		begin := time.Now()
		round()
		best = min(best, time.Since(begin))
	}
	b.ReportMetric(float64(bytes)/best.Seconds()/1e6, "best-MB/s")
}

// BenchmarkDecode decodes all buffers of a folder per operation. The rate in B/s refers
// to the size of the buffers. In "known", all names are known from earlier buffers. In
// "first", each buffer is the first buffer of its decoder. The baseline "copy" only
// copies the buffers. The baseline "plain" decodes the buffers with encoding/binary, and
// allocates each name and sample.
func BenchmarkDecode(b *testing.B) {
	for _, folder := range []string{"crowd", "web", "allocations", "selected", "names", "idle"} {
		all := captures(b, folder)
		b.Run(folder+"/known", func(b *testing.B) {
			d := NewDecoder(0)
			samples := 0
			visit := func(*Sample) { samples++ }
			round := func() {
				for i := range all {
					if _, err := d.Decode(all[i].format, all[i].buf, visit); err != nil {
						b.Fatal(err)
					}
				}
			}
			round()
			measure(b, size(all), round)
			if samples == 0 {
				b.Fatal("no samples")
			}
		})
		b.Run(folder+"/first", func(b *testing.B) {
			measure(b, size(all), func() {
				for i := range all {
					if _, err := NewDecoder(0).Decode(all[i].format, all[i].buf, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
		b.Run(folder+"/baseline=copy", func(b *testing.B) {
			to := make([]byte, 2*MaxBuffer)
			measure(b, size(all), func() {
				for i := range all {
					copy(to, all[i].buf)
				}
			})
		})
		b.Run(folder+"/baseline=plain", func(b *testing.B) {
			measure(b, size(all), func() {
				for i := range all {
					if len(plainDecode(all[i].format, all[i].buf)) == 0 {
						b.Fatal("no samples")
					}
				}
			})
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, folder := range []string{"crowd", "web"} {
		all := captures(b, folder)
		records := make([][]Record, len(all))
		for i := range all {
			records[i] = all[i].golden.records(b)
		}
		b.Run(folder, func(b *testing.B) {
			e := NewEncoder(all[0].format)
			measure(b, size(all), func() {
				for i := range records {
					encode(e, records[i], nil)
				}
			})
		})
	}
}

// encode returns a buffer with one batch.
func encode(e *Encoder, records []Record, s *Statistics) []byte {
	e.Reset()
	start := int64(0)
	if len(records) > 0 {
		start = records[0].UnixMilli
	}
	e.StartBatch(start)
	for i := range records {
		e.Sample(&records[i])
	}
	e.EndBatch()
	if s != nil {
		e.Statistics(*s)
	}
	return e.Bytes()
}

// plainDecode is the baseline. It decodes valid buffers without checks.
func plainDecode(f Format, buf []byte) (records []Record) {
	codes := map[int16]string{}
	var start int64
	text := func() (string, bool) {
		if len(buf) < 2 {
			return "", false
		}
		n := int(binary.BigEndian.Uint16(buf))
		if len(buf) < 2+2*n {
			return "", false
		}
		units := make([]uint16, n)
		for i := range units {
			units[i] = binary.LittleEndian.Uint16(buf[2+2*i:])
		}
		buf = buf[2+2*n:]
		return string(utf16.Decode(units)), true
	}
	for len(buf) > 0 {
		op := buf[0]
		buf = buf[1:]
		var r Record
		switch op {
		case OpThreadStart:
			start = int64(binary.BigEndian.Uint64(buf[4:]))
			buf = buf[12:]
			continue
		case OpStatistics:
			buf = buf[16:]
			continue
		case OpThreadEnd, OpSelectedEnd:
			continue
		case OpSelectedStart:
			clear(codes)
			continue
		case OpThreadSample:
			r.UnixMilli = start
		case OpSelectedSample:
			r.UnixMilli = int64(binary.BigEndian.Uint64(buf))
			buf = buf[8:]
		case OpAllocation:
			clear(codes)
			r.UnixMilli, r.Bytes = int64(binary.BigEndian.Uint64(buf)), binary.BigEndian.Uint64(buf[8:])
			buf = buf[16:]
			r.Type, _ = text()
		}
		r.Thread, _ = text()
		if len(buf) < 25 {
			return records
		}
		r.TraceID, r.SpanID = [16]byte(buf), [8]byte(buf[16:])
		buf = buf[24:]
		if f.FrequentSampling {
			r.Selected, buf = buf[0] == 1, buf[1:]
		}
		for {
			if len(buf) < 2 {
				return records
			}
			code := int16(binary.BigEndian.Uint16(buf))
			buf = buf[2:]
			if code == 0 {
				break
			}
			if code < 0 {
				s, ok := text()
				if !ok {
					return records
				}
				code = -code
				codes[code] = s
			}
			r.Frames = append(r.Frames, codes[code])
		}
		records = append(records, r)
	}
	return records
}

func TestBaselineDecodesTheSame(t *testing.T) {
	for _, c := range captures(t, "*") {
		require.Equal(t, c.golden.records(t), plainDecode(c.format, c.buf), c.name)
	}
}
