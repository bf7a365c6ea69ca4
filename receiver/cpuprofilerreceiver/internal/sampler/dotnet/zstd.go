// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/klauspost/compress/zstd"
)

// zstdDecoder decompresses bodies into bounded memory. A stream decoder allocates the
// window that a body asks for: half a gigabyte for a few bytes if unbounded, 8 MiB
// per stalled sender if bounded to the windows that common encoders use. Here a body
// is decompressed in one piece once it has arrived: the window is the output itself,
// bounded by MaxBody and counted in memory.
type zstdDecoder struct {
	limit   int64
	memory  *memory
	decoder *zstd.Decoder
}

// zstd returns a decompressor for the intake's bodies.
func (in *Intake) zstd() (*zstdDecoder, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, fmt.Errorf("make a decoder of zstd: %w", err)
	}
	return &zstdDecoder{limit: in.cfg.MaxBody, memory: in.memory, decoder: d}, nil
}

// zstdBlock is the most that zstd decompresses at a time. With room for one more
// than the limit, a body that does not fit is certainly beyond the limit.
const zstdBlock = 128 << 10

// Close frees the decoder.
func (z *zstdDecoder) Close() { z.decoder.Close() }

// Body returns the decompressed body. It is decompressed at the first Read, which
// returns the error if that fails.
func (z *zstdDecoder) Body(compressed io.ReadCloser) (io.ReadCloser, error) {
	return &zstdBody{z: z, compressed: compressed, out: z.memory.body()}, nil
}

type zstdBody struct {
	z          *zstdDecoder
	compressed io.ReadCloser
	out        *body // nil once closed
	begun      bool
	rest       []byte
	err        error
}

// Read returns decompressed bytes.
func (b *zstdBody) Read(p []byte) (int, error) {
	if b.out == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	if !b.begun {
		b.begun = true
		b.rest, b.err = b.decompress()
	}
	if b.err != nil {
		return 0, b.err
	}
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *zstdBody) decompress() ([]byte, error) {
	in := b.z.memory.body()
	defer in.free()
	if err := in.read(b.compressed); err != nil {
		return nil, err
	}
	if err := b.out.grow(int(b.z.limit) + zstdBlock); err != nil {
		return nil, err
	}
	out, err := b.z.decoder.DecodeAll(in.bytes, b.out.bytes)
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || int64(len(out)) > b.z.limit {
		return nil, &http.MaxBytesError{Limit: b.z.limit}
	}
	return out, err
}

// Close gives the memory back.
func (b *zstdBody) Close() error {
	if b.out != nil {
		b.out.free()
		b.out, b.rest = nil, nil
	}
	return b.compressed.Close()
}
