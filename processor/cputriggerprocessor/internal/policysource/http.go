// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package policysource

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/boundedread"
	"github.com/hotprofile/hotprofile/internal/urls"
)

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
