// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package perftest simulates the kernel's end of a ring for tests of perf events.
package perftest

import (
	"encoding/binary"
	"slices"
)

// These constants are from linux/perf_event.h.
const (
	recordSample  = 9
	contextKernel = ^uint64(0) - 128 + 1
	contextUser   = ^uint64(0) - 512 + 1
)

// wordSize is the number of bytes of a word.
const wordSize = 8

// Ring is a ring together with the kernel's end of the ring. R is the type of the
// reader's end.
type Ring[R any] struct {
	// Head and Tail are data_head and data_tail.
	Head, Tail uint64
	// Lost counts the records that did not fit.
	Lost int

	Data   []uint64
	open   func(head, tail *uint64, data []uint64) R
	reader R
}

// NewRing returns an empty ring. Its next record is written at position. open returns
// the reader's end.
func NewRing[R any](open func(head, tail *uint64, data []uint64) R, words int, position uint64) *Ring[R] {
	k := &Ring[R]{Head: position, Tail: position, Data: make([]uint64, words), open: open}
	k.reader = open(&k.Head, &k.Tail, k.Data)
	return k
}

// Reader returns the reader's end.
func (k *Ring[R]) Reader() *R { return &k.reader }

// Write writes a record like perf_output_begin. A record that does not fit is lost.
func (k *Ring[R]) Write(words []uint64) bool {
	if k.Head+uint64(len(words)*wordSize)-k.Tail > uint64(len(k.Data)*wordSize) {
		k.Lost++
		return false
	}
	for _, w := range words {
		k.Data[k.Head/wordSize&uint64(len(k.Data)-1)] = w
		k.Head += wordSize
	}
	return true
}

// Rewind makes the reader start again at position 0.
func (k *Ring[R]) Rewind() {
	k.Tail = 0
	k.reader = k.open(&k.Head, &k.Tail, k.Data)
}

// Readers returns the readers' ends of rings.
func Readers[R any](rings []*Ring[R]) []*R {
	readers := make([]*R, len(rings))
	for i, k := range rings {
		readers[i] = k.Reader()
	}
	return readers
}

// Packed is a record in the kernel's layout.
type Packed struct{ Words []uint64 }

// Record returns a record with a body and without a trailer.
func Record(kind uint32, misc uint16, body ...uint64) *Packed {
	p := &Packed{Words: append([]uint64{0}, body...)}
	p.Words[0] = header(kind, misc, len(p.Words))
	return p
}

// header returns the word of a struct perf_event_header for a record of n words.
func header(kind uint32, misc uint16, n int) uint64 {
	var b [wordSize]byte
	binary.NativeEndian.PutUint32(b[:], kind)
	binary.NativeEndian.PutUint16(b[4:], misc)
	binary.NativeEndian.PutUint16(b[6:], uint16(n*wordSize))
	return binary.NativeEndian.Uint64(b[:])
}

// With appends words and updates the size in the header.
func (p *Packed) With(more ...uint64) *Packed {
	var b [wordSize]byte
	binary.NativeEndian.PutUint64(b[:], p.Words[0])
	p.Words = append(p.Words, more...)
	p.Words[0] = header(binary.NativeEndian.Uint32(b[:]), binary.NativeEndian.Uint16(b[4:]), len(p.Words))
	return p
}

// SampleID appends struct sample_id with pid 7, tid 8, CPU 3 and id 99.
func (p *Packed) SampleID(time int64) *Packed {
	return p.With(Pair(7, 8), uint64(time), Pair(3, 0), 99)
}

// Sample returns a sample of pid 7, tid 8, CPU 3, id 99 and period 1000.
func Sample(misc uint16, time int64, ips ...uint64) []uint64 {
	body := slices.Concat([]uint64{99, Pair(7, 8), uint64(time), Pair(3, 0), 1000, uint64(len(ips))}, ips)
	return Record(recordSample, misc, body...).Words
}

// Pair returns the word that consists of two 32-bit fields.
func Pair(first, second uint32) uint64 {
	var b [wordSize]byte
	binary.NativeEndian.PutUint32(b[:], first)
	binary.NativeEndian.PutUint32(b[4:], second)
	return binary.NativeEndian.Uint64(b[:])
}

// Text returns the words of a C string.
func Text(s string) []uint64 {
	b := make([]byte, (len(s)/wordSize+1)*wordSize)
	copy(b, s)
	words := make([]uint64, len(b)/wordSize)
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(b[i*wordSize:])
	}
	return words
}

// DeepStack returns a callchain of 20 kernel frames and 40 user frames.
func DeepStack() []uint64 {
	ips := []uint64{contextKernel}
	for i := range 20 {
		ips = append(ips, 0xffffffff81000000+uint64(i))
	}
	ips = append(ips, contextUser)
	for i := range 40 {
		ips = append(ips, 0x400000+uint64(i))
	}
	return ips
}
