// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package uprobe

import (
	"os"
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
)

// Session is a set of probes. It cannot be opened here.
type Session struct{}

// Probe is a probe at one offset of a file.
type Probe struct{}

// Open returns an error that matches perfevent.ErrUnsupported.
func Open(Options) (*Session, error) { return nil, rights.Unsupported }

// Attach fails.
func (*Session) Attach(*os.File, uint64, int) (*Probe, error) { return nil, rights.Unsupported }

// Wait fails.
func (*Session) Wait(time.Duration) error { return rights.Unsupported }

// Wake does nothing.
func (*Session) Wake() {}

// Read returns false.
func (*Session) Read(*Record) bool { return false }

// Stats returns zeros.
func (*Session) Stats() Stats { return Stats{} }

// Stale returns false.
func (*Session) Stale([]int) bool { return false }

// CPUs returns nil.
func (*Session) CPUs() []int { return nil }

// Descriptors returns 0.
func (*Session) Descriptors() int { return 0 }

// Close does nothing.
func (*Session) Close() error { return nil }

// Detach does nothing.
func (*Probe) Detach() error { return nil }

// String returns "".
func (*Probe) String() string { return "" }
