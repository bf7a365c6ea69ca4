// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package perftest simulates the kernel's end of a ring for tests of perf events.
package perftest

import (
	"encoding/binary"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Ring is a ring together with the kernel's end of the ring.
type Ring struct {
	// Head and Tail are data_head and data_tail.
	Head, Tail uint64
	// Lost counts the records that did not fit.
	Lost int

	Data []uint64
	ring ring.Ring
}

// NewRing returns an empty ring. Its next record is written at position.
func NewRing(words int, position uint64) *Ring {
	k := &Ring{Head: position, Tail: position, Data: make([]uint64, words)}
	k.ring = ring.New(&k.Head, &k.Tail, k.Data)
	return k
}

// Reader returns the reader's end.
func (k *Ring) Reader() *ring.Ring { return &k.ring }

// Write writes a record like perf_output_begin. A record that does not fit is lost.
func (k *Ring) Write(words []uint64) bool {
	if k.Head+uint64(len(words)*ring.WordSize)-k.Tail > uint64(len(k.Data)*ring.WordSize) {
		k.Lost++
		return false
	}
	for _, w := range words {
		k.Data[k.Head/ring.WordSize&uint64(len(k.Data)-1)] = w
		k.Head += ring.WordSize
	}
	return true
}

// Rewind makes the reader start again at position 0.
func (k *Ring) Rewind() {
	k.Tail = 0
	k.ring = ring.New(&k.Head, &k.Tail, k.Data)
}

// Readers returns the readers' ends of rings.
func Readers(rings []*Ring) []*ring.Ring {
	readers := make([]*ring.Ring, len(rings))
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
	p.Words[0] = ring.Header{Kind: kind, Misc: misc, Size: uint16(len(p.Words) * ring.WordSize)}.Word()
	return p
}

// With appends words and updates the size in the header.
func (p *Packed) With(more ...uint64) *Packed {
	h, _ := ring.ParseRecord(p.Words)
	p.Words = append(p.Words, more...)
	h.Size = uint16(len(p.Words) * ring.WordSize)
	p.Words[0] = h.Word()
	return p
}

// SampleID appends struct sample_id with pid 7, tid 8, CPU 3 and id 99.
func (p *Packed) SampleID(time int64) *Packed {
	return p.With(Pair(7, 8), uint64(time), Pair(3, 0), 99)
}

// Sample returns a sample of pid 7, tid 8, CPU 3, id 99 and period 1000.
func Sample(misc uint16, time int64, ips ...uint64) []uint64 {
	body := append([]uint64{99, Pair(7, 8), uint64(time), Pair(3, 0), 1000, uint64(len(ips))}, ips...)
	return Record(sys.RecordSample, misc, body...).Words
}

// Pair returns the word that consists of two 32-bit fields.
func Pair(first, second uint32) uint64 {
	var b [ring.WordSize]byte
	binary.NativeEndian.PutUint32(b[:], first)
	binary.NativeEndian.PutUint32(b[4:], second)
	return binary.NativeEndian.Uint64(b[:])
}

// Text returns the words of a C string.
func Text(s string) []uint64 {
	words := make([]uint64, len(s)/ring.WordSize+1)
	copy(ring.Bytes(words), s)
	return words
}

// DeepStack returns a callchain of 20 kernel frames and 40 user frames.
func DeepStack() []uint64 {
	ips := []uint64{sys.ContextKernel}
	for i := range 20 {
		ips = append(ips, 0xffffffff81000000+uint64(i))
	}
	ips = append(ips, sys.ContextUser)
	for i := range 40 {
		ips = append(ips, 0x400000+uint64(i))
	}
	return ips
}
