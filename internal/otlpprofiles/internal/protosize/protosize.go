// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package protosize computes how many bytes protobuf fields take when marshalled.
// Field numbers are below 16, so that a tag is one byte.
package protosize

import "math/bits"

// Upper bounds within a message of less than 2^28 bytes, with the tag.
const (
	MaxNumber = 11 // any varint
	MaxIndex  = 5  // an index into a table
	MaxLength = 5  // the length of a field
)

// Varint returns the size of a number without a tag.
func Varint(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// Number returns the size of a number as a field, which is omitted if it is 0.
func Number(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + Varint(v)
}

// Bytes returns the size of a field that holds size bytes: a string or a message.
func Bytes(size int) int { return 1 + Varint(uint64(size)) + size }

// Packed returns the size of a field of numbers that take size bytes; it is omitted
// if there are none.
func Packed(size int) int {
	if size == 0 {
		return 0
	}
	return Bytes(size)
}
