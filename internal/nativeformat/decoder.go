// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

import (
	"encoding/binary"
	"math"
)

// DefaultNameBytes is enough for some 30,000 names of usual length: several
// times what one service shows in its life.
const DefaultNameBytes = 8 << 20

// maxKeptFrames is the most frames whose memory a decoder keeps for the next
// buffer: what the writer's largest buffer can hold.
const maxKeptFrames = MaxBuffer / 2

// Decoder reads buffers and keeps their names from one to the next, whatever
// service they come from: a name seen before costs a look-up, neither a
// conversion nor an allocation. Not safe for concurrent use; a buffer takes
// microseconds, so that one decoder behind a mutex serves many senders.
type Decoder struct {
	names    names
	maxNames int
	forgot   uint64

	// codes holds, by frame code, the Name it stands for plus one; 0 where it
	// stands for nothing. defined lists the codes to forget.
	codes   [-math.MinInt16 + 1]uint32
	defined []uint16

	sample Sample
	frames []Name
}

// NewDecoder returns a decoder that keeps names of about maxNameBytes in all; 0
// means [DefaultNameBytes].
//
// The policy at the bound: a buffer that begins with more than that makes the
// decoder forget all names and learn them anew, which [NameStats.Forgotten]
// counts. Within one buffer names may exceed the bound, by a small multiple of
// that buffer's size.
func NewDecoder(maxNameBytes int) *Decoder {
	if maxNameBytes <= 0 {
		maxNameBytes = DefaultNameBytes
	}
	return &Decoder{names: newNames(), maxNames: maxNameBytes}
}

// NameStats is what a decoder holds of names.
type NameStats struct {
	// Held is the names held, the two constants included: every Name is below it.
	Held int
	// Bytes is what they take, Limit the bound.
	Bytes, Limit int
	// Forgotten is how often all names were forgotten at the bound. Names given
	// before such a time stand for nothing now: whoever keeps something by Name
	// drops it when this number has changed. It changes only at the beginning of
	// Decode, before the first sample of the buffer.
	Forgotten uint64
}

// Names says what the decoder holds of names.
func (d *Decoder) Names() NameStats {
	return NameStats{Held: len(d.names.entries), Bytes: d.names.bytes, Limit: d.maxNames, Forgotten: d.forgot}
}

// Text is the string that a name stands for, valid UTF-8 of at most 1,536
// bytes with any control characters the service put there. The string stays
// good for ever, the Name until the names are forgotten.
func (d *Decoder) Text(n Name) string { return d.names.entries[n].text() }

// Record fills r with a sample and its names as strings.
func (d *Decoder) Record(s *Sample, r *Record) {
	r.UnixMilli, r.Selected, r.Bytes = s.UnixMilli, s.Selected, s.Bytes
	r.TraceID, r.SpanID = s.TraceID, s.SpanID
	r.Thread, r.Type = d.Text(s.Thread), d.Text(s.Type)
	r.Frames = r.Frames[:0]
	for _, f := range s.Frames {
		r.Frames = append(r.Frames, d.Text(f))
	}
}

// Summary is what one buffer held.
type Summary struct {
	// Samples is the complete samples, Frameless those of them without frames.
	Samples, Frameless int
	// Batches is the batches begun; allocation samples have none.
	Batches int
	// Incomplete is the samples that the end of the buffer cut, 0 or 1. The writer
	// does that where a buffer is full: no fault of the sender.
	Incomplete int
	// Tail is the bytes of the record, of any opcode, that the end of the buffer
	// cut.
	Tail int
	// Statistics is what the batch says of itself (the last one, were there
	// several), HasStatistics whether it does.
	Statistics    Statistics
	HasStatistics bool
}

// Decode gives each complete sample of a buffer to visit, in order, and says what
// the buffer held. It keeps neither buf nor visit. The error is an [*Error]; the
// summary then is of what stood before the fault.
//
// Any bytes may be given. Decode takes time in proportion to them, and memory at
// most a small multiple of them.
func (d *Decoder) Decode(f Format, buf []byte, visit func(*Sample)) (Summary, error) {
	if d.names.bytes > d.maxNames {
		d.names.reset()
		d.forgot++
	}
	d.forgetCodes()
	d.sample = Sample{} // fields that this kind does not have
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

// reading is one buffer being read. Its methods report false where reading ends,
// either at a fault or because the buffer does.
type reading struct {
	d      *Decoder
	format Format
	buf    []byte
	visit  func(*Sample)

	at     int  // next byte to read
	opcode byte // of the record being read
	open   bool // a batch is begun and not ended
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

// record reads one record after its opcode and says whether it is a sample.
func (r *reading) record() (sample, ok bool) {
	s := &r.d.sample
	switch r.format.Kind {
	case ThreadSamples:
		switch r.opcode {
		case opThreadStart:
			return false, r.startBatch()
		case opThreadSample:
			if !r.open {
				return false, r.fail(r.at-1, "start batch (0x01) before samples", int64(r.opcode))
			}
			return true, r.text(&s.Thread) && r.span() && r.selected() && r.stack()
		case opThreadEnd:
			r.open = false
			return false, true
		case opStatistics:
			return false, r.statistics()
		}
		return false, r.fail(r.at-1, "opcode of thread samples (0x01, 0x02, 0x06 or 0x07)", int64(r.opcode))
	case AllocationSamples:
		if r.opcode == opAllocation {
			r.d.forgetCodes()
			return true, r.time() && r.size() && r.text(&s.Type) && r.text(&s.Thread) && r.span() && r.stack()
		}
		return false, r.fail(r.at-1, "opcode of allocation samples (0x08)", int64(r.opcode))
	case SelectedThreadSamples:
		switch r.opcode {
		case opSelectedStart:
			r.d.forgetCodes()
			r.sum.Batches++
			return false, true
		case opSelectedSample:
			return true, r.time() && r.text(&s.Thread) && r.span() && r.stack()
		case opSelectedEnd:
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

// take gives the next n bytes, or nil where the buffer ends before.
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
	if !r.time() {
		return false
	}
	r.open = true
	r.sum.Batches++
	return true
}

func (r *reading) statistics() bool {
	b := r.take(16)
	if b == nil {
		return false
	}
	r.sum.Statistics = Statistics{
		SuspendedMicroseconds: int32(binary.BigEndian.Uint32(b)),
		Threads:               int32(binary.BigEndian.Uint32(b[4:])),
		Frames:                int32(binary.BigEndian.Uint32(b[8:])),
		NameCacheMisses:       int32(binary.BigEndian.Uint32(b[12:])),
	}
	r.sum.HasStatistics = true
	return true
}

func (r *reading) time() bool {
	b := r.take(8)
	if b == nil {
		return false
	}
	r.d.sample.UnixMilli = int64(binary.BigEndian.Uint64(b))
	return true
}

func (r *reading) size() bool {
	b := r.take(8)
	if b == nil {
		return false
	}
	r.d.sample.Bytes = binary.BigEndian.Uint64(b)
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

// stack reads frames and, where they are complete, hands over the sample. Most of
// a large buffer is codes of names defined before: known reads those.
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
	if n == 0 {
		r.sum.Frameless++
	}
	if r.visit != nil {
		r.visit(&d.sample)
	}
	return true
}

// known reads codes that stand for a name into d.frames[n:], up to the first that
// does not, and leaves room there for one frame more.
func (r *reading) known(n int) int {
	d, frames, rest := r.d, r.d.frames, r.buf[r.at:]
	for {
		if n == len(frames) {
			// Twice the room, and never more than the rest of the buffer can fill.
			frames = append(frames, make([]Name, min(n+64, len(rest)/2+1))...)
		}
		if len(rest) < 2 {
			break
		}
		code := binary.BigEndian.Uint16(rest)
		if code > math.MaxInt16 {
			break
		}
		name := d.codes[code] // of code 0 it is 0
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
