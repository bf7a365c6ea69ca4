// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inlineattributesextension

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"

	"github.com/hotprofile/hotprofile/internal/boundedread"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/inline"
)

// profilesPath is the end of the URL path of requests with profiles, unless
// profiles_endpoint is set.
const profilesPath = "/v1development/profiles"

// maxRequest is the maximum size of a decompressed request, in bytes.
const maxRequest = 256 << 20

// roundTripper rewrites requests with profiles. The exporter has already compressed the
// requests, so roundTripper decompresses them and compresses them again in the same way.
type roundTripper struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t *roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	if !hasProfiles(request) {
		return t.next.RoundTrip(request)
	}
	body, err := rewrite(request)
	if err != nil {
		// A retry would fail in the same way. After a permanent error, the exporter drops
		// the request, logs the error and counts the lost samples.
		return nil, consumererror.NewPermanent(fmt.Errorf("inline_attributes: %w", err))
	}
	changed := request.Clone(request.Context())
	changed.ContentLength = int64(len(body))
	changed.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	changed.Body, _ = changed.GetBody()
	return t.next.RoundTrip(changed)
}

// hasProfiles reports whether a request exports profiles. Exporters of version 0.164 and
// newer set a header only on these requests.
func hasProfiles(request *http.Request) bool {
	return request.Body != nil && (request.Header.Get(pprofileotlp.DevelopmentVersionHeader) != "" ||
		strings.HasSuffix(request.URL.Path, profilesPath))
}

// rewrite reads and closes the request's body, and returns the body to send.
func rewrite(request *http.Request) ([]byte, error) {
	defer request.Body.Close()
	name := request.Header.Get("Content-Encoding")
	compression, ok := compressions()[name]
	if !ok {
		return nil, fmt.Errorf("the exporter's compression %q is not known", name)
	}
	in, err := compression.reader(request.Body)
	if err != nil {
		return nil, fmt.Errorf("decompress the request (%s): %w", name, err)
	}
	body, err := boundedread.All(in, maxRequest)
	if errors.Is(err, boundedread.ErrTooLarge) {
		return nil, fmt.Errorf("the request is larger than %d MiB; set sending_queue.batch.max_size of the exporter", maxRequest>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("decompress the request (%s): %w", name, err)
	}
	inlined := inline.Request
	if media, _, err := mime.ParseMediaType(request.Header.Get("Content-Type")); err == nil && media == "application/json" {
		inlined = inline.JSON
	}
	if body, err = inlined(body); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	to, err := compression.writer(&out)
	if err != nil {
		return nil, err
	}
	if _, err := to.Write(body); err != nil {
		return nil, err
	}
	if err := to.Close(); err != nil {
		return nil, fmt.Errorf("compress the request (%s): %w", name, err)
	}
	return out.Bytes(), nil
}
