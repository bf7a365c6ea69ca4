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
	"github.com/hotprofile/hotprofile/internal/late"
)

// errStopped is returned before Start and after Shutdown.
var errStopped = errors.New("the console is not running")

// ConsumeProfiles stores profiles that passed a gate. If profiles arrive faster than the
// disk writes them, ConsumeProfiles waits for the disk for at most a second.
func (c *Console) ConsumeProfiles(ctx context.Context, pd pprofile.Profiles) error {
	return c.consume(ctx, "profiles", pd.SampleCount(), func() { intake.Profiles(c.store, pd) })
}

// slowWait is the maximum time that ConsumeLogs waits for the disk if the previous write
// was late.
const slowWait = 10 * time.Millisecond

// ConsumeLogs stores events, and the logs of collectors. It returns when the events
// are on disk or the context ends. If the context ends first, the events stay in
// memory and are written later. If the previous write was late, ConsumeLogs waits for at
// most slowWait. The short wait allows the queue of an exporter to drain at shutdown.
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

// ConsumeMetrics stores readings, and the metrics of collectors. It does not wait for the
// disk.
func (c *Console) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	return c.consume(ctx, "metrics", md.DataPointCount(), func() { intake.Metrics(c.store, md) })
}

func (c *Console) consume(ctx context.Context, signal string, items int, store func()) (err error) {
	outcome := "accepted"
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.running {
		store()
	} else {
		outcome, err = "refused", consumererror.NewPermanent(errStopped)
	}
	c.telemetry.ConsoleItems.Add(context.WithoutCancel(ctx), int64(items),
		metric.WithAttributes(attribute.String("signal", signal), attribute.String("outcome", outcome)))
	return err
}

// closeTimeout is the maximum time that Shutdown waits for the disk.
const closeTimeout = 10 * time.Second

// closeStore closes the store after the last consumer has returned. It waits for the
// disk for at most closeTimeout.
func (c *Console) closeStore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	err := late.Call(ctx, func() error {
		c.mu.Lock() // waits for the consumers
		c.running = false
		c.mu.Unlock()
		return c.store.Close()
	})
	if err != nil && errors.Is(err, ctx.Err()) {
		err = errors.Join(errors.New("the disk of the console's directory does not answer: data that was not written is lost"), err)
	}
	return err
}
