// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package uprobe

import (
	"os"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
)

// Session is a set of probes. It cannot be opened here.
type Session struct{ ring.Waiter }

// Probe is a probe at one offset of a file.
type Probe struct{}

// Open returns a *perfevent.UnsupportedError.
func Open(Options) (*Session, error) { return nil, rights.Unsupported }

// Attach fails.
func (*Session) Attach(*os.File, uint64, int) (*Probe, error) { return nil, rights.Unsupported }

// Read returns false.
func (*Session) Read(*Record) bool { return false }

// Stats returns zeros.
func (*Session) Stats() Stats { return Stats{} }

// Close does nothing.
func (*Session) Close() error { return nil }

// Detach does nothing.
func (*Probe) Detach() error { return nil }
