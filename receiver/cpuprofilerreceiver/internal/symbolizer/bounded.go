// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package symbolizer

import (
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// bounded is a cache that limits the memory and the file descriptors of its values. Its
// methods require the Symbolizer's lock.
type bounded[K comparable, V interface {
	comparable
	state() *cached
	// uses returns the memory in bytes and the number of file descriptors of the value.
	uses() (bytes int64, descriptors int)
}] struct {
	*simplelru.LRU[K, V]
	// bytes and descriptors are the sums of all values.
	bytes, maxBytes             int64
	descriptors, maxDescriptors int
	evictions                   uint64
	// standing returns the rank of a value in the order of eviction.
	standing func(V) standing
}

// cached is the state of a value of a bounded cache.
type cached struct {
	// bytes and descriptors are the counted part of the cache's sums.
	bytes       int64
	descriptors int
	at          time.Time // the time of the last use
	batch       uint64    // the last batch with samples, or 0
}

func (c *cached) state() *cached { return c }

// init makes a cache of at most size values. drop is called for each value that leaves it.
func (b *bounded[K, V]) init(size int, drop func(V), standing func(V) standing) {
	b.standing = standing
	b.LRU, _ = simplelru.NewLRU(size, func(_ K, v V) {
		drop(v)
		b.bytes -= v.state().bytes
		b.descriptors -= v.state().descriptors
	}) // fails only for a size below 1
}

// has reports whether v is in the cache.
func (b *bounded[K, V]) has(k K, v V) bool {
	known, ok := b.Peek(k)
	return ok && known == v
}

// account counts what v uses now, and evicts other values while a sum is too large. It
// ignores a value that is not in the cache.
func (b *bounded[K, V]) account(k K, v V) {
	if !b.has(k, v) {
		return
	}
	c := v.state()
	bytes, descriptors := v.uses()
	b.bytes, c.bytes = b.bytes+bytes-c.bytes, bytes
	b.descriptors, c.descriptors = b.descriptors+descriptors-c.descriptors, descriptors
	for b.bytes > b.maxBytes || b.descriptors > b.maxDescriptors {
		var least K
		var rank standing
		found := false
		for _, k := range b.Keys() { // the least recently used first
			other, _ := b.Peek(k)
			c := other.state()
			helps := b.bytes > b.maxBytes && c.bytes > 0 || b.descriptors > b.maxDescriptors && c.descriptors > 0
			if of := b.standing(other); other != v && helps && (!found || of.before(rank)) {
				least, rank, found = k, of, true
			}
		}
		if !found {
			return
		}
		b.Remove(least)
		b.evictions++
	}
}

// expire removes values that were not used for idleTimeout.
func (b *bounded[K, V]) expire(now time.Time) {
	for {
		k, v, ok := b.GetOldest()
		if !ok || now.Sub(v.state().at) < idleTimeout {
			return
		}
		b.Remove(k)
	}
}

// standing is the rank of an object or perf map in the order of eviction. Objects without
// samples in the current or the previous batch are evicted first, beginning with the
// least recently used object. The other objects follow, beginning with the largest
// object. Objects of hot units are evicted last.
type standing struct {
	class int // 0: idle, 1: in use, 2: used by a hot unit
	batch uint64
	size  int64
}

func (s *Symbolizer) standing(c *cached, hot bool) standing {
	switch {
	case c.batch+1 < s.batch:
		return standing{batch: c.batch}
	case hot:
		return standing{class: 2, size: c.bytes}
	}
	return standing{class: 1, size: c.bytes}
}

// before reports whether a is evicted before b.
func (a standing) before(b standing) bool {
	switch {
	case a.class != b.class:
		return a.class < b.class
	case a.batch != b.batch:
		return a.batch < b.batch
	}
	return a.size > b.size
}
