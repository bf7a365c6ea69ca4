// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package symbolizer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/ulikunitz/xz/lzma"
)

var errXZ = errors.New("not an .xz file as expected")

const (
	xzMagic        = "\xfd7zXZ\x00"
	xzHeaderSize   = 12
	xzFilterLZMA2  = 0x21
	xzHasPacked    = 0x40
	xzHasUnpacked  = 0x80
	xzFilterNumber = 0x03
	// xzDictionaries is the maximum total size of the dictionaries that the blocks of a
	// file allocate one after the other.
	xzDictionaries = 1 << 30
)

// unxz decompresses the blocks of an .xz file to at most limit bytes. The library's reader
// of .xz files allocates as much memory as the file requests, up to 4 GiB. unxz therefore
// uses only the library's LZMA2 decoder, with a dictionary of at most limit bytes. It skips
// checksums, because the other parts of the object file have no checksums either.
func unxz(b []byte, limit int) ([]byte, error) {
	if len(b) < xzHeaderSize || string(b[:6]) != xzMagic || b[6] != 0 {
		return nil, errXZ
	}
	checkSize := xzCheckSize(b[7])
	b = b[xzHeaderSize:]
	var out []byte
	dictionaries := 0
	for {
		if len(b) == 0 {
			return nil, fmt.Errorf("%w: %w", errXZ, io.ErrUnexpectedEOF)
		}
		if b[0] == 0 {
			return out, nil // the index
		}
		n, dictionary, err := xzBlockHeader(b)
		if err != nil {
			return nil, err
		}
		// A dictionary holds only decompressed data, so limit bytes are enough. The sum of
		// all dictionaries is limited too, because a file may have many blocks, although
		// usual files have one.
		dictionary = max(min(dictionary, limit), lzma.MinDictCap)
		if dictionaries += dictionary; dictionaries > xzDictionaries {
			return nil, fmt.Errorf("%w: too many blocks", errXZ)
		}
		r := bytes.NewReader(b[n:])
		decoder, err := lzma.Reader2Config{DictCap: dictionary}.NewReader2(r)
		if err != nil {
			return nil, fmt.Errorf("decompressing: %w", err)
		}
		content := bytes.NewBuffer(out)
		if _, err := content.ReadFrom(io.LimitReader(decoder, int64(limit-len(out))+1)); err != nil {
			return nil, fmt.Errorf("decompressing: %w", err)
		}
		if out = content.Bytes(); len(out) > limit {
			return nil, fmt.Errorf("decompressed it has more than %d bytes: %w", limit, errTooLarge)
		}
		end := len(b) - r.Len()
		end += -end & 3 // padding
		if end+checkSize > len(b) {
			return nil, fmt.Errorf("%w: %w", errXZ, io.ErrUnexpectedEOF)
		}
		b = b[end+checkSize:]
	}
}

// xzBlockHeader returns the size of the header at the start of b and the size of
// the dictionary. It accepts only blocks whose single filter is LZMA2. Nearly
// all files have only such blocks.
func xzBlockHeader(b []byte) (size, dictionary int, err error) {
	size = (int(b[0]) + 1) * 4
	if size > len(b) {
		return 0, 0, fmt.Errorf("%w: a block's header is corrupt", errXZ)
	}
	flags, rest := b[1], b[2:size-4]
	if flags&xzFilterNumber != 0 {
		return 0, 0, fmt.Errorf("%w: compressed with several filters", errXZ)
	}
	for _, has := range []byte{xzHasPacked, xzHasUnpacked} {
		if flags&has != 0 {
			_, n := binary.Uvarint(rest)
			if n <= 0 {
				return 0, 0, fmt.Errorf("%w: a block's header is corrupt", errXZ)
			}
			rest = rest[n:]
		}
	}
	if len(rest) < 3 || rest[0] != xzFilterLZMA2 || rest[1] != 1 {
		return 0, 0, fmt.Errorf("%w: not compressed with LZMA2", errXZ)
	}
	capacity, err := lzma.DecodeDictCap(rest[2])
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %w", errXZ, err)
	}
	return size, int(min(capacity, math.MaxInt32)), nil
}

// xzCheckSize returns the size in bytes of a checksum of the given type.
func xzCheckSize(kind byte) int {
	if kind &= 0xf; kind == 0 {
		return 0
	}
	return 4 << ((kind - 1) / 3)
}
