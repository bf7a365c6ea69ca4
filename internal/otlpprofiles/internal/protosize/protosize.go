// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package protosize computes the marshalled size of protobuf fields. Field numbers must be
// below 16, so that a tag is one byte.
package protosize

import "math/bits"

// These are the maximum sizes of fields in a message of less than 2^28
// bytes. The sizes include the tag.
const (
	MaxNumber = 11 // any varint
	MaxIndex  = 5  // an index into a table
	MaxLength = 5  // the tag and length of a string or message
)

// Varint returns the size of a number without a tag.
func Varint(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// Number returns the size of a number field. The field is omitted if the number is 0.
func Number(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + Varint(v)
}

// Bytes returns the size of a string or message field. size is the
// size of the content in bytes.
func Bytes(size int) int { return 1 + Varint(uint64(size)) + size }

// Packed returns the size of a field of packed numbers. size is the size of the content
// in bytes. If there is no content, the field is omitted.
func Packed(size int) int {
	if size == 0 {
		return 0
	}
	return Bytes(size)
}
