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
	// stacksBytes bounds the profiles that are kept prepared between the requests of a
	// reader, of which there are several a click. The last two are kept whatever their
	// size, since a page compares two.
	stacksBytes = 32 << 20
	// stacksIdle is the time for which an unread one is kept.
	stacksIdle = time.Minute
)

// stacksKey identifies a profile at one time: while an opening lasts, it grows.
type stacksKey struct {
	opening string
	profile store.ProfileKey
	samples int64
	bytes   int64
	end     int64
}

// stacksCache keeps prepared profiles. What was not read for longest gives way. The bound of
// the answers that are computed at once also bounds the profiles that are parsed at once,
// which takes several times the memory of their files.
type stacksCache struct {
	mu      sync.Mutex
	entries map[stacksKey]*stacksEntry
	bytes   int64
	purge   *time.Timer
	hottest map[stacksKey]hottest // of the page of all openings
}

type stacksEntry struct {
	stacks *flame.Stacks
	used   time.Time
}

func newStacksCache() *stacksCache {
	return &stacksCache{entries: make(map[stacksKey]*stacksEntry), hottest: make(map[stacksKey]hottest)}
}

// get returns a profile, which load reads unless it is kept.
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

// evict removes what is too much or idle, and comes back for the rest. The caller holds
// the lock.
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

// keyOf returns the key of a profile as it is now.
func keyOf(o store.Opening, p store.ProfileInfo) stacksKey {
	return stacksKey{o.ID, p.ProfileKey, p.Samples, p.Bytes, p.End.UnixNano()}
}

// stacksOf returns a profile of an opening, prepared.
func (s *Server) stacksOf(ctx context.Context, o store.Opening, p store.ProfileInfo) (*flame.Stacks, error) {
	return s.stacks.get(keyOf(o, p), func() (*flame.Stacks, error) {
		in, err := s.Store.Profile(ctx, o.ID, p.ProfileKey)
		if err != nil {
			return nil, err
		}
		return flame.New(in), nil
	})
}
