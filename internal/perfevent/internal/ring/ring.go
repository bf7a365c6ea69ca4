// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package ring maps the ring buffers that the kernel writes perf records to, waits for
// records and reads them. It decodes the header of a record but not its body.
package ring

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// Kinds is a bit set of the kinds of records that the kernel writes to a ring.
type Kinds uint8

const (
	// Samples marks rings that receive samples.
	Samples Kinds = 1 << iota
	// Switches marks rings that receive context switches.
	Switches
	// Records marks rings that receive records about processes and their mappings.
	Records
)

// Ring is the reader's end of one buffer. It consists of the data, and of data_head and
// data_tail of struct perf_event_mmap_page. Positions count the bytes written since the
// ring was created and never wrap. Their low bits index the data. Each record is a multiple
// of 8 bytes long, so the end of the buffer never splits a word.
//
// A round reads the records that were written before the round began:
//
//	r.Begin()
//	for !r.Empty() {
//		h, ok := r.Peek()
//		// look at r.Word(…), or r.Record(…)
//		r.Skip()
//	}
//	r.Release()
type Ring struct {
	head *uint64 // written by the kernel
	tail *uint64 // written by Release; the kernel may overwrite data before it
	data []uint64

	// Kinds are the kinds of records that the kernel writes to the ring.
	Kinds Kinds
	// Last is the time of the last record that was read.
	Last int64

	next     uint64 // position of the record to read next
	limit    uint64 // head when the round began
	released uint64 // last value written to tail
	words    int    // length of the record at next, set by Peek
	full     uint64 // head when Release made room in a ring with less than a quarter free
	waits    int    // remaining calls of LossPending
}

// New returns a ring whose next record is at *tail. The length of data must be a power of
// two.
func New(head, tail *uint64, data []uint64) Ring {
	return Ring{head: head, tail: tail, data: data, next: *tail, released: *tail}
}

// maxWaits is the maximum number of rounds for which LossPending waits
// until the kernel reports a loss.
const maxWaits = 50

// Begin starts a round.
func (r *Ring) Begin() { r.limit = atomic.LoadUint64(r.head) }

// Full reports whether fewer than spare bytes were free when the round began.
func (r *Ring) Full(spare int) bool { return r.limit-r.released+uint64(spare) > r.size() }

// LossPending reports whether the kernel may still report a loss. After the ring was
// nearly full, LossPending returns true until a record that was written later has been
// read. After maxWaits calls it returns false, because an idle CPU writes no records.
func (r *Ring) LossPending() bool {
	if r.next > r.full || r.waits == 0 {
		return false
	}
	r.waits--
	return true
}

// Empty reports whether all records of the round were read.
func (r *Ring) Empty() bool { return r.next == r.limit }

// Overrun reports whether the round contains more bytes than the ring can hold. If so, the
// positions are invalid.
func (r *Ring) Overrun() bool { return r.limit-r.next > r.size() }

// Peek returns the header of the next record. It returns false if the record's size is not
// a multiple of a word, or exceeds the rest of the round.
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

// Record returns the record that Peek saw. The result is valid until Skip is called or the
// ring is unmapped. The record is copied to scratch only if it continues at the start of
// the buffer.
func (r *Ring) Record(scratch []uint64) []uint64 {
	start := int(r.next / WordSize & uint64(len(r.data)-1))
	if end := start + r.words; end <= len(r.data) {
		return r.data[start:end:end]
	}
	return r.Copy(scratch)
}

// Copy copies the record that Peek found into scratch, and returns the copy.
func (r *Ring) Copy(scratch []uint64) []uint64 {
	start := int(r.next / WordSize & uint64(len(r.data)-1))
	n := copy(scratch[:r.words], r.data[start:])
	copy(scratch[n:r.words], r.data)
	return scratch[:r.words]
}

// Skip advances past the record that Peek saw.
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

// size returns the size of data in bytes.
func (r *Ring) size() uint64 { return uint64(len(r.data) * WordSize) }

// WordSize is the size of a word in bytes. The kernel pads each record to a multiple of
// WordSize.
const WordSize = 8

// MaxRecordWords is greater than the length of any record in words, because the header
// stores the size in bytes in 16 bits.
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

// ParseRecord returns the header of a whole record. It returns false if the size in the
// header differs from the size of words.
func ParseRecord(words []uint64) (Header, bool) {
	if len(words) == 0 {
		return Header{}, false
	}
	h := parseHeader(words[0])
	return h, h.words() == len(words)
}

// words returns the length of the record in words. It returns 0 if the size is not a
// multiple of WordSize.
func (h Header) words() int {
	if h.Size%WordSize != 0 {
		return 0
	}
	return int(h.Size / WordSize)
}

// Halves splits a word into its two 32-bit fields, as signed ids.
func Halves(word uint64) (first, second int) {
	var b [WordSize]byte
	binary.NativeEndian.PutUint64(b[:], word)
	return int(int32(binary.NativeEndian.Uint32(b[:]))), int(int32(binary.NativeEndian.Uint32(b[4:])))
}

// Bytes returns the memory of words as bytes, without a copy.
func Bytes(words []uint64) []byte {
	if len(words) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*WordSize)
}

// ClockSlack is the maximum time in nanoseconds between the start of a round and the time
// of a record. A record with a later time would block its ring, so it is read at once.
const ClockSlack = 1_000_000_000

// Heap orders rings by the time of their next record, the earliest first.
type Heap []Entry

// Entry is a ring that has a record left in the round.
type Entry struct {
	// Time is the time of the ring's next record. Index is the index of the ring.
	Time  int64
	Index int
}

// Init establishes the heap order after entries were appended.
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

// down restores the heap order below entry i after the entry's time has grown.
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
