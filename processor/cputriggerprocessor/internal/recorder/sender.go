// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/late"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
)

const (
	// maxCalls limits the concurrent calls of the next component. Each call is for a
	// different unit, so that a slow call does not delay the records of other units.
	maxCalls = 4

	// callTimeout limits one call of the next component. If a call runs callGrace longer than
	// the timeout, a warning is logged, because the next component ignores the context. The
	// call still counts towards maxCalls.
	callTimeout = 30 * time.Second
	callGrace   = time.Second

	// ShutdownTimeout limits the total time for sending due records at shutdown. The
	// collector's shutdown has no time limit, so a backend that hangs would block the
	// shutdown for each record. After the timeout, calls that ignore their context are
	// abandoned after callGrace.
	ShutdownTimeout = 10 * time.Second
)

// Sender sends due records on separate goroutines, so that a slow backend does not delay
// readings, evaluations and the clients that send profiles.
type Sender struct {
	recorder *Recorder
	log      *zap.Logger
	// send sends a batch. It reports whether the batch is settled, and returns the outcomes
	// of its samples. A batch is settled if it is accepted or permanently refused, or if no
	// opening passes its profile types. A batch that is not settled is sent again.
	send func(context.Context, Batch) (settled bool, counts counters.Samples)

	stop    chan struct{}      // nil before Start
	cancel  context.CancelFunc // cancels the calls
	running sync.WaitGroup
}

// NewSender returns a sender that has not been started.
func NewSender(r *Recorder, log *zap.Logger, send func(context.Context, Batch) (bool, counters.Samples)) *Sender {
	return &Sender{recorder: r, log: log, send: send}
}

// Start starts the goroutines.
func (s *Sender) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.stop, s.cancel = make(chan struct{}), cancel
	for range maxCalls {
		s.running.Go(func() {
			for stopped := false; !stopped; {
				select {
				case <-s.stop:
					stopped = true
				case <-s.recorder.Ready():
				}
				s.Drain(ctx)
			}
		})
	}
}

// Drain sends records until no record is due, or the context ends.
func (s *Sender) Drain(ctx context.Context) {
	for ctx.Err() == nil && s.sendNext(ctx) {
	}
}

// sendNext sends one record. It reports whether a record was due.
func (s *Sender) sendNext(ctx context.Context) bool {
	b, ok := s.recorder.Next()
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	warning := time.AfterFunc(callTimeout+callGrace, func() {
		select {
		case <-s.stop: // Shutdown logs the lost samples
		default:
			s.log.Warn("next component does not return", zap.String("unit", b.from.unit.Name()), zap.Time("called", began))
		}
	})
	defer warning.Stop()
	settled, counts := s.send(ctx, b)
	s.recorder.Done(b, settled, &counts)
	return true
}

// Shutdown makes one attempt to send each due record, and closes the recorder. It cancels
// calls when the context ends, or after ShutdownTimeout. A call that still does not
// return is abandoned, and its samples are counted as refused.
func (s *Sender) Shutdown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ShutdownTimeout)
	defer cancel()
	if s.stop == nil {
		s.Start()
	}
	s.recorder.Retry()
	if ctx.Err() != nil {
		s.cancel()
	}
	close(s.stop)
	done := make(chan struct{})
	go func() { s.running.Wait(); close(done) }()
	_ = late.Wait(ctx, done, s.cancel, callGrace) // Close counts the records that were not sent
	s.cancel()
	if lost := s.recorder.Close(); lost > 0 {
		s.log.Warn("recorded profiles not sent: the next component did not accept them by the end of the shutdown", zap.Int64("samples", lost))
	}
}
