// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hotprofile/hotprofile/test/otlppeer"
)

// mood is the way in which the backend responds.
type mood string

const (
	healthy     mood = "healthy"
	gone        mood = "gone"        // connections are refused
	slow        mood = "slow"        // each response takes slowAnswer
	hanging     mood = "hanging"     // no response until the sender gives up
	unavailable mood = "unavailable" // no request is accepted; the sender may retry
	invalid     mood = "invalid"     // no request is accepted; the sender must not retry
	forgetful   mood = "forgetful"   // everything is stored, but the response is an error
	restarting  mood = "restarting"  // healthy, but gone for short moments
)

const (
	slowAnswer = time.Second
	// leastTime is the minimum time before the sender's timeout at which the backend
	// responds. With less time left, the sender might give up before the response arrives,
	// and the test could not know which profiles were delivered.
	leastTime = time.Second
)

// maxProfiles is the maximum number of profiles that the backend remembers.
// The number is large enough for a soak of more than an hour.
const maxProfiles = 4 << 20

// backend is the server that receives the profiles. It remembers the ID of
// each profile, so that it recognizes a profile that arrives again.
type backend struct {
	peer *otlppeer.Server

	mu      sync.Mutex
	mood    mood
	direct  bool          // the sender has no queue and counts each refused profile itself
	changed chan struct{} // closed when the mood changes
	// delivered and rejected contain the number of events of each profile.
	// delivered contains the accepted profiles, and rejected contains the
	// profiles that were refused for good.
	delivered, rejected map[pprofile.ProfileID]int
	out                 int64 // events in delivered
	twice               int64 // events of profiles that arrived again
	nameless            int64 // profiles without an ID
	requests            map[mood]int64
	dropped             bool // maxProfiles was reached
}

func newBackend() *backend {
	b := &backend{
		mood: healthy, changed: make(chan struct{}), requests: map[mood]int64{},
		delivered: map[pprofile.ProfileID]int{}, rejected: map[pprofile.ProfileID]int{},
	}
	b.peer = otlppeer.New(b.take)
	return b
}

func (b *backend) take(ctx context.Context, pd pprofile.Profiles) error {
	b.mu.Lock()
	m, changed := b.mood, b.changed
	b.requests[m]++
	b.mu.Unlock()
	switch m {
	case slow:
		select {
		case <-time.After(slowAnswer):
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	case hanging:
		<-ctx.Done()
		return ctx.Err()
	case unavailable:
		return status.Error(codes.Unavailable, "the backend is not available")
	case invalid:
		b.keep(pd, false)
		return status.Error(codes.InvalidArgument, "the backend does not want this")
	}
	if deadline, has := ctx.Deadline(); has && time.Until(deadline) < leastTime {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	b.keep(pd, true)
	if m == forgetful {
		return status.Error(codes.Unavailable, "the backend has taken it and forgot")
	}
	return nil
}

func (b *backend) keep(pd pprofile.Profiles, taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.delivered)+len(b.rejected) > maxProfiles {
		b.dropped = true
		return
	}
	for _, rp := range pd.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				events, id := otlppeer.Events(p), p.ProfileID()
				_, known := b.delivered[id]
				switch {
				case id.IsEmpty():
					b.nameless++
				case !taken && b.direct: // the sender counts it as refused
				case !taken:
					b.rejected[id] = events
				case known:
					b.twice += int64(events)
				default:
					b.delivered[id] = events
					b.out += int64(events)
				}
			}
		}
	}
}

// become changes the mood. If the sender has no queue, requests in flight are completed
// first, because the test could not know whether an interrupted response arrived.
func (b *backend) become(m mood) error {
	b.mu.Lock()
	before := b.mood
	b.mood = m
	close(b.changed)
	b.changed = make(chan struct{})
	stop := b.peer.Stop
	if b.direct && before != hanging {
		stop = b.peer.GracefulStop
	}
	b.mu.Unlock()
	switch {
	case m == gone:
		stop()
	case before == gone:
		return b.peer.Start()
	}
	return nil
}

// restart stops the backend and starts it again.
func (b *backend) restart() error {
	if err := b.become(gone); err != nil {
		return err
	}
	return b.become(restarting)
}

// serve tells the backend whether the sender exports without a queue from now on.
func (b *backend) serve(direct bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.direct = direct
}

// took returns three numbers of events. out is the number of accepted events, and each
// profile counts once. twice is the number of events of profiles that arrived again.
// rejected is the number of events that were refused for good and never accepted.
func (b *backend) took() (out, twice, rejected int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, events := range b.rejected {
		if _, known := b.delivered[id]; !known {
			rejected += int64(events)
		}
	}
	return b.out, b.twice, rejected
}

// faults describes problems with the profiles that the backend received.
func (b *backend) faults() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	if b.nameless > 0 {
		all = append(all, fmt.Sprintf("%d profiles had no id", b.nameless))
	}
	if b.dropped {
		all = append(all, fmt.Sprintf("more than %d profiles came: the backend could not remember them all", maxProfiles))
	}
	return all
}
