// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package perfevent

import (
	"os"
	"time"
)

// Uprobes are probes in programs, on Linux.
type Uprobes struct{}

// Uprobe is one place in a file, on Linux.
type Uprobe struct{}

// OpenUprobes returns ErrUnsupported.
func OpenUprobes(UprobeOptions) (*Uprobes, error) { return nil, ErrUnsupported }

// Attach returns ErrUnsupported.
func (*Uprobes) Attach(*os.File, uint64, int) (*Uprobe, error) { return nil, ErrUnsupported }

// Wait returns ErrUnsupported.
func (*Uprobes) Wait(time.Duration) error { return ErrUnsupported }

// Wake does nothing.
func (*Uprobes) Wake() {}

// Read returns false.
func (*Uprobes) Read(*UprobeRecord) bool { return false }

// Stats returns zeros.
func (*Uprobes) Stats() UprobeStats { return UprobeStats{} }

// Stale returns false.
func (*Uprobes) Stale([]int) bool { return false }

// CPUs returns none.
func (*Uprobes) CPUs() []int { return nil }

// Descriptors returns 0.
func (*Uprobes) Descriptors() int { return 0 }

// Close does nothing.
func (*Uprobes) Close() error { return nil }

// Detach does nothing.
func (*Uprobe) Detach() error { return nil }

// String returns nothing.
func (*Uprobe) String() string { return "" }
