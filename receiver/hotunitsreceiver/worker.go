// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsreceiver

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
)

const (
	// callTimeout is the deadline of one call of the next component.
	callTimeout = 5 * time.Second

	// patience is the time that Shutdown still waits after callTimeout for a component that
	// ignores its context.
	patience = 5 * time.Second

	// failEpisode is the minimum time without a failed call before the next failure is
	// logged.
	failEpisode = time.Minute
)

// worker is the common part of both signals. Its goroutine calls the next component, one
// call at a time. Each call has a deadline.
type worker struct {
	id      component.ID
	log     *zap.Logger
	obs     *receiverhelper.ObsReport
	timeout time.Duration

	stop   context.CancelFunc // ends the loop; nil if the worker was not started
	done   chan struct{}      // closed when the goroutine ends
	ctx    context.Context    // of the calls
	cancel context.CancelFunc

	failed time.Time // time of the last failed call
}

func newWorker(set receiver.Settings) (worker, error) {
	obs, err := receiverhelper.NewObsReport(receiverhelper.ObsReportSettings{
		ReceiverID: set.ID, Transport: "", ReceiverCreateSettings: set,
	})
	return worker{id: set.ID, log: set.Logger, obs: obs, timeout: callTimeout}, err
}

// find returns the extension. If the extension is missing, the receiver has no data, so find
// logs a warning and sets the component's status.
func (w *worker) find(host component.Host) *hotunitsextension.HotUnits {
	hot := hotunitsextension.Find(host, w.log)
	if hot == nil {
		w.log.Warn("no hot_units extension, nothing to emit")
		componentstatus.ReportStatus(host, componentstatus.NewRecoverableErrorEvent(
			fmt.Errorf("%s emits nothing: add hot_units to extensions and to service.extensions", w.id)))
	}
	return hot
}

// start runs loop on a goroutine until Shutdown.
func (w *worker) start(loop func(stop <-chan struct{})) {
	running, stop := context.WithCancel(context.Background())
	w.stop, w.done = stop, make(chan struct{})
	w.ctx, w.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(w.done)
		loop(running.Done())
	}()
}

// Shutdown stops the loop and waits until the loop has ended. The loop first emits the
// remaining data. If the next component does not return within ten seconds, Shutdown
// abandons the call.
func (w *worker) Shutdown(ctx context.Context) error {
	if w.stop == nil {
		return nil
	}
	w.stop()
	defer w.cancel()
	end := time.AfterFunc(w.timeout, w.cancel)
	defer end.Stop()
	ctx, cancel := context.WithTimeoutCause(ctx, w.timeout+patience, fmt.Errorf("it ignores that its context was cancelled %v ago", patience))
	defer cancel()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("shut down: the next component has not returned, it is left behind: %w", context.Cause(ctx))
	}
}

// call calls the next component with a deadline. It logs a failure once per episode. If
// the next component returns an error, the data is lost.
func (w *worker) call(what string, n int, consume func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(w.ctx, w.timeout)
	defer cancel()
	err := consume(ctx)
	if err == nil {
		return nil
	}
	now := time.Now()
	if now.Sub(w.failed) > failEpisode {
		w.log.Warn("next component failed, data lost", zap.String("data", what), zap.Int("lost", n), zap.Error(err))
	}
	w.failed = now
	return err
}
