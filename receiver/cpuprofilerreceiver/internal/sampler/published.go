// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import "sync"

// Published is a value that one goroutine sets and other goroutines get.
type Published[T any] struct {
	mu    sync.Mutex
	value T
}

// Set sets the value.
func (p *Published[T]) Set(value T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.value = value
}

// Get returns the value of the last Set.
func (p *Published[T]) Get() T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.value
}
