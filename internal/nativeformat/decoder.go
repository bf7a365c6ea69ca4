// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

import (
	"encoding/binary"
	"fmt"
	"math"
)

// DefaultNameBytes is enough for about 30,000 names of usual length.
// Services have far fewer names.
const DefaultNameBytes = 8 << 20

// maxKeptFrames is the maximum number of frames for which a decoder keeps memory for the
// next buffer. The profiler's largest buffer does not contain more frames.
const maxKeptFrames = MaxBuffer / 2

// Decoder reads buffers of any number of services and keeps their names. Reading a
// known name needs a lookup, but no conversion and no allocation. The Decoder is not
// safe for concurrent use. Decoding a buffer takes microseconds, so one decoder
// behind a mutex serves many senders.
type Decoder struct {
	names    names
	maxNames int
	forgot   uint64

	// codes maps each defined frame code to its Name plus one, and all other codes to 0.
	// defined lists the codes to clear.
	codes   [-math.MinInt16 + 1]uint32
	defined []uint16

	sample Sample
	frames []Name
}

// NewDecoder returns a decoder that keeps names up to a total size of about
// maxNameBytes. If maxNameBytes is 0, the limit is [DefaultNameBytes].
//
// If the names exceed the limit when a buffer begins, the decoder removes all names.
// [Decoder.Forgotten] counts these removals. Within one buffer, names may exceed the
// limit by a small multiple of the buffer's size.
func NewDecoder(maxNameBytes int) *Decoder {
	if maxNameBytes <= 0 {
		maxNameBytes = DefaultNameBytes
	}
	d := &Decoder{maxNames: maxNameBytes}
	d.names.reset()
	return d
}

// Forgotten returns the number of times that the decoder removed all names. When this
// number changes, earlier Names are invalid and must be dropped. The number changes only
// at the start of Decode, before the first sample of the buffer.
func (d *Decoder) Forgotten() uint64 { return d.forgot }

// Text returns the string of a name. The string is valid UTF-8 of at most 1,536
// bytes, and may contain control characters. The string stays valid. The Name is
// valid only until names are removed.
func (d *Decoder) Text(n Name) string { return d.names.texts[n] }

// Summary describes the contents of one buffer.
type Summary struct {
	// Samples is the number of complete samples.
	Samples int
	// Incomplete is the number of samples that the end of the buffer
	// truncated. It is 0 or 1. The profiler truncates a sample when a buffer
	// is full, so this is not a fault.
	Incomplete int
	// Tail is the number of bytes of the record that the end of the buffer truncated.
	Tail int
}

// Decode calls visit for each complete sample of a buffer, in order. Decode does
// not keep buf or visit. The error is an [*Error]. After an error, the summary
// covers the part before the fault.
//
// buf may contain anything. The time is proportional to the size of buf, and the memory
// is at most a small multiple of the size.
func (d *Decoder) Decode(f Format, buf []byte, visit func(*Sample)) (Summary, error) {
	if d.names.bytes > d.maxNames {
		d.names.reset()
		d.forgot++
	}
	d.forgetCodes()
	d.sample = Sample{} // clears fields that the kind does not set
	r := reading{d: d, format: f, buf: buf, visit: visit}
	r.run()
	if cap(d.frames) > maxKeptFrames {
		d.frames = nil
	}
	d.sample.Frames = nil
	if r.fault != nil {
		return r.sum, r.fault
	}
	return r.sum, nil
}

func (d *Decoder) forgetCodes() {
	for _, c := range d.defined {
		d.codes[c] = 0
	}
	d.defined = d.defined[:0]
}

// reading is the state of decoding one buffer. The methods of reading return false at a
// fault or at the end of the buffer.
type reading struct {
	d      *Decoder
	format Format
	buf    []byte
	visit  func(*Sample)

	at     int  // next byte to read
	opcode byte // of the record being read
	open   bool // a batch has started and not ended
	sum    Summary
	fault  *Error
}

func (r *reading) run() {
	for r.at < len(r.buf) {
		begin := r.at
		r.d.sample.Offset = begin
		r.opcode = r.buf[begin]
		r.at++
		sample, ok := r.record()
		if ok {
			continue
		}
		if r.fault == nil {
			r.sum.Tail = len(r.buf) - begin
			if sample {
				r.sum.Incomplete++
			}
		}
		return
	}
}

// record reads the fields of one record, after the opcode. It reports
// whether the record is a sample.
func (r *reading) record() (sample, ok bool) {
	s := &r.d.sample
	switch r.format.Kind {
	case ThreadSamples:
		switch r.opcode {
		case OpThreadStart:
			return false, r.startBatch()
		case OpThreadSample:
			if !r.open {
				return false, r.fail(r.at-1, "start batch (0x01) before samples", int64(r.opcode))
			}
			return true, r.text(&s.Thread) && r.span() && r.selected() && r.stack()
		case OpThreadEnd:
			r.open = false
			return false, true
		case OpStatistics:
			return false, r.take(statisticsSize) != nil
		}
		return false, r.fail(r.at-1, "opcode of thread samples (0x01, 0x02, 0x06 or 0x07)", int64(r.opcode))
	case AllocationSamples:
		if r.opcode == OpAllocation {
			r.d.forgetCodes()
			return true, r.time() && r.size() && r.text(&s.Type) && r.text(&s.Thread) && r.span() && r.stack()
		}
		return false, r.fail(r.at-1, "opcode of allocation samples (0x08)", int64(r.opcode))
	case SelectedThreadSamples:
		switch r.opcode {
		case OpSelectedStart:
			r.d.forgetCodes()
			return false, true
		case OpSelectedSample:
			return true, r.time() && r.text(&s.Thread) && r.span() && r.stack()
		case OpSelectedEnd:
			return false, true
		}
		return false, r.fail(r.at-1, "opcode of selected thread samples (0x09, 0x0A or 0x0B)", int64(r.opcode))
	}
	return false, r.fail(r.at-1, "format with a known kind", int64(r.format.Kind))
}

func (r *reading) fail(offset int, expected string, found int64) bool {
	r.fault = &Error{Kind: r.format.Kind, Offset: offset, Opcode: r.opcode, Expected: expected, Found: found}
	return false
}

// take returns the next n bytes. If fewer bytes are left, it returns nil.
func (r *reading) take(n int) []byte {
	if len(r.buf)-r.at < n {
		return nil
	}
	b := r.buf[r.at : r.at+n]
	r.at += n
	return b
}

func (r *reading) startBatch() bool {
	at := r.at
	b := r.take(4)
	if b == nil {
		return false
	}
	if v := int32(binary.BigEndian.Uint32(b)); v != Version {
		return r.fail(at, "version 1", int64(v))
	}
	r.open = r.time()
	return r.open
}

func (r *reading) time() bool { return number(r, &r.d.sample.UnixMilli) }

func (r *reading) size() bool { return number(r, &r.d.sample.Bytes) }

// number reads an integer of 8 bytes.
func number[T int64 | uint64](r *reading, into *T) bool {
	b := r.take(8)
	if b == nil {
		return false
	}
	*into = T(binary.BigEndian.Uint64(b))
	return true
}

func (r *reading) span() bool {
	b := r.take(24)
	if b == nil {
		return false
	}
	r.d.sample.TraceID = [16]byte(b)
	r.d.sample.SpanID = [8]byte(b[16:])
	return true
}

func (r *reading) selected() bool {
	r.d.sample.Selected = false
	if !r.format.FrequentSampling {
		return true
	}
	b := r.take(1)
	if b == nil {
		return false
	}
	if b[0] > 1 {
		return r.fail(r.at-1, "0 or 1, whether selected for frequent sampling", int64(b[0]))
	}
	r.d.sample.Selected = b[0] == 1
	return true
}

// text reads a string.
func (r *reading) text(into *Name) bool {
	at := r.at
	b := r.take(2)
	if b == nil {
		return false
	}
	units := int16(binary.BigEndian.Uint16(b))
	if uint16(units) > MaxUnits {
		return r.fail(at, "string of 0 to 512 UTF-16 units", int64(units))
	}
	raw := r.take(2 * int(units))
	if raw == nil {
		return false
	}
	*into = r.d.names.intern(raw)
	return true
}

// stack reads frames. When all frames are complete, it calls visit with the sample. Most
// of a large buffer consists of codes that are already defined, which reading.known reads
// faster.
func (r *reading) stack() bool {
	d := r.d
	n := 0
	for {
		n = r.known(n)
		at := r.at
		b := r.take(2)
		if b == nil {
			return false
		}
		code := int(int16(binary.BigEndian.Uint16(b)))
		if code == 0 {
			break
		}
		if code > 0 {
			return r.fail(at, "frame code defined before", int64(code))
		}
		if !r.text(&d.frames[n]) {
			return false
		}
		if d.codes[-code] == 0 {
			d.defined = append(d.defined, uint16(-code))
		}
		d.codes[-code] = uint32(d.frames[n]) + 1
		n++
	}
	d.sample.Frames = d.frames[:n]
	r.sum.Samples++
	if r.visit != nil {
		r.visit(&d.sample)
	}
	return true
}

// known reads defined codes into d.frames[n:]. It stops at the first code that is not
// defined, and leaves room for one more frame.
func (r *reading) known(n int) int {
	d, frames, rest := r.d, r.d.frames, r.buf[r.at:]
	for {
		if n == len(frames) {
			// frames grows exponentially, but not beyond the number of frames that fit in the rest
			// of the buffer.
			frames = append(frames, make([]Name, min(n+64, len(rest)/2+1))...)
		}
		if len(rest) < 2 {
			break
		}
		code := binary.BigEndian.Uint16(rest)
		if code > math.MaxInt16 {
			break
		}
		name := d.codes[code] // 0 for code 0
		if name == 0 {
			break
		}
		frames[n] = Name(name - 1)
		n++
		rest = rest[2:]
	}
	d.frames, r.at = frames, len(r.buf)-len(rest)
	return n
}

// Error is a fault that makes the rest of a buffer unreadable. Samples before the
// fault are valid. A buffer that ends early is not an error. See [Summary.Tail].
type Error struct {
	// Kind is the kind of buffer that the decoder expected.
	Kind Kind
	// Offset is the offset of the invalid field.
	Offset int
	// Opcode is the opcode of the record that contains the invalid field. It may
	// be the invalid field itself.
	Opcode byte
	// Expected describes the allowed values.
	Expected string
	// Found is the value of the invalid field.
	Found int64
}

// Error returns the offset, the found value and the allowed values.
func (e *Error) Error() string {
	return fmt.Sprintf("buffer is not readable as %v from offset %d, opcode 0x%02X: expected %s, found %d",
		e.Kind, e.Offset, e.Opcode, e.Expected, e.Found)
}
