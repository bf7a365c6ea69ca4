// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package ring

import (
	"errors"
	"time"
)

// Waiter is the part of a set of rings that sessions offer. There are none here.
type Waiter struct{}

// CPUs returns nil.
func (Waiter) CPUs() []int { return nil }

// Stale returns false.
func (Waiter) Stale([]int) bool { return false }

// LossPending returns false.
func (Waiter) LossPending() bool { return false }

// Wait fails.
func (Waiter) Wait(time.Duration) error { return errors.ErrUnsupported }

// Wake does nothing.
func (Waiter) Wake() {}
