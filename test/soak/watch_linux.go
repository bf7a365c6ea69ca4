// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// weighed is the memory of one run of the collector: when it had started, when it
// was warm, at most (each by itself), and at last.
type weighed struct {
	name                    string
	start, warm, most, last weight
	readings                int
}

// warmAfter is the part of a run after which it counts as warm.
const warmAfter = 0.25

// watch weighs a collector while it runs.
type watch struct {
	weighed
	cancel context.CancelFunc
	done   chan struct{}
	once   sync.Once
	paused atomic.Bool // it does not answer
}

// gauges are those whose highest values are reported.
var gauges = []string{
	"otelcol_cpu_profiler_buffer_usage", "otelcol_cpu_trigger_recorder_samples", "otelcol_cpu_trigger_recorder_size",
	"otelcol_cpu_trigger_units", "otelcol_cpu_trigger_gates_open", "otelcol_exporter_queue_size",
}

// watch weighs from now on, until stop.
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
				continue // it is about to end, or has too much to do
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

// stop ends it and waits; again is as good as once.
func (w *watch) stop() {
	w.once.Do(func() {
		w.cancel()
		<-w.done
	})
}
