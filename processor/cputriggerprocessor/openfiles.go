// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

// maxOpenFiles bounds the files that readings keep open; beyond it they are
// opened for each reading.
const maxOpenFiles = 4096

// openFiles is how many files readings may keep open where the process may have
// so many: a quarter, since the samplers take up to half, and connections and
// files of other components need some too.
func openFiles(limit int) int { return min(limit/4, maxOpenFiles) }
