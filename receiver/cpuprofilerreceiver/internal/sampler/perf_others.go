// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package sampler

// Perf needs Linux.
type Perf struct{}
