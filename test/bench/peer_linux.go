// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/test/otlppeer"
)

// peer is an OTLP gRPC server that counts samples and discards them.
type peer struct {
	server *otlppeer.Server

	mu      sync.Mutex
	samples int
	latest  time.Time // the time of the last request
	came    time.Time // the time of the first request
	oldest  uint64    // the earliest timestamp of a sample, in nanoseconds
}

func startPeer() (*peer, error) {
	p := &peer{}
	p.server = otlppeer.New(p.take)
	return p, p.server.Start()
}

func (p *peer) take(_ context.Context, profiles pprofile.Profiles) error {
	n := countSamples(profiles)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.samples += n
	p.latest = time.Now()
	if p.came.IsZero() {
		p.came = p.latest
	}
	if p.oldest == 0 {
		p.oldest = oldestSample(profiles)
	}
	return nil
}

func oldestSample(profiles pprofile.Profiles) (oldest uint64) {
	for _, r := range profiles.ResourceProfiles().All() {
		for _, s := range r.ScopeProfiles().All() {
			for _, p := range s.Profiles().All() {
				for _, sample := range p.Samples().All() {
					for _, at := range sample.TimestampsUnixNano().All() {
						if oldest == 0 || at < oldest {
							oldest = at
						}
					}
				}
			}
		}
	}
	return oldest
}

// first returns the time of the first request. The time is zero before the first request.
func (p *peer) first() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.came
}

// earliest returns the time of the earliest sample.
func (p *peer) earliest() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Unix(0, int64(p.oldest))
}

// countSamples returns the number of events in the profiles.
func countSamples(profiles pprofile.Profiles) (n int) {
	for _, r := range profiles.ResourceProfiles().All() {
		for _, s := range r.ScopeProfiles().All() {
			for _, p := range s.Profiles().All() {
				n += otlppeer.Events(p)
			}
		}
	}
	return n
}

func (p *peer) received() (samples int, latest time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.samples, p.latest
}

// batch waits for the next batch, and then until no further batch has arrived for a while.
// When batch returns, the sender has no unfinished work. The work between two returns
// therefore belongs to exactly the samples between these returns.
func (p *peer) batch(ctx context.Context, from *child) error {
	const quiet, limit = 500 * time.Millisecond, time.Minute
	began := time.Now()
	for {
		if err := sleep(ctx, quiet/10); err != nil {
			return err
		}
		if err := from.running(); err != nil {
			return err
		}
		_, latest := p.received()
		if latest.After(began) && time.Since(latest) > quiet {
			return nil
		}
		if time.Since(began) > limit {
			return fmt.Errorf("%s sent nothing within %v; its last words:\n%s", from.name, limit, from.lastWords())
		}
	}
}
