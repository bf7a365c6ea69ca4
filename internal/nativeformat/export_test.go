// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

// MaxKeptFrames is the maximum number of frames whose memory a decoder keeps.
const MaxKeptFrames = maxKeptFrames

// Held contains the sizes of a decoder's data.
type Held struct {
	Names, NameBytes int
	// Frames and Defined are the capacities of the slices that the decoder keeps. Codes
	// is the number of codes that the decoder keeps.
	Frames, Defined, Codes int
}

// Held returns the current sizes of the data of d.
func (d *Decoder) Held() Held {
	return Held{len(d.names.texts), d.names.bytes, cap(d.frames), cap(d.defined), len(d.codes)}
}
