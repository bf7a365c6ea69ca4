// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

// MaxKeptFrames is the most frames whose memory a decoder keeps.
const MaxKeptFrames = maxKeptFrames

// Held counts the content of a decoder.
type Held struct {
	Names, NameBytes int
	// Frames, Defined and Codes are the lengths of the memory that it keeps.
	Frames, Defined, Codes int
}

// Held returns what d holds.
func (d *Decoder) Held() Held {
	return Held{len(d.names.texts), d.names.bytes, cap(d.frames), cap(d.defined), len(d.codes)}
}
