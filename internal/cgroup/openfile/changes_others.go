// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package openfile

// NewChanges returns a set without watches, because inotify needs Linux.
func NewChanges(int) *Changes { return &Changes{} }

// Watch returns nil, because inotify needs Linux.
func (c *Changes) Watch(...File) *Watch { return nil }

// Close has no effect, because there are no watches.
func (w *Watch) Close() {}

// Take has no effect, because there are no watches.
func (c *Changes) Take() {}

// Close has no effect, because there are no watches.
func (c *Changes) Close() {}
