// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"sync"
	"time"
)

// Sender sends the records that are due, one at a time, on a goroutine of its
// own: neither readings nor evaluations nor senders of profiles wait for a slow
// backend.
type Sender struct {
	recorder *Recorder
	locked   func(func()) // calls a function under the recorder's lock
	// send reports whether a batch is settled: accepted, refused for good, or of
	// types that no opening passes. Else it is sent again.
	send func(context.Context, Batch) bool

	stop    chan struct{}      // nil while it is not started
	cancel  context.CancelFunc // of what is being sent
	running sync.WaitGroup
}

// NewSender returns a sender that is not started. locked calls a function under the
// recorder's lock.
func NewSender(r *Recorder, locked func(func()), send func(context.Context, Batch) bool) *Sender {
	return &Sender{recorder: r, locked: locked, send: send}
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
			case <-s.recorder.Ready():
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
		if !s.sendNext(ctx) {
			return
		}
	}
}

// sendNext sends one record, and reports whether one was due.
func (s *Sender) sendNext(ctx context.Context) (ok bool) {
	var b Batch
	s.locked(func() { b, ok = s.recorder.Next() })
	if ok {
		settled := s.send(ctx, b)
		s.locked(func() { s.recorder.Done(b, settled) })
	}
	return ok
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
	s.locked(s.recorder.Retry)
	for ctx.Err() == nil && s.sendNext(ctx) {
	}
	s.locked(s.recorder.Close)
}
