// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"math"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/flame"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const (
	// One click causes several requests. Prepared profiles are therefore kept between
	// requests, up to stacksBytes bytes. The last two profiles are always kept, because
	// a page compares two profiles.
	stacksBytes = 32 << 20
	// stacksIdle is the time without any use after which all profiles are removed.
	stacksIdle = time.Minute
)

// stacksKey identifies one state of a profile, because a profile grows while its gate is
// open.
type stacksKey struct {
	opening string
	profile store.ProfileKey
	samples int64
	bytes   int64
	end     int64
}

// stacksCache keeps prepared profiles, and removes the least recently used profile first.
// Parsing a profile takes several times the memory of the profile's files. computedAtOnce
// therefore also limits the number of profiles that are parsed at once.
type stacksCache struct {
	mu      sync.Mutex
	entries *simplelru.LRU[stacksKey, *flame.Stacks]
	bytes   int64
	idle    *time.Timer
	hottest *lru.Cache[stacksKey, hottest] // hottest functions on the page of all openings
}

func newStacksCache() *stacksCache {
	c := &stacksCache{}
	c.entries, _ = simplelru.NewLRU(math.MaxInt, func(_ stacksKey, s *flame.Stacks) { c.bytes -= s.Size() })
	c.hottest, _ = lru.New[stacksKey, hottest](hottestKept) // both fail only for a size of 0
	c.idle = time.AfterFunc(stacksIdle, c.clear)
	return c
}

func (c *stacksCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries.Purge()
}

// get returns a prepared profile. If the cache does not contain the
// profile, get calls load.
func (c *stacksCache) get(key stacksKey, load func() (*flame.Stacks, error)) (*flame.Stacks, error) {
	c.idle.Reset(stacksIdle)
	c.mu.Lock()
	stacks, ok := c.entries.Get(key)
	c.mu.Unlock()
	if !ok {
		var err error
		if stacks, err = load(); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept, ok := c.entries.Get(key); ok {
		return kept, nil // perhaps another reader was faster
	}
	c.entries.Add(key, stacks)
	c.bytes += stacks.Size()
	for c.bytes > stacksBytes && c.entries.Len() > 2 {
		c.entries.RemoveOldest()
	}
	return stacks, nil
}

// keyOf returns the key of the current state of a profile.
func keyOf(o store.Opening, p store.ProfileInfo) stacksKey {
	return stacksKey{o.ID, p.ProfileKey, p.Samples, p.Bytes, p.End.UnixNano()}
}

// stacksOf returns a prepared profile of an opening.
func (s *Server) stacksOf(ctx context.Context, o store.Opening, p store.ProfileInfo) (*flame.Stacks, error) {
	return s.stacks.get(keyOf(o, p), func() (*flame.Stacks, error) {
		in, err := s.Store.Profile(ctx, o.ID, p.ProfileKey)
		if err != nil {
			return nil, err
		}
		return flame.New(in), nil
	})
}
