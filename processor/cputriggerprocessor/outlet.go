// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
)

// outlet sends what the recorder holds of units whose gate has opened, on a
// goroutine of its own, so that neither reading nor evaluating nor the senders of
// profiles wait for a slow backend. One record at a time is unpacked.
type outlet struct {
	recorder *recorder
	gate     *gate
	counters *counters.Counters

	stop    chan struct{}
	cancel  context.CancelFunc // of what is being sent
	running sync.WaitGroup
}

func newOutlet(g *gate, counters *counters.Counters) *outlet {
	return &outlet{recorder: g.recorder, gate: g, counters: counters}
}

// Start sends from now on.
func (o *outlet) Start() {
	if o == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	o.stop, o.cancel = make(chan struct{}), cancel
	o.running.Go(func() {
		for {
			select {
			case <-o.stop:
				return
			case <-o.recorder.wake:
				o.drain(ctx)
			}
		}
	})
}

// drain sends until there is nothing to send, or not now.
func (o *outlet) drain(ctx context.Context) {
	for {
		select {
		case <-o.stop: // nil where it was not started
			return
		default:
		}
		p, ok := o.recorder.Next()
		if !ok {
			return
		}
		o.recorder.Done(p, o.send(ctx, p))
	}
}

// shutdownTimeout is how long what is due may take to be sent at the end, all of
// it together: the collector's own shutdown has no end, and a backend that hangs
// would hold it up for each record anew.
const shutdownTimeout = 10 * time.Second

// Shutdown sends what is due, once, and lets go of the rest. What is being sent
// is given up when the context ends, or shutdownTimeout.
func (o *outlet) Shutdown(ctx context.Context) {
	if o == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	if o.stop != nil {
		close(o.stop)
		done := make(chan struct{})
		go func() { o.running.Wait(); close(done) }()
		select {
		case <-done:
		case <-ctx.Done():
			o.cancel()
			<-done
		}
		o.cancel()
		o.stop = nil
	}
	o.recorder.rouse()
	for ctx.Err() == nil {
		p, ok := o.recorder.Next()
		if !ok {
			break
		}
		o.recorder.Done(p, o.send(ctx, p))
	}
	o.recorder.Close()
}

// send hands over one record, and says whether it needs not be sent again: it was
// accepted, or refused for good, or its openings let nothing of it out.
func (o *outlet) send(ctx context.Context, p parcel) bool {
	var counts counters.Samples
	defer o.counters.AddSamples(ctx, &counts)
	pd, err := unpack(p.data)
	if err != nil { // it was marshalled here
		counts[counters.SampleRefused] += int64(p.samples)
		return true
	}
	j := o.gate.judgement()
	defer o.gate.release(j)
	j.again = p.again
	o.judge(j, pd, p)
	err = o.gate.send(ctx, pd, j)
	if err != nil && !consumererror.IsPermanent(err) {
		return false
	}
	for _, v := range j.verdicts {
		if err != nil && v.fate == stamped {
			v.outcome = counters.SampleRefused
		}
		counts[v.outcome] += int64(v.samples)
	}
	return true
}

// judge decides of the profiles of a record by their types: they have been
// matched, and their openings are known.
func (o *outlet) judge(j *judgement, pd pprofile.Profiles, p parcel) {
	for ri, rp := range pd.ResourceProfiles().All() {
		for si, sp := range rp.ScopeProfiles().All() {
			for pi, profile := range sp.Profiles().All() {
				j.ask(p.start, p.end)
				a := &j.admissions[len(j.admissions)-1]
				a.openings = append(a.openings, p.openings...)
				o.gate.sieve(a, pd.Dictionary(), profile)
				v := verdict{
					outcome: counters.SampleFiltered, samples: samplesIn(profile),
					at: dictionary.ProfileRef{Resource: int32(ri), Scope: int32(si), Profile: int32(pi)},
				}
				if len(a.openings) > 0 {
					v.outcome, v.fate = counters.SamplePassed, stamped
					j.leaving++
					j.stamped++
				}
				j.verdicts = append(j.verdicts, v)
			}
		}
	}
}
