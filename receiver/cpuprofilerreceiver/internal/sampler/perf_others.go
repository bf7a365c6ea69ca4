// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package sampler

// Perf is empty, because perf events need Linux.
type Perf struct{}
