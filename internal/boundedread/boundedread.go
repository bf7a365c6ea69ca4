// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package boundedread reads streams and files with a size limit. It refuses paths that
// do not lead to a regular file.
package boundedread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/hotprofile/hotprofile/internal/late"
)

var (
	// ErrTooLarge is returned if the content exceeds the limit.
	ErrTooLarge = errors.New("it is too large")
	// ErrNotRegular is returned for a directory, pipe, device or socket.
	ErrNotRegular = errors.New("it is not a regular file")
)

// All reads a stream of at most limit bytes. If the stream is longer, All
// returns ErrTooLarge and no bytes.
func All(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	return b, nil
}

// File reads a regular file of at most limit bytes. It also returns the FileInfo of the
// file. File does not open other kinds of files, because opening a pipe waits for a
// writer. If the disk does not respond, File blocks.
func File(path string, limit int64) ([]byte, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s: %w", path, ErrNotRegular)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s: %w", path, ErrNotRegular)
	}
	b, err := All(f, limit)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, info, nil
}

// Disk runs functions that access the disk, one at a time. If a file system does not
// respond, only the goroutine of the current function is blocked. The channel contains a
// token while a function runs, so the channel must have room for one token.
type Disk chan struct{}

// Do calls the function use, which accesses the disk. If the context ends first, Do returns
// the error of the context. The function then continues, and later calls of Do wait for it.
func (d Disk) Do(ctx context.Context, use func() error) error {
	select {
	case d <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	return late.Call(ctx, func() error {
		defer func() { <-d }()
		return use()
	})
}
