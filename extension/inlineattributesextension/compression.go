// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inlineattributesextension

import (
	"bytes"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// compression is a compression that confighttp clients support.
type compression struct {
	reader func(io.Reader) (io.Reader, error)
	writer func(io.Writer) (io.WriteCloser, error)
}

// compressions returns the compressions of confighttp, by the value of Content-Encoding.
// All use the default level.
func compressions() map[string]compression {
	deflate := compression{
		func(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) },
		func(w io.Writer) (io.WriteCloser, error) { return zlib.NewWriter(w), nil },
	}
	return map[string]compression{
		"": {
			func(r io.Reader) (io.Reader, error) { return r, nil },
			func(w io.Writer) (io.WriteCloser, error) { return nopCloser{w}, nil },
		},
		"gzip": {
			func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
			func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
		},
		"zlib":    deflate,
		"deflate": deflate,
		"zstd": {
			func(r io.Reader) (io.Reader, error) {
				d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxRequest))
				if err != nil {
					return nil, err
				}
				return d.IOReadCloser(), nil
			},
			func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)) },
		},
		"snappy": {readBlock, func(w io.Writer) (io.WriteCloser, error) { return &blockWriter{to: w}, nil }},
		"x-snappy-framed": {
			func(r io.Reader) (io.Reader, error) { return snappy.NewReader(r), nil },
			func(w io.Writer) (io.WriteCloser, error) { return snappy.NewBufferedWriter(w), nil },
		},
		"lz4": {
			func(r io.Reader) (io.Reader, error) { return lz4.NewReader(r), nil },
			func(w io.Writer) (io.WriteCloser, error) { return lz4.NewWriter(w), nil },
		},
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// readBlock decompresses snappy's block format, which has no frames.
func readBlock(r io.Reader) (io.Reader, error) {
	compressed, err := io.ReadAll(io.LimitReader(r, maxRequest))
	if err != nil {
		return nil, err
	}
	size, err := s2.DecodedLen(compressed)
	if err != nil {
		return nil, err
	}
	if size > maxRequest {
		return nil, s2.ErrTooLarge
	}
	body, err := snappy.Decode(nil, compressed)
	return bytes.NewReader(body), err
}

// blockWriter compresses to snappy's block format when it is closed.
type blockWriter struct {
	to   io.Writer
	body []byte
}

func (w *blockWriter) Write(p []byte) (int, error) {
	w.body = append(w.body, p...)
	return len(p), nil
}

func (w *blockWriter) Close() error {
	_, err := w.to.Write(snappy.Encode(nil, w.body))
	return err
}
