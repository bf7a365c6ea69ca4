// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package watch

// maxOpenFiles bounds the files that readings keep open; further ones are opened
// for each reading.
const maxOpenFiles = 4096

// OpenFiles returns how many files readings may keep open where the process may
// open limit: a quarter. Samplers take up to half, and connections and files of
// other components need some.
func OpenFiles(limit int) int { return min(limit/4, maxOpenFiles) }
