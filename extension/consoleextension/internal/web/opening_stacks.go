// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"errors"
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
	// stacksLoading is the number of profiles that are read and parsed at once: parsing
	// one takes several times the memory of its file.
	stacksLoading = 2
)

// stacksKey identifies a profile at one time: while an opening lasts, it grows.
type stacksKey struct {
	opening string
	profile store.ProfileKey
	samples int64
	bytes   int64
	end     int64
}

// stacksCache keeps prepared profiles. What was not read for longest gives way.
type stacksCache struct {
	loading chan struct{}

	mu      sync.Mutex
	entries map[stacksKey]*stacksEntry
	bytes   int64
	purge   *time.Timer
	hottest map[stacksKey]hottest // of the page of all openings
}

type stacksEntry struct {
	ready  chan struct{} // closed when stacks or err is set
	stacks *flame.Stacks
	err    error
	used   time.Time
}

func newStacksCache() *stacksCache {
	return &stacksCache{loading: make(chan struct{}, stacksLoading), entries: make(map[stacksKey]*stacksEntry), hottest: make(map[stacksKey]hottest)}
}

// get returns a profile, which load reads unless it is kept. Requests for the same
// profile wait for the first of them.
func (c *stacksCache) get(ctx context.Context, key stacksKey, load func() (*flame.Stacks, error)) (*flame.Stacks, error) {
	for {
		c.mu.Lock()
		e, found := c.entries[key]
		if !found {
			e = &stacksEntry{ready: make(chan struct{})}
			c.entries[key] = e
		}
		e.used = time.Now()
		c.mu.Unlock()
		if !found {
			c.fill(ctx, key, e, load)
		}
		select {
		case <-e.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// The first request may have been given up by its browser.
		if found && (errors.Is(e.err, context.Canceled) || errors.Is(e.err, context.DeadlineExceeded)) {
			continue
		}
		return e.stacks, e.err
	}
}

// fill loads the profile of an entry.
func (c *stacksCache) fill(ctx context.Context, key stacksKey, e *stacksEntry, load func() (*flame.Stacks, error)) {
	e.err = errors.New("reading the profile panicked")
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if e.err != nil {
			delete(c.entries, key)
		} else {
			c.bytes += e.stacks.Size()
			c.evict(time.Now())
		}
		close(e.ready)
	}()
	select {
	case c.loading <- struct{}{}:
		defer func() { <-c.loading }()
		e.stacks, e.err = load()
	case <-ctx.Done():
		e.err = ctx.Err()
	}
}

// evict removes what is too much or idle, and comes back for the rest. The caller holds
// the lock.
func (c *stacksCache) evict(now time.Time) {
	for {
		var oldest stacksKey
		var of *stacksEntry
		loaded := 0
		for key, e := range c.entries {
			if e.stacks == nil {
				continue
			}
			loaded++
			if of == nil || e.used.Before(of.used) {
				oldest, of = key, e
			}
		}
		idle := of != nil && now.Sub(of.used) >= stacksIdle
		if of == nil || !idle && (c.bytes <= stacksBytes || loaded <= 2) {
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
	return s.stacks.get(ctx, keyOf(o, p), func() (*flame.Stacks, error) {
		in, err := s.Store.Profile(ctx, o.ID, p.ProfileKey)
		if err != nil {
			return nil, err
		}
		return flame.New(in), nil
	})
}
