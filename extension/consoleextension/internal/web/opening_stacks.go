// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"sync"
	"time"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/flame"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

const (
	// stacksBytes bounds the prepared profiles that are kept between requests, because one
	// click causes several requests. The last two profiles are kept regardless of their
	// size, because a page compares two.
	stacksBytes = 32 << 20
	// stacksIdle is the time after which an unused profile is removed.
	stacksIdle = time.Minute
)

// stacksKey identifies one state of a profile. A profile grows while its gate is open.
type stacksKey struct {
	opening string
	profile store.ProfileKey
	samples int64
	bytes   int64
	end     int64
}

// stacksCache keeps prepared profiles. It removes the least recently used profile first.
// Parsing a profile takes several times the memory of the profile's files. computedAtOnce
// therefore also bounds the profiles that are parsed at once.
type stacksCache struct {
	mu      sync.Mutex
	entries map[stacksKey]*stacksEntry
	bytes   int64
	purge   *time.Timer
	hottest map[stacksKey]hottest // hottest functions on the page of all openings
}

type stacksEntry struct {
	stacks *flame.Stacks
	used   time.Time
}

func newStacksCache() *stacksCache {
	return &stacksCache{entries: make(map[stacksKey]*stacksEntry), hottest: make(map[stacksKey]hottest)}
}

// get returns a prepared profile. It calls load if the profile is not kept.
func (c *stacksCache) get(key stacksKey, load func() (*flame.Stacks, error)) (*flame.Stacks, error) {
	c.mu.Lock()
	e := c.entries[key]
	c.mu.Unlock()
	if e == nil {
		stacks, err := load()
		if err != nil {
			return nil, err
		}
		e = &stacksEntry{stacks: stacks}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[key] == nil {
		c.entries[key] = e
		c.bytes += e.stacks.Size()
	}
	c.entries[key].used = time.Now()
	c.evict(time.Now())
	return e.stacks, nil
}

// evict removes profiles that are idle or beyond the limit. If profiles are left, it runs
// again after stacksIdle. The caller holds the lock.
func (c *stacksCache) evict(now time.Time) {
	for {
		var oldest stacksKey
		var of *stacksEntry
		for key, e := range c.entries {
			if of == nil || e.used.Before(of.used) {
				oldest, of = key, e
			}
		}
		idle := of != nil && now.Sub(of.used) >= stacksIdle
		if of == nil || !idle && (c.bytes <= stacksBytes || len(c.entries) <= 2) {
			break
		}
		delete(c.entries, oldest)
		c.bytes -= of.stacks.Size()
	}
	if c.purge != nil {
		c.purge.Stop()
	}
	if len(c.entries) > 0 {
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
