// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"slices"
	"sync"

	"go.opentelemetry.io/collector/component"
)

// MaxPolicyFile bounds a list of policies that is read while a component runs, in bytes
// after decompression. Parsing one that is made to take much takes up to 120 times as
// much memory for a moment.
const MaxPolicyFile = 256 << 10

// PolicyFile is a file from which a component reads its policies while it runs.
type PolicyFile struct {
	// Reader is the component.
	Reader component.ID
	Path   string
	// Check returns what is wrong with a document, each fault with its line; nil if the
	// reader would put its policies in force.
	Check func(document []byte) error
	// Doubts returns what is probably a mistake in a document that Check accepts. It may be
	// nil.
	Doubts func(document []byte) []string
	// Version returns the version in force: the beginning of the SHA-256 of the document
	// that was read last and accepted. It is empty before the first one.
	Version func() string
}

type policyFiles struct {
	mu  sync.Mutex
	all []*PolicyFile
}

// AddPolicyFile makes PolicyFiles return a file, for those who edit it. Call remove at
// the end; it may be called twice.
func (h *HotUnits) AddPolicyFile(f PolicyFile) (remove func()) {
	h.policyFiles.mu.Lock()
	defer h.policyFiles.mu.Unlock()
	h.policyFiles.all = append(h.policyFiles.all, &f)
	return func() {
		h.policyFiles.mu.Lock()
		defer h.policyFiles.mu.Unlock()
		h.policyFiles.all = slices.DeleteFunc(h.policyFiles.all, func(other *PolicyFile) bool { return other == &f })
	}
}

// PolicyFiles returns the files from which components read policies. One that several
// read is there for each. A nil HotUnits has none.
func (h *HotUnits) PolicyFiles() (files []PolicyFile) {
	if h == nil {
		return nil
	}
	h.policyFiles.mu.Lock()
	defer h.policyFiles.mu.Unlock()
	for _, f := range h.policyFiles.all {
		files = append(files, *f)
	}
	return files
}
