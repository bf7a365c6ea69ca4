// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"sync"
	"time"
)

// Queue is what a Sender sends: the methods of a Recorder, each under the lock.
type Queue interface {
	Ready() <-chan struct{}
	Next() (Batch, bool)
	Done(b Batch, settled bool)
	Retry()
	Close()
}

// Sender sends the records that are due, one at a time, on a goroutine of its
// own: neither readings nor evaluations nor senders of profiles wait for a slow
// backend.
type Sender struct {
	queue Queue
	// send reports whether a batch is settled: accepted, refused for good, or of
	// types that no opening passes. Else it is sent again.
	send func(context.Context, Batch) bool

	stop    chan struct{}      // nil while it is not started
	cancel  context.CancelFunc // of what is being sent
	running sync.WaitGroup
}

// NewSender returns a sender that is not started.
func NewSender(queue Queue, send func(context.Context, Batch) bool) *Sender {
	return &Sender{queue: queue, send: send}
}

// Start starts the goroutine.
func (s *Sender) Start() {
	if s == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop, s.cancel = make(chan struct{}), cancel
	s.running.Go(func() {
		for {
			select {
			case <-s.stop:
				return
			case <-s.queue.Ready():
				s.Drain(ctx)
			}
		}
	})
}

// Drain sends until nothing is due, or it is stopped.
func (s *Sender) Drain(ctx context.Context) {
	if s == nil {
		return
	}
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		b, ok := s.queue.Next()
		if !ok {
			return
		}
		s.queue.Done(b, s.send(ctx, b))
	}
}

// ShutdownTimeout bounds the sending of all that is due at shutdown together. The
// collector's own shutdown has no bound, and a backend that hangs would block it
// for each record.
const ShutdownTimeout = 10 * time.Second

// Shutdown sends what is due, once, and closes the queue. It cancels what is being
// sent when the context ends, or after ShutdownTimeout.
func (s *Sender) Shutdown(ctx context.Context) {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, ShutdownTimeout)
	defer cancel()
	if s.stop != nil {
		close(s.stop)
		done := make(chan struct{})
		go func() { s.running.Wait(); close(done) }()
		select {
		case <-done:
		case <-ctx.Done():
			s.cancel()
			<-done
		}
		s.cancel()
		s.stop = nil
	}
	s.queue.Retry()
	for ctx.Err() == nil {
		b, ok := s.queue.Next()
		if !ok {
			break
		}
		s.queue.Done(b, s.send(ctx, b))
	}
	s.queue.Close()
}
