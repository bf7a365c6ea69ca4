// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package policysource reads a document from where it is kept, a file or an HTTP
// server, and finds out whether it has changed. It does not know what is in it.
package policysource

import (
	"context"
	"errors"
)

// Source reads a document. One goroutine uses it.
type Source interface {
	// Read returns the document. changed is false, and there is no document, if it is
	// the one that was returned last. Read returns when the context ends, whatever
	// the file system or the server does.
	Read(ctx context.Context) (document []byte, changed bool, err error)
	// String names the source for the log.
	String() string
	// Close closes what is open between two reads.
	Close()
}

// errTimeout is returned for what does not answer in time.
var errTimeout = errors.New("it did not answer in time")
