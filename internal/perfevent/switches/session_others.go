// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package switches

import (
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
)

// Session is the context switches of a number of CPUs. It cannot be opened here.
type Session struct{ ring.Waiter }

// Open returns a *perfevent.UnsupportedError.
func Open(Options) (*Session, error) { return nil, rights.Unsupported }

// Snapshot fails.
func (*Session) Snapshot() error { return rights.Unsupported }

// Read returns false.
func (*Session) Read(*Record) bool { return false }

// Through returns 0.
func (*Session) Through() int64 { return 0 }

// Close does nothing.
func (*Session) Close() error { return nil }
