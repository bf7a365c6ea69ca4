// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

import (
	"encoding/binary"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// nameCost is the memory of a name in addition to its bytes: its text, and a slot of the
// map. It is doubled because both have twice the needed room just after they have grown.
const nameCost = 2 * (int(unsafe.Sizeof("")) + int(unsafe.Sizeof("")) + 8 + 1)

// names is a set of names with their UTF-16 bytes as keys, so that a known name needs no
// conversion and no allocation.
type names struct {
	known   map[string]Name // by UTF-16 bytes
	texts   []string        // by Name
	bytes   int
	scratch []byte
}

func newNames() names {
	n := names{scratch: make([]byte, 0, MaxUnits*(2+utf8.UTFMax))}
	n.reset()
	return n
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

// intern returns the Name of UTF-16 bytes. It does not keep raw.
func (n *names) intern(raw []byte) Name {
	if name, ok := n.known[string(raw)]; ok {
		return name
	}
	n.scratch = appendText(append(n.scratch[:0], raw...), raw)
	both := string(n.scratch) // so that a new name costs one allocation
	name := Name(len(n.texts))
	n.known[both[:len(raw)]] = name
	if len(n.texts) == cap(n.texts) {
		n.texts = slices.Grow(n.texts, len(n.texts)) // append would copy a long list more often
	}
	n.texts = append(n.texts, both[len(raw):])
	n.bytes += nameCost + len(both)
	return name
}

// appendText appends UTF-16 as UTF-8. Each unpaired surrogate becomes U+FFFD.
func appendText(to, raw []byte) []byte {
	for len(raw) >= 2 {
		r := rune(binary.LittleEndian.Uint16(raw))
		raw = raw[2:]
		switch {
		case r < utf8.RuneSelf:
			to = append(to, byte(r))
			continue
		case utf16.IsSurrogate(r) && len(raw) >= 2:
			both := utf16.DecodeRune(r, rune(binary.LittleEndian.Uint16(raw)))
			if both != utf8.RuneError {
				raw = raw[2:]
			}
			r = both
		}
		to = utf8.AppendRune(to, r) // an unpaired surrogate at the end becomes U+FFFD
	}
	return to
}
