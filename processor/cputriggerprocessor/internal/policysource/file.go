// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package policysource

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/boundedread"
)

// File is a document in a file. Each read reads the whole file and compares the content.
// This also detects changes that keep the file's time and size, and changed symbolic links
// of a ConfigMap.
type File struct {
	path string
	// pending receives the result of a read that has not returned yet. Otherwise it is nil.
	// Therefore a file system that hangs blocks only one goroutine, however often Read is
	// called.
	pending chan contents
	last    [sha256.Size]byte
	settle  func(context.Context) // waits for settleFor, unless a test replaces it
}

type contents struct {
	data []byte
	err  error
}

const (
	// settleFor is the time after which a changed file is read again, because a writer may
	// not have finished. If both reads return the same content, the file is complete.
	settleFor = 250 * time.Millisecond
	// maxReads limits the repeated reads of a file that changes between reads.
	maxReads = 8
)

// NewFile returns the document in the file at a path.
func NewFile(path string) *File { return &File{path: path, settle: settle} }

// String returns the path.
func (f *File) String() string { return f.path }

// Close does nothing, because a read that hangs cannot be cancelled.
func (*File) Close() {}

// Read implements Source.
func (f *File) Read(ctx context.Context) (document []byte, changed bool, err error) {
	data, err := f.read(ctx)
	if err != nil {
		return nil, false, err
	}
	for range maxReads {
		if sha256.Sum256(data) == f.last {
			return nil, false, nil
		}
		f.settle(ctx)
		again, err := f.read(ctx)
		if err != nil {
			return nil, false, err
		}
		if bytes.Equal(data, again) {
			f.last = sha256.Sum256(data)
			return data, true, nil
		}
		data = again
	}
	return nil, false, fmt.Errorf("%s: it changed each time that it was read; write another file and rename it", f.path)
}

func settle(ctx context.Context) {
	timer := time.NewTimer(settleFor)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// read reads the file on a separate goroutine. If an earlier read has not returned, it
// waits for that read first.
func (f *File) read(ctx context.Context) ([]byte, error) {
	if f.pending != nil {
		select {
		case <-f.pending: // its contents may be old
			f.pending = nil
		case <-ctx.Done():
			return nil, f.ended(ctx)
		}
	}
	done := make(chan contents, 1)
	f.pending = done
	go func() {
		data, _, err := boundedread.File(f.path, hotunitsextension.MaxPolicyFile)
		done <- contents{data, err}
	}()
	select {
	case c := <-done:
		f.pending = nil
		return c.data, c.err
	case <-ctx.Done():
		return nil, f.ended(ctx)
	}
}

func (f *File) ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", f.path, errTimeout)
	}
	return ctx.Err()
}
