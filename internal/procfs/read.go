// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"errors"
	"fmt"
	"io"
)

var (
	// ErrTooLarge is returned for a file that exceeds the limit of the read.
	ErrTooLarge = errors.New("file too large")
	// ErrMalformed is returned for content that the kernel does not write to such a file.
	ErrMalformed = errors.New("malformed content")
)

// ReadFile reads a file of at most limit bytes. If the file is longer, ReadFile returns its
// first limit bytes and [ErrTooLarge].
func ReadFile(path string, limit int) ([]byte, error) { return AppendFile(nil, path, limit) }

// AppendFile is like [ReadFile], but reads into the memory of buf, which grows as
// needed. It discards the content of buf. It returns the buffer even on an error, so
// that the caller can reuse the buffer.
func AppendFile(buf []byte, path string, limit int) ([]byte, error) {
	buf = buf[:0]
	f, err := Open(path)
	if err != nil {
		return buf, err
	}
	defer f.Close()
	for {
		if len(buf) > limit {
			return buf[:limit], fmt.Errorf("read %s: more than %d bytes: %w", path, limit, ErrTooLarge)
		}
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), max(512, min(2*cap(buf), limit+512)))
			copy(grown, buf)
			buf = grown
		}
		n, err := f.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) && len(buf) <= limit {
			return buf, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return buf[:0], err
		}
	}
}

// ParseFile parses a file of at most limit bytes.
func ParseFile[T any](path string, limit int, parse func([]byte) (T, error)) (parsed T, err error) {
	b, err := ReadFile(path, limit)
	if err != nil {
		return parsed, err
	}
	if parsed, err = parse(b); err != nil {
		return parsed, fmt.Errorf("%s: %w", path, err)
	}
	return parsed, nil
}
