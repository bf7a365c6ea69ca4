// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleextension

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/intake"
)

// errStopped is returned before Start and after Shutdown.
var errStopped = errors.New("the console is not running")

// ConsumeProfiles stores profiles that left a gate. It waits for the disk at most a
// second, if profiles come faster than it takes them.
func (c *Console) ConsumeProfiles(ctx context.Context, pd pprofile.Profiles) error {
	return c.consume(ctx, "profiles", pd.SampleCount(), func() { intake.Profiles(c.store, pd) })
}

// slowWait is the deadline of a write of events after one that was late.
const slowWait = 10 * time.Millisecond

// ConsumeLogs stores events, and what collectors log about themselves. It returns when
// the events are on disk or the context ends: then they are in memory, and written later.
// A disk that did not answer in time is not waited for again until it does, so that the
// queue of an exporter drains at a shutdown.
func (c *Console) ConsumeLogs(ctx context.Context, ld plog.Logs) error {
	return c.consume(ctx, "logs", ld.LogRecordCount(), func() {
		if c.slow.Load() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, slowWait)
			defer cancel()
		}
		c.slow.Store(intake.Logs(ctx, c.store, ld) != nil)
	})
}

// ConsumeMetrics stores readings, and what collectors count about themselves. It does not
// wait for the disk.
func (c *Console) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	return c.consume(ctx, "metrics", md.DataPointCount(), func() { _ = intake.Metrics(ctx, c.store, md) })
}

func (c *Console) consume(ctx context.Context, signal string, items int, store func()) (err error) {
	outcome := "accepted"
	if c.begin() {
		defer c.consuming.Done()
		store()
	} else {
		outcome, err = "refused", consumererror.NewPermanent(errStopped)
	}
	c.telemetry.ConsoleItems.Add(context.WithoutCancel(ctx), int64(items),
		metric.WithAttributes(attribute.String("signal", signal), attribute.String("outcome", outcome)))
	return err
}

// begin reports whether the store is open, and keeps it so until consuming is Done.
func (c *Console) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		return false
	}
	c.consuming.Add(1)
	return true
}

// closeTimeout is the time that Shutdown gives the disk.
const closeTimeout = 10 * time.Second

// closeStore closes the store after the last consumer. A disk that does not answer is
// not waited for longer than closeTimeout.
func (c *Console) closeStore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	c.mu.Lock()
	c.running = false
	c.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		c.consuming.Wait()
		done <- c.store.Close()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errors.Join(errors.New("the disk of the console's directory does not answer: data that was not written is lost"), ctx.Err())
	}
}
