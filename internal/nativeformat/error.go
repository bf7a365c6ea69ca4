// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

import "fmt"

// Error says why the rest of a buffer is unreadable. What was read before it
// stands. A buffer that merely ends early is no error: see [Summary.Tail].
type Error struct {
	// Kind is what the buffer was read as.
	Kind Kind
	// Offset is where in the buffer the field that cannot be begins.
	Offset int
	// Opcode is that of the record that the field is in, or, where a record's
	// opcode is the fault, that one.
	Opcode byte
	// Expected is what could be there.
	Expected string
	// Found is the value that is there.
	Found int64
}

// Error names the place, what is there and what could be.
func (e *Error) Error() string {
	return fmt.Sprintf("buffer is not readable as %v from offset %d, opcode 0x%02X: expected %s, found %d",
		e.Kind, e.Offset, e.Opcode, e.Expected, e.Found)
}
