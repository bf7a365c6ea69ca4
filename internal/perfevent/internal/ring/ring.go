// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package ring maps, waits for and reads the ring buffers that the kernel writes perf
// records to. It decodes the header of a record and not its body.
package ring

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// Kinds are the kinds of records that a ring gets, as bits.
type Kinds uint8

const (
	// Samples are samples.
	Samples Kinds = 1 << iota
	// Switches are context switches.
	Switches
	// Records are records about processes and their mappings.
	Records
)

// Ring is the reader's end of one buffer: data_head and data_tail of struct
// perf_event_mmap_page, and the data. Positions count bytes since the ring was made and
// never wrap. Their low bits index the data. Each record is a multiple of 8 bytes, so the
// end of the buffer never splits a word.
//
// A round reads the records that were written before it began:
//
//	r.Begin()
//	for !r.Empty() {
//		h, ok := r.Peek()
//		// look at r.Word(…), or r.Copy(…)
//		r.Skip()
//	}
//	r.Release()
type Ring struct {
	head *uint64 // written by the kernel
	tail *uint64 // written by Release: the kernel may overwrite what is before it
	data []uint64

	// Kinds are the records that the ring gets.
	Kinds Kinds
	// Last is the time of the last record that was read.
	Last int64

	next     uint64 // position of the record to read next
	limit    uint64 // head when the round began
	released uint64 // last value written to tail
	words    int    // length of the record at next, set by Peek
	full     uint64 // head when Release made room in a ring with less than a quarter free
	waits    int    // calls of LossPending that are left for it
}

// New returns a ring. Its next record is at *tail, and the length of data is a power of
// two.
func New(head, tail *uint64, data []uint64) Ring {
	return Ring{head: head, tail: tail, data: data, next: *tail, released: *tail}
}

// maxWaits bounds the rounds in which the kernel's report of a loss is awaited.
const maxWaits = 50

// Begin starts a round.
func (r *Ring) Begin() { r.limit = atomic.LoadUint64(r.head) }

// Full reports whether fewer than spare bytes were free when the round began.
func (r *Ring) Full(spare int) bool { return r.limit-r.released+uint64(spare) > r.size() }

// LossPending reports whether the kernel may still report a loss, because the ring was
// nearly full and no record written since has been read. After maxWaits calls it returns
// false, because an idle CPU writes no records.
func (r *Ring) LossPending() bool {
	if r.next > r.full || r.waits == 0 {
		return false
	}
	r.waits--
	return true
}

// Empty reports whether everything of the round was read.
func (r *Ring) Empty() bool { return r.next == r.limit }

// Overrun reports whether the round has more bytes than the ring, so that its
// content makes no sense.
func (r *Ring) Overrun() bool { return r.limit-r.next > r.size() }

// Peek returns the header of the next record. It returns false if the record's size is not
// a number of words, or goes beyond the round.
func (r *Ring) Peek() (Header, bool) {
	h := parseHeader(r.Word(0))
	r.words = h.words()
	return h, r.words > 0 && uint64(h.Size) <= r.limit-r.next
}

// Words returns the length of the record that Peek saw.
func (r *Ring) Words() int { return r.words }

// Word returns word i of the next record.
func (r *Ring) Word(i int) uint64 {
	return r.data[(r.next/WordSize+uint64(i))&uint64(len(r.data)-1)]
}

// Copy copies the record that Peek saw to scratch, and returns it.
func (r *Ring) Copy(scratch []uint64) []uint64 {
	start := int(r.next / WordSize & uint64(len(r.data)-1))
	n := copy(scratch[:r.words], r.data[start:])
	copy(scratch[n:r.words], r.data)
	return scratch[:r.words]
}

// Skip moves on to the record after the peeked record.
func (r *Ring) Skip() {
	r.next += uint64(r.words) * WordSize
	// Releasing a quarter at a time keeps the ring from filling up during a long
	// round, without a locked store per record.
	if r.next-r.released > r.size()/4 {
		r.Release()
	}
}

// SkipAll ends the round without reading the rest of it.
func (r *Ring) SkipAll() { r.next = r.limit }

// Release lets the kernel overwrite the records that were read. The store is ordered after
// the reads before it, as the comment on data_tail in linux/perf_event.h demands.
func (r *Ring) Release() {
	if r.released != r.next {
		full := atomic.LoadUint64(r.head)-r.released > r.size()/4*3
		atomic.StoreUint64(r.tail, r.next)
		r.released = r.next
		if full {
			r.full, r.waits = atomic.LoadUint64(r.head), maxWaits
		}
	}
}

// size returns the bytes of data.
func (r *Ring) size() uint64 { return uint64(len(r.data) * WordSize) }

// WordSize is the size in bytes of a word. The kernel pads each record to a
// multiple of it.
const WordSize = 8

// MaxRecordWords bounds the length of a record. A record's header has 16 bits for the size
// in bytes.
const MaxRecordWords = 1 << 16 / WordSize

// Header is struct perf_event_header: {u32 type; u16 misc; u16 size}.
type Header struct {
	Kind       uint32
	Misc, Size uint16
}

// parseHeader parses the first word of a record.
func parseHeader(word uint64) Header {
	var b [WordSize]byte
	binary.NativeEndian.PutUint64(b[:], word)
	return Header{
		Kind: binary.NativeEndian.Uint32(b[:]),
		Misc: binary.NativeEndian.Uint16(b[4:]),
		Size: binary.NativeEndian.Uint16(b[6:]),
	}
}

// ParseRecord returns the header of a whole record, and false if the record's size differs
// from the size of words.
func ParseRecord(words []uint64) (Header, bool) {
	if len(words) == 0 {
		return Header{}, false
	}
	h := parseHeader(words[0])
	return h, h.words() == len(words)
}

// words returns the length of the record, or 0 where its size is not a multiple of
// WordSize.
func (h Header) words() int {
	if h.Size%WordSize != 0 {
		return 0
	}
	return int(h.Size / WordSize)
}

// Word returns the header as the first word of a record.
func (h Header) Word() uint64 {
	var b [WordSize]byte
	binary.NativeEndian.PutUint32(b[:], h.Kind)
	binary.NativeEndian.PutUint16(b[4:], h.Misc)
	binary.NativeEndian.PutUint16(b[6:], h.Size)
	return binary.NativeEndian.Uint64(b[:])
}

// Halves splits a word into the two 32-bit fields that it holds, as signed ids.
func Halves(word uint64) (first, second int) {
	var b [WordSize]byte
	binary.NativeEndian.PutUint64(b[:], word)
	return int(int32(binary.NativeEndian.Uint32(b[:]))), int(int32(binary.NativeEndian.Uint32(b[4:])))
}

// Bytes returns the memory of words.
func Bytes(words []uint64) []byte {
	if len(words) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*WordSize)
}

// ClockSlack is the time in nanoseconds by which a record may lie after the
// start of the round and still be believed. A record with a later time would
// block its ring for ever, so it is read at once.
const ClockSlack = 1_000_000_000

// Heap orders rings by the time of their next record, the earliest first.
type Heap []Entry

// Entry is a ring that has a record left in the round.
type Entry struct {
	// Time is the time of the ring's next record, Index its index among the rings.
	Time  int64
	Index int
}

// Init orders entries that were appended.
func (h Heap) Init() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

// Update is called when the record of the first entry was read. time is the time of the
// ring's next record. If the ring has no next record, more is false and the entry is
// removed.
func (h *Heap) Update(time int64, more bool) {
	if more {
		(*h)[0].Time = time
	} else {
		last := len(*h) - 1
		(*h)[0] = (*h)[last]
		*h = (*h)[:last]
	}
	h.down(0)
}

// down restores the order below entry i after its time has grown.
func (h Heap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if right := child + 1; right < len(h) && h[right].Time < h[child].Time {
			child = right
		}
		if h[i].Time <= h[child].Time {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
