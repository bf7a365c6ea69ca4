// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
)

const (
	// maxCalls bounds the calls of the next component at a time, each for another
	// unit, so that a slow one does not hold back the records of all other units.
	maxCalls = 4

	// callTimeout bounds one call of the next component. One that does not return
	// callGrace after that ignores its context: it is logged, and keeps its place
	// among maxCalls.
	callTimeout = 30 * time.Second
	callGrace   = time.Second

	// ShutdownTimeout bounds the sending of all that is due at shutdown together. The
	// collector's own shutdown has no bound, and a backend that hangs would block it
	// for each record. Calls that ignore their context are left behind callGrace after
	// that.
	ShutdownTimeout = 10 * time.Second
)

// Sender sends the records that are due on goroutines of its own: neither readings
// nor evaluations nor senders of profiles wait for a slow backend.
type Sender struct {
	recorder *Recorder
	log      *zap.Logger
	// send reports whether a batch is settled: accepted, refused for good, or of
	// types that no opening passes. Else it is sent again. It returns what became of
	// the samples of one that is settled.
	send func(context.Context, Batch) (settled bool, counts counters.Samples)

	stop    chan struct{}      // nil while it is not started
	cancel  context.CancelFunc // of what is being sent
	running sync.WaitGroup
}

// NewSender returns a sender that is not started.
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

// Drain sends until nothing is due, or the context ends.
func (s *Sender) Drain(ctx context.Context) {
	for ctx.Err() == nil && s.sendNext(ctx) {
	}
}

// sendNext sends one record, and reports whether one was due.
func (s *Sender) sendNext(ctx context.Context) bool {
	b, ok := s.recorder.Next()
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	late := time.AfterFunc(callTimeout+callGrace, func() {
		select {
		case <-s.stop: // Shutdown logs what is lost
		default:
			s.log.Warn("next component does not return", zap.String("unit", b.from.unit.Name()), zap.Time("called", began))
		}
	})
	defer late.Stop()
	settled, counts := s.send(ctx, b)
	s.recorder.Done(b, settled, &counts)
	return true
}

// Shutdown sends what is due, once, and closes the queue. It cancels what is being
// sent when the context ends, or after ShutdownTimeout. A call that does not return
// then is left behind, and what it was to send counts as refused.
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
	select {
	case <-done:
	case <-ctx.Done():
		s.cancel()
		select {
		case <-done:
		case <-time.After(callGrace):
		}
	}
	s.cancel()
	if lost := s.recorder.Close(); lost > 0 {
		s.log.Warn("recorded profiles not sent: the next component did not accept them by the end of the shutdown", zap.Int64("samples", lost))
	}
}
