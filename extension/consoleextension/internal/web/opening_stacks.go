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
	// stacksIdle is the time after which an unused profile is removed.
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
	entries *simplelru.LRU[stacksKey, *stacksEntry]
	bytes   int64
	purge   *time.Timer
	hottest *lru.Cache[stacksKey, hottest] // hottest functions on the page of all openings
}

type stacksEntry struct {
	stacks *flame.Stacks
	used   time.Time
}

func newStacksCache() *stacksCache {
	entries, _ := simplelru.NewLRU[stacksKey, *stacksEntry](math.MaxInt, nil) // both fail only for a size of 0
	hottest, _ := lru.New[stacksKey, hottest](hottestKept)
	return &stacksCache{entries: entries, hottest: hottest}
}

// get returns a prepared profile. If the cache does not contain the
// profile, get calls load.
func (c *stacksCache) get(key stacksKey, load func() (*flame.Stacks, error)) (*flame.Stacks, error) {
	c.mu.Lock()
	e, ok := c.entries.Get(key)
	c.mu.Unlock()
	if !ok {
		stacks, err := load()
		if err != nil {
			return nil, err
		}
		e = &stacksEntry{stacks: stacks}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept, ok := c.entries.Get(key); ok {
		e = kept // another reader was faster
	} else {
		c.entries.Add(key, e)
		c.bytes += e.stacks.Size()
	}
	e.used = time.Now()
	c.evict(e.used)
	return e.stacks, nil
}

// evict removes idle profiles, and the least recently used profiles while the
// cache is too large. If profiles are left, evict runs again after
// stacksIdle. The caller holds the lock.
func (c *stacksCache) evict(now time.Time) {
	for {
		_, oldest, ok := c.entries.GetOldest()
		if !ok || now.Sub(oldest.used) < stacksIdle && (c.bytes <= stacksBytes || c.entries.Len() <= 2) {
			break
		}
		c.entries.RemoveOldest()
		c.bytes -= oldest.stacks.Size()
	}
	if c.purge != nil {
		c.purge.Stop()
	}
	if c.entries.Len() > 0 {
		c.purge = time.AfterFunc(stacksIdle, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.evict(time.Now())
		})
	}
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
