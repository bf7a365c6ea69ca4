// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package policysource reads a document from a file or an HTTP server, and detects changes.
// It does not parse the document.
package policysource

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/boundedread"
	"github.com/hotprofile/hotprofile/internal/urls"
)

// Source reads a document. It is not safe for concurrent use.
type Source interface {
	// Read returns the document if it differs from the last document that Read returned.
	// Otherwise changed is false and document is nil. Read returns when the context ends,
	// even if the file system or the server hangs.
	Read(ctx context.Context) (document []byte, changed bool, err error)
	// String returns the name of the source for the log.
	String() string
	// Close releases the resources that are kept between reads.
	Close()
}

// errTimeout is returned if a source does not answer in time.
var errTimeout = errors.New("it did not answer in time")

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
	return &File{path: path, disk: make(boundedread.Disk, 1), settle: func(ctx context.Context) {
		select {
		case <-time.After(settleFor):
		case <-ctx.Done():
		}
	}}
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

// maxETag is the maximum length of an ETag in bytes. A longer ETag is ignored.
const maxETag = 1024

// HTTP is a document on an HTTP server.
type HTTP struct {
	client *http.Client
	url    string
	etag   string // ETag of the last document
	last   [sha256.Size]byte
}

// NewHTTP returns a source that reads the document at a URL. Redirects are errors, because
// they would send the client's credentials to another server.
func NewHTTP(client *http.Client, url string) *HTTP {
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &HTTP{client: &own, url: url}
}

// String returns the URL without its secrets.
func (h *HTTP) String() string { return urls.Shown(h.url) }

// Close closes idle connections.
func (h *HTTP) Close() { h.client.CloseIdleConnections() }

// Read implements Source.
func (h *HTTP) Read(ctx context.Context) (document []byte, changed bool, err error) {
	document, changed, err = h.read(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", errTimeout, err)
	}
	return document, changed, err
}

func (h *HTTP) read(ctx context.Context) (document []byte, changed bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.url, http.NoBody)
	if err != nil {
		return nil, false, fmt.Errorf("get %s: %w", h, urls.Cause(err))
	}
	req.Header.Set("Accept", "application/yaml, text/yaml, text/plain, */*")
	if h.etag != "" {
		req.Header.Set("If-None-Match", h.etag)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, false, fmt.Errorf("get %s: %w", h, urls.Cause(err))
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotModified && h.etag != "":
		return nil, false, nil
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return nil, false, fmt.Errorf("get %s: status %s: redirects are not followed: set the endpoint to where the policies are", h, resp.Status)
	case resp.StatusCode != http.StatusOK:
		return nil, false, fmt.Errorf("get %s: status %s", h, resp.Status)
	}
	data, err := boundedread.All(resp.Body, hotunitsextension.MaxPolicyFile)
	if err != nil {
		return nil, false, fmt.Errorf("get %s: %w", h, err)
	}
	if h.etag = resp.Header.Get("ETag"); len(h.etag) > maxETag {
		h.etag = ""
	}
	sum := sha256.Sum256(data)
	if sum == h.last {
		return nil, false, nil
	}
	h.last = sum
	return data, true, nil
}
