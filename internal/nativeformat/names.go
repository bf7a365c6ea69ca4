// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

import (
	"encoding/binary"
	"slices"
	"unicode/utf16"
	"unsafe"
)

// nameCost is the memory that a name needs in addition to its bytes. Each name needs an
// entry in texts and a slot in the map. nameCost is doubled because texts and the map are
// only half full just after they have grown.
const nameCost = 2 * (int(unsafe.Sizeof("")) + int(unsafe.Sizeof("")) + 8 + 1)

// names is a set of names. The UTF-16 bytes of the names are the keys, so that looking up
// a known name needs no conversion and no allocation.
type names struct {
	known map[string]Name // by UTF-16 bytes
	texts []string        // by Name
	bytes int
	units []uint16 // scratch
}

// reset removes all names except the two constants.
func (n *names) reset() {
	n.known, n.texts, n.bytes = map[string]Name{"": NoName}, []string{""}, nameCost
	var raw []byte
	for _, unit := range utf16.Encode([]rune(ExportThreadName)) {
		raw = binary.LittleEndian.AppendUint16(raw, unit)
	}
	n.intern(raw)
}

// intern returns the Name of a UTF-16 string, and adds the string if it is new. Each unpaired
// surrogate becomes U+FFFD. intern does not retain raw.
func (n *names) intern(raw []byte) Name {
	if name, ok := n.known[string(raw)]; ok {
		return name
	}
	n.units = n.units[:0]
	for pair := range slices.Chunk(raw, 2) {
		n.units = append(n.units, binary.LittleEndian.Uint16(pair))
	}
	text := string(utf16.Decode(n.units))
	name := Name(len(n.texts))
	n.known[string(raw)] = name
	if len(n.texts) == cap(n.texts) {
		n.texts = slices.Grow(n.texts, len(n.texts)) // append would copy a long list more often
	}
	n.texts = append(n.texts, text)
	n.bytes += nameCost + len(raw) + len(text)
	return name
}
