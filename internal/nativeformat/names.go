// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package nativeformat

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// entry is a known name. Its UTF-16 bytes and its text are one string, so that a new name
// costs one allocation.
type entry struct {
	both string
	hash uint32
	raw  uint16 // number of UTF-16 bytes at the start of both
}

func (e *entry) text() string { return e.both[e.raw:] }

// nameCost is the memory of a name in addition to its bytes: its entry and two slots. It is
// doubled because the tables have twice the needed room just after they have grown.
const nameCost = 2 * (int(unsafe.Sizeof(entry{})) + 2*4)

// names is a set of names with their UTF-16 bytes as keys, so that a known name needs no
// conversion and no allocation. It is a hash table with linear probing.
type names struct {
	seed    maphash.Seed
	slots   []uint32 // Names, 0 if free; at most half full; the length is a power of two
	entries []entry  // by Name
	bytes   int
	scratch []byte
}

const fewestSlots = 1 << 9

func newNames() names {
	n := names{
		seed:    maphash.MakeSeed(),
		scratch: make([]byte, 0, MaxUnits*(2+utf8.UTFMax)),
	}
	n.reset()
	return n
}

// reset removes all names except the two constants.
func (n *names) reset() {
	n.slots = make([]uint32, fewestSlots)
	n.entries = make([]entry, 1, fewestSlots/2) // NoName has no slot, because intern never looks it up
	n.bytes = nameCost
	var raw []byte
	for _, unit := range utf16.Encode([]rune(ExportThreadName)) {
		raw = binary.LittleEndian.AppendUint16(raw, unit)
	}
	n.intern(raw)
}

// intern returns the Name of UTF-16 bytes. It does not keep raw.
func (n *names) intern(raw []byte) Name {
	if len(raw) == 0 {
		return NoName
	}
	sum := maphash.Bytes(n.seed, raw)
	hash := uint32(sum >> 32)
	mask := len(n.slots) - 1
	i := int(uint32(sum)) & mask
	for ; ; i = (i + 1) & mask {
		at := n.slots[i&(len(n.slots)-1)]
		if at == 0 {
			return n.add(i, hash, raw)
		}
		e := &n.entries[at]
		if e.hash == hash && e.both[:e.raw] == string(raw) {
			return Name(at)
		}
	}
}

func (n *names) add(slot int, hash uint32, raw []byte) Name {
	n.scratch = appendText(append(n.scratch[:0], raw...), raw)
	name := Name(len(n.entries))
	n.slots[slot] = uint32(name)
	n.entries = append(n.entries, entry{both: string(n.scratch), hash: hash, raw: uint16(len(raw))})
	n.bytes += nameCost + len(n.scratch)
	if 2*len(n.entries) == len(n.slots) {
		n.grow()
	}
	return name
}

func (n *names) grow() {
	slots := make([]uint32, 2*len(n.slots))
	mask := len(slots) - 1
	for at := 1; at < len(n.entries); at++ {
		e := &n.entries[at]
		i := int(uint32(maphash.String(n.seed, e.both[:e.raw]))) & mask
		for slots[i] != 0 {
			i = (i + 1) & mask
		}
		slots[i] = uint32(at)
	}
	n.slots = slots
	n.entries = slices.Grow(n.entries, len(slots)/2-len(n.entries))
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
