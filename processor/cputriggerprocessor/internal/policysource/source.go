// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package policysource reads a document from a file or an HTTP server, and detects changes.
// It does not parse the document.
package policysource

import (
	"context"
	"errors"
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
