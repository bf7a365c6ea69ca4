// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

// pythonLine returns the line of an instruction, or 0 if the instruction has no line. first
// and table are the first line and the line table of the code object. offset is the byte
// offset of the instruction. It is negative before the first instruction ran. CPython's
// Objects/lnotab_notes.txt and Objects/locations.md describe the tables.
func pythonLine(minor int, table []byte, first, offset int64) int64 {
	switch {
	case offset < 0:
		return first
	case minor <= 9:
		return lineOfPairs(table, first, offset)
	case minor == 10:
		return lineOfRanges(table, first, offset)
	}
	return lineOfLocations(table, first, offset)
}

// lineOfPairs reads the line table of Python 3.9 and older. Each entry is a pair of
// bytes. The first byte is the distance to the next line's first instruction in bytes.
// The second byte is this distance in lines.
func lineOfPairs(table []byte, line, offset int64) int64 {
	at := int64(0)
	for ; len(table) >= 2; table = table[2:] {
		if at += int64(table[0]); at > offset {
			break
		}
		line += int64(int8(table[1]))
	}
	return line
}

// lineOfRanges reads the line table of Python 3.10. Each entry is a pair of bytes. The
// first byte is the length of a range in bytes. The second byte is the distance of the
// range from the previous range in lines. A range with the distance noLine has no line.
func lineOfRanges(table []byte, line, offset int64) int64 {
	const noLine = -128
	limit := int64(0)
	for ; len(table) >= 2; table = table[2:] {
		limit += int64(table[0])
		delta := int64(int8(table[1]))
		if delta != noLine {
			line += delta
		}
		if offset < limit {
			if delta == noLine {
				return 0
			}
			return line
		}
	}
	return 0
}

// lineOfLocations reads the line table of Python 3.11 and newer. The first byte of an entry
// contains a top bit of 1, a kind of 4 bits, and the number of code units minus one.
func lineOfLocations(table []byte, line, offset int64) int64 {
	const noColumns, long, none, oneLine = 13, 14, 15, 10
	unit, limit := offset/2, int64(0)
	for i := 0; i < len(table); {
		kind := table[i] >> 3 & 15
		limit += int64(table[i]&7) + 1
		i++
		switch {
		case kind == noColumns, kind == long:
			line += signedVarint(table[i:])
		case kind >= oneLine && kind < noColumns:
			line += int64(kind - oneLine)
		}
		if unit < limit {
			if kind == none {
				return 0
			}
			return line
		}
		for i < len(table) && table[i]&0x80 == 0 {
			i++
		}
	}
	return 0
}

// signedVarint decodes a number with 6 bits per byte, the lowest bits first. Bit 6 of a
// byte is set if more bytes follow. The lowest bit of the number is the sign.
func signedVarint(b []byte) int64 {
	n := uint64(0)
	for i, c := range b[:min(len(b), 6)] {
		n |= uint64(c&63) << (6 * i)
		if c&64 == 0 {
			break
		}
	}
	if n&1 != 0 {
		return -int64(n >> 1)
	}
	return int64(n >> 1)
}
