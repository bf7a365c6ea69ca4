// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"crypto/sha256"
	"encoding/hex"

	"go.opentelemetry.io/collector/component"
)

// MaxPolicyFile is the maximum size of a list of policies that is read while a component
// runs. The size is in bytes after decompression. Parsing a hostile list briefly takes
// up to 120 times as much memory.
const MaxPolicyFile = 256 << 10

// PolicyFile is a file from which a component reads its policies while it runs.
type PolicyFile struct {
	// Reader is the component that reads the file.
	Reader component.ID
	Path   string
	// Check returns the faults of a document with their lines. It returns nil if the reader
	// would accept the policies.
	Check func(document []byte) error
	// Doubts returns probable mistakes in a document that Check accepts. It may be nil.
	Doubts func(document []byte) []string
	// Version returns the version in force, which is the PolicyVersion of the last
	// document that was read and accepted. It returns an empty string before the first
	// document.
	Version func() string
}

// PolicyVersion returns the version of a document. The version consists of the first 12
// hexadecimal digits of the document's SHA-256 hash.
func PolicyVersion(document []byte) string {
	sum := sha256.Sum256(document)
	return hex.EncodeToString(sum[:])[:12]
}

// AddPolicyFile registers a file, so that components that edit policies can find it.
// remove unregisters the file, and may be called twice.
func (h *HotUnits) AddPolicyFile(f PolicyFile) (remove func()) { return h.policyFiles.add(f) }

// PolicyFiles returns the files from which components read policies. If a file has
// several readers, it is returned once per reader. If h is nil, there are no files.
func (h *HotUnits) PolicyFiles() []PolicyFile {
	if h == nil {
		return nil
	}
	return h.policyFiles.list()
}
