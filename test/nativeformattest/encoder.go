// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package nativeformattest writes buffers in the format of the .NET profiler.
// Tests and load generators use it.
package nativeformattest

import (
	"encoding/binary"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/hotprofile/hotprofile/internal/nativeformat"
)

// Encoder writes buffers with the same limits as the profiler. It truncates strings at
// [nativeformat.MaxUnits], defines codes up to [nativeformat.MaxCode], and stops at
// [nativeformat.MaxBuffer] bytes. The size is checked before each field of thread samples,
// for each allocation sample and for each batch of selected samples. An Encoder is not safe
// for concurrent use.
type Encoder struct {
	format    nativeformat.Format
	buf       []byte
	codes     map[string]int16
	batch     int // offset of the open batch of selected samples
	discarded int
}

// NewEncoder returns an encoder with an empty buffer.
func NewEncoder(f nativeformat.Format) *Encoder {
	return &Encoder{format: f, codes: make(map[string]int16)}
}

// Bytes returns the current contents of the buffer. The result is valid until Reset.
func (e *Encoder) Bytes() []byte { return e.buf }

// Discarded returns the number of allocation samples and batches of selected samples that
// were dropped because the buffer was full.
func (e *Encoder) Discarded() int { return e.discarded }

// Full reports whether the buffer has MaxBuffer bytes or more.
func (e *Encoder) Full() bool { return len(e.buf) >= nativeformat.MaxBuffer }

// Reset starts a new buffer and reuses the memory.
func (e *Encoder) Reset() {
	e.buf = e.buf[:0]
	e.batch, e.discarded = 0, 0
	clear(e.codes)
}

// StartBatch starts a batch. It does nothing for allocation
// samples, which have no batches.
func (e *Encoder) StartBatch(unixMilli int64) {
	switch e.format.Kind {
	case nativeformat.ThreadSamples:
		if !e.Full() {
			e.buf = append(e.buf, nativeformat.OpThreadStart)
			e.buf = binary.BigEndian.AppendUint32(e.buf, nativeformat.Version)
			e.buf = binary.BigEndian.AppendUint64(e.buf, uint64(unixMilli))
		}
	case nativeformat.SelectedThreadSamples:
		clear(e.codes)
		e.batch = len(e.buf)
		e.buf = append(e.buf, nativeformat.OpSelectedStart)
	}
}

// Sample writes one sample. If the buffer becomes full, a
// part of the sample may be missing.
func (e *Encoder) Sample(r *Record) {
	switch e.format.Kind {
	case nativeformat.ThreadSamples:
		e.threadSample(r)
	case nativeformat.AllocationSamples:
		clear(e.codes)
		begin := len(e.buf)
		e.buf = append(e.buf, nativeformat.OpAllocation)
		e.buf = binary.BigEndian.AppendUint64(e.buf, uint64(r.UnixMilli))
		e.buf = binary.BigEndian.AppendUint64(e.buf, r.Bytes)
		e.text(r.Type)
		e.text(r.Thread)
		e.span(r)
		e.stack(r, begin)
		e.keep(begin)
	case nativeformat.SelectedThreadSamples:
		if e.full(e.batch) {
			return
		}
		e.buf = append(e.buf, nativeformat.OpSelectedSample)
		e.buf = binary.BigEndian.AppendUint64(e.buf, uint64(r.UnixMilli))
		e.text(r.Thread)
		e.span(r)
		e.stack(r, e.batch)
	}
}

// EndBatch ends a batch.
func (e *Encoder) EndBatch() {
	switch e.format.Kind {
	case nativeformat.ThreadSamples:
		if !e.Full() {
			e.buf = append(e.buf, nativeformat.OpThreadEnd)
		}
	case nativeformat.SelectedThreadSamples:
		if !e.full(e.batch) {
			e.buf = append(e.buf, nativeformat.OpSelectedEnd)
		}
		e.keep(e.batch)
		e.batch = len(e.buf)
	}
}

// Statistics holds the profiler's statistics of one batch of thread samples.
type Statistics struct {
	// SuspendedMicroseconds is the time for which the runtime was suspended.
	SuspendedMicroseconds int32
	Threads, Frames       int32
	// NameCacheMisses is the number of names that the profiler had to look up.
	NameCacheMisses int32
}

// Statistics writes the statistics of a batch of thread samples. It has no effect if
// the buffer is full, or for other batches, which have no statistics.
func (e *Encoder) Statistics(s Statistics) {
	if e.format.Kind != nativeformat.ThreadSamples || e.Full() {
		return
	}
	e.buf = append(e.buf, nativeformat.OpStatistics)
	for _, v := range []int32{s.SuspendedMicroseconds, s.Threads, s.Frames, s.NameCacheMisses} {
		e.buf = binary.BigEndian.AppendUint32(e.buf, uint32(v))
	}
}

func (e *Encoder) threadSample(r *Record) {
	if e.Full() {
		return
	}
	e.buf = append(e.buf, nativeformat.OpThreadSample)
	e.text(r.Thread)
	e.span(r)
	if e.format.FrequentSampling && !e.Full() {
		selected := byte(0)
		if r.Selected {
			selected = 1
		}
		e.buf = append(e.buf, selected)
	}
	e.stack(r, 0)
}

// full reports whether the bytes from begin on fill a buffer of the maximum size. The
// profiler builds each sample or batch in a separate buffer and then appends it.
func (e *Encoder) full(begin int) bool { return len(e.buf)-begin >= nativeformat.MaxBuffer }

// keep discards the bytes from begin on if the buffer has MaxBuffer bytes or more.
func (e *Encoder) keep(begin int) {
	if len(e.buf) >= nativeformat.MaxBuffer {
		e.buf = e.buf[:begin]
		e.discarded++
	}
}

func (e *Encoder) span(r *Record) {
	e.buf = append(e.buf, r.TraceID[:]...)
	e.buf = append(e.buf, r.SpanID[:]...)
}

func (e *Encoder) stack(r *Record, begin int) {
	for _, f := range r.Frames {
		if e.full(begin) {
			return
		}
		if code, ok := e.codes[f]; ok {
			e.buf = binary.BigEndian.AppendUint16(e.buf, uint16(code))
			continue
		}
		code := int16(len(e.codes) + 1)
		if code < nativeformat.MaxCode {
			e.codes[f] = code
		}
		e.buf = binary.BigEndian.AppendUint16(e.buf, uint16(-code))
		e.text(f)
	}
	if !e.full(begin) {
		e.buf = append(e.buf, 0, 0)
	}
}

// text writes a string. Like the profiler, it truncates the string at MaxUnits, even
// between the two surrogates of a character.
func (e *Encoder) text(s string) {
	at := len(e.buf)
	e.buf = append(e.buf, 0, 0)
	limit := len(e.buf) + 2*nativeformat.MaxUnits
	for len(s) > 0 && len(e.buf) < limit {
		c, size := utf8.DecodeRuneInString(s)
		s = s[size:]
		if c < 0x1_0000 {
			e.buf = binary.LittleEndian.AppendUint16(e.buf, uint16(c))
			continue
		}
		high, low := utf16.EncodeRune(c)
		e.buf = binary.LittleEndian.AppendUint16(e.buf, uint16(high))
		if len(e.buf) < limit {
			e.buf = binary.LittleEndian.AppendUint16(e.buf, uint16(low))
		}
	}
	binary.BigEndian.PutUint16(e.buf[at:], uint16((len(e.buf)-at-2)/2))
}

// Record is a sample whose names are strings. An [Encoder] writes it.
type Record struct {
	// UnixMilli is not written for thread samples, because their batch contains the time.
	UnixMilli int64
	Thread    string
	// Selected is written only with [nativeformat.Format.FrequentSampling].
	Selected bool
	TraceID  [16]byte
	SpanID   [8]byte
	// Type and Bytes are written only for allocation samples.
	Type   string
	Bytes  uint64
	Frames []string
}

// RecordOf copies a sample into r and resolves its names to strings.
func RecordOf(d *nativeformat.Decoder, s *nativeformat.Sample, r *Record) {
	r.UnixMilli, r.Selected, r.Bytes = s.UnixMilli, s.Selected, s.Bytes
	r.TraceID, r.SpanID = s.TraceID, s.SpanID
	r.Thread, r.Type = d.Text(s.Thread), d.Text(s.Type)
	r.Frames = r.Frames[:0]
	for _, f := range s.Frames {
		r.Frames = append(r.Frames, d.Text(f))
	}
}
