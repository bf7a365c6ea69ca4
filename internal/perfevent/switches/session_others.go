// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package switches

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
)

// Session is the context switches of a number of CPUs. It cannot be opened here.
type Session struct{}

// Open returns an error that matches perfevent.ErrUnsupported.
func Open(Options) (*Session, error) { return nil, rights.Unsupported }

// Snapshot fails.
func (*Session) Snapshot() error { return rights.Unsupported }

// Wait fails.
func (*Session) Wait(time.Duration) error { return rights.Unsupported }

// Wake does nothing.
func (*Session) Wake() {}

// Read returns false.
func (*Session) Read(*Record) bool { return false }

// Through returns 0.
func (*Session) Through() int64 { return 0 }

// Corrupt returns 0.
func (*Session) Corrupt() uint64 { return 0 }

// CPUs returns nil.
func (*Session) CPUs() []int { return nil }

// Stale returns false.
func (*Session) Stale([]int) bool { return false }

// Close does nothing.
func (*Session) Close() error { return nil }
