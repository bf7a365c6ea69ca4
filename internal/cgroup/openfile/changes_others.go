// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package openfile

// NewChanges returns a set that watches nothing: it needs Linux.
func NewChanges(int) *Changes { return &Changes{} }

// Watch returns nil: it needs Linux.
func (c *Changes) Watch(string) *Watch { return nil }

// Close does nothing.
func (w *Watch) Close() {}

// Take does nothing.
func (c *Changes) Take() {}

// Close does nothing.
func (c *Changes) Close() {}
