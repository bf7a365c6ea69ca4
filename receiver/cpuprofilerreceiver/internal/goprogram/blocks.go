// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package goprogram

import "io"

// blockReader caches blocks of a file, because otherwise each small read would take a
// system call, even if the offsets are close together.
type blockReader struct {
	r      io.ReaderAt
	blocks [64]block
}

// block contains the bytes of a file from the offset off. The last block of a file
// may be shorter than blockSize.
type block struct {
	off   int64
	bytes []byte
}

const blockSize = 64 << 10

// ReadAt implements io.ReaderAt.
func (b *blockReader) ReadAt(p []byte, off int64) (int, error) {
	if len(p) >= blockSize || off < 0 {
		return b.r.ReadAt(p, off)
	}
	done := 0
	for done < len(p) {
		number := (off + int64(done)) / blockSize
		c := &b.blocks[number%int64(len(b.blocks))]
		if c.bytes == nil || c.off != number*blockSize {
			if c.bytes == nil {
				c.bytes = make([]byte, blockSize)
			}
			n, err := b.r.ReadAt(c.bytes[:blockSize], number*blockSize)
			if n < blockSize && err != io.EOF {
				c.bytes = nil
				return done, err
			}
			c.off, c.bytes = number*blockSize, c.bytes[:n]
		}
		at := off + int64(done) - c.off
		if at >= int64(len(c.bytes)) {
			return done, io.EOF
		}
		done += copy(p[done:], c.bytes[at:])
	}
	return done, nil
}
