// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Zstd decompresses bodies into memory that it does not let them choose: a
// decoder of streams takes the window that the body asks for, which may be half
// a gigabyte for a few bytes. In one piece of memory the window is what has been
// decompressed, however large a body says that it is.
type Zstd struct {
	limit   int64
	decoder *zstd.Decoder
	buffers sync.Pool // of *[]byte
}

// NewZstd returns one for bodies of limit bytes at most, before and after.
func NewZstd(limit int64) (*Zstd, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, fmt.Errorf("make a decoder of zstd: %w", err)
	}
	return &Zstd{limit: limit, decoder: d}, nil
}

// zstdBlock is the most that zstd decompresses at a time. With room for one more
// than the limit, what does not fit is beyond the limit for certain.
const zstdBlock = 128 << 10

// Close ends it.
func (z *Zstd) Close() { z.decoder.Close() }

// Body returns the decompressed body. It is read when it is first read from, so
// that what is wrong with it is found there.
func (z *Zstd) Body(compressed io.ReadCloser) (io.ReadCloser, error) {
	return &zstdBody{z: z, compressed: compressed}, nil
}

type zstdBody struct {
	z          *Zstd
	compressed io.ReadCloser
	buffer     *[]byte
	rest       []byte
	err        error
}

// Read reads what is decompressed.
func (b *zstdBody) Read(p []byte) (int, error) {
	if b.buffer == nil && b.err == nil {
		b.err = b.decompress()
	}
	if len(b.rest) > 0 {
		n := copy(p, b.rest)
		b.rest = b.rest[n:]
		return n, nil
	}
	if b.err != nil {
		return 0, b.err
	}
	return 0, io.EOF
}

func (b *zstdBody) decompress() error {
	in, err := io.ReadAll(io.LimitReader(b.compressed, b.z.limit+1))
	if err != nil {
		return err
	}
	if int64(len(in)) > b.z.limit {
		return &http.MaxBytesError{Limit: b.z.limit}
	}
	var ok bool
	if b.buffer, ok = b.z.buffers.Get().(*[]byte); !ok {
		made := make([]byte, 0, b.z.limit+zstdBlock)
		b.buffer = &made
	}
	b.rest, err = b.z.decoder.DecodeAll(in, (*b.buffer)[:0])
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || int64(len(b.rest)) > b.z.limit {
		err = &http.MaxBytesError{Limit: b.z.limit}
	}
	if err != nil {
		b.rest = nil
	}
	return err
}

// Close gives the memory back.
func (b *zstdBody) Close() error {
	if b.buffer != nil {
		b.z.buffers.Put(b.buffer)
		b.buffer, b.rest = nil, nil
	}
	if b.err == nil {
		b.err = http.ErrBodyReadAfterClose
	}
	return b.compressed.Close()
}
