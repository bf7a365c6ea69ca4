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

// File is a document in a file. Each read reads the whole file and compares the content. This
// comparison also detects changes that keep the file's time and size, and changed symbolic
// links of a ConfigMap.
type File struct {
	path   string
	disk   boundedread.Disk
	last   [sha256.Size]byte
	settle func(context.Context) // waits for settleFor, unless a test replaces it
}

const (
	// settleFor is the time after which a changed file is read again, because a writer may
	// not have finished. If both reads return the same content, the file is complete.
	settleFor = 250 * time.Millisecond
	// maxReads limits the repeated reads of a file that changes between reads.
	maxReads = 8
)

// NewFile returns the document in the file at a path.
func NewFile(path string) *File {
	return &File{path: path, disk: make(boundedread.Disk, 1), settle: settle}
}

// String returns the path.
func (f *File) String() string { return f.path }

// Close has no effect, because a read that hangs cannot be cancelled.
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

// read reads the file. If an earlier read has not returned, it waits for that read first.
func (f *File) read(ctx context.Context) ([]byte, error) {
	var data []byte
	err := f.disk.Do(ctx, func() (err error) {
		data, _, err = boundedread.File(f.path, hotunitsextension.MaxPolicyFile)
		return err
	})
	switch {
	case err == nil:
		return data, nil
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%s: %w", f.path, errTimeout)
	}
	return nil, err
}
