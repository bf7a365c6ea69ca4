// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// weighed contains the resource usage of a collector at the start of a run, after the
// warm-up, and at the end. most contains the maximum of each figure.
type weighed struct {
	name                    string
	start, warm, most, last weight
	readings                int
}

// warmAfter is the share of a run after which the run counts as warm.
const warmAfter = 0.25

// watch measures a collector at regular intervals.
type watch struct {
	weighed
	cancel context.CancelFunc
	done   chan struct{}
	once   sync.Once
	paused atomic.Bool // the collector does not respond
}

// gauges are the metrics whose highest values are reported.
var gauges = []string{
	"otelcol_cpu_profiler_buffer_usage", "otelcol_cpu_trigger_recorder_samples", "otelcol_cpu_trigger_recorder_size",
	"otelcol_cpu_trigger_units", "otelcol_cpu_trigger_gates_open", "otelcol_exporter_queue_size",
}

// watch measures the collector every 500 ms until stop is called.
func (s *soak) watch(ctx context.Context, c *collector, a scheduled) *watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{weighed: weighed{name: a.title()}, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		began := time.Now()
		for sleep(ctx, 500*time.Millisecond) == nil {
			if w.paused.Load() {
				continue
			}
			now, err := c.weigh(ctx)
			if err != nil {
				continue // the collector is about to end or is too busy
			}
			if w.readings++; w.readings == 1 {
				w.start = now
			}
			if w.warm == (weight{}) && time.Since(began) > time.Duration(warmAfter*float64(a.duration)) {
				w.warm = now
			}
			w.last = now
			w.most = weight{rss: max(w.most.rss, now.rss), goroutines: max(w.most.goroutines, now.goroutines), descriptors: max(w.most.descriptors, now.descriptors)}
			if f, err := c.scrape(ctx); err == nil {
				for _, gauge := range gauges {
					s.heaviest[gauge] = max(s.heaviest[gauge], f.sum(gauge))
				}
			}
		}
	}()
	return w
}

func (w *watch) pause(on bool) { w.paused.Store(on) }

// stop ends the watch and waits for its end. It may be called several times.
func (w *watch) stop() {
	w.once.Do(func() {
		w.cancel()
		<-w.done
	})
}
