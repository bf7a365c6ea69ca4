// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package late waits for work that may never end, such as a call of a component that hangs,
// or a read of a file system that does not respond. The work that is late is left behind.
package late

import (
	"context"
	"time"
)

// Wait waits until done is closed. When the context ends, Wait calls cancel, and waits for
// at most grace. It reports whether done was closed.
func Wait(ctx context.Context, done <-chan struct{}, cancel func(), grace time.Duration) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	cancel()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// Call calls a function on a separate goroutine. If the context ends first, Call returns the
// error of the context, and the function continues.
func Call(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
