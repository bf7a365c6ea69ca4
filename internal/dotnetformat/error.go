// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnetformat

import "fmt"

// Error is a fault that makes the rest of a buffer unreadable. Samples before it are
// valid. A buffer that ends early is not an error: see [Summary.Tail].
type Error struct {
	// Kind is the kind that the buffer was read as.
	Kind Kind
	// Offset is the offset of the invalid field.
	Offset int
	// Opcode is the opcode of the record with the field, or the invalid opcode.
	Opcode byte
	// Expected describes the allowed values.
	Expected string
	// Found is the value found.
	Found int64
}

// Error returns the offset, the value found and the allowed ones.
func (e *Error) Error() string {
	return fmt.Sprintf("buffer is not readable as %v from offset %d, opcode 0x%02X: expected %s, found %d",
		e.Kind, e.Offset, e.Opcode, e.Expected, e.Found)
}
