// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"encoding/binary"
	"unsafe"
)

// WordSize is the size in bytes of a word. The kernel pads each record to a
// multiple of it.
const WordSize = 8

// MaxRecordWords bounds the length of a record: its header has 16 bits for the
// size in bytes.
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

// ParseRecord returns the header of a whole record, and false where its size is
// not that of words.
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
