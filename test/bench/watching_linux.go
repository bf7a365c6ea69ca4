// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

// settle is the time before a process is measured. In this time the process starts,
// discovers the running programs, and looks up most of the names that it needs.
const settle = 4 * time.Second

// watching measures a collector that samples the whole host. The collector exports no
// profiles, because its threshold is never reached. The baseline is a collector that only
// waits for OTLP. Both collectors run at the same time, so that they see the same host.
func (b *bench) watching(ctx context.Context, load *child, _ *scratch.Cgroup) (err error) {
	p, err := startPeer()
	if err != nil {
		return err
	}
	defer p.server.Stop()
	progress("watching a host on which nothing is hot, for %v", b.watch)
	watcher, bare, stop, err := b.startWatching(ctx, p.server.Port)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	started, err := watcher.readings()
	if err != nil {
		return err
	}
	s, err := begin(load)
	if err != nil {
		return err
	}
	used := map[*collector]time.Duration{}
	for _, c := range []*collector{watcher, bare} {
		if used[c], err = c.cpu(); err != nil {
			return err
		}
	}
	if err := sleep(ctx, b.watch); err != nil {
		return err
	}
	for _, c := range []*collector{watcher, bare} {
		now, err := c.cpu()
		if err != nil {
			return err
		}
		used[c] = now - used[c]
	}
	host, err := s.end()
	if err != nil {
		return err
	}
	ended, err := watcher.readings()
	if err != nil {
		return err
	}
	if n, _ := p.received(); n > 0 {
		return fmt.Errorf("%d samples were emitted, though nothing can be above the threshold", n)
	}
	took := ended.taken - started.taken
	if took == 0 {
		return fmt.Errorf("the collector took no samples; its last words:\n%s", watcher.lastWords())
	}

	t := table{"collector", "CPU of one core", "CPU per busy core-second", "resident", "at most"}
	fmt.Fprintf(b.out, "### Watching a whole host on which nothing is hot, %v\n\n", b.watch)
	fmt.Fprintf(b.out, "`cpu_profiler` (97 Hz, whole host) → `cpu_trigger` (a threshold nothing reaches) → `otlp_grpc`, beside `otlp` → `debug` of the same binary at the same time. %s. %.0f samples taken, none passed, %.0f lost: %.1f µs for each sample, evaluating included.\n\n",
		host, took, ended.lost-started.lost, float64((used[watcher]-used[bare]).Microseconds())/took)
	t.head(b.out)
	for _, c := range []*collector{watcher, bare} {
		now, peak, err := c.memory()
		if err != nil {
			return err
		}
		t.row(b.out, c.name,
			fmt.Sprintf("%.3f %%", 100*used[c].Seconds()/host.took.Seconds()),
			fmt.Sprintf("%.2f ms", 1e3*used[c].Seconds()/host.busy.Seconds()),
			mebibytes(now), mebibytes(peak))
	}
	fmt.Fprintln(b.out)
	cost := func(c *collector) string {
		return fmt.Sprintf("%.3f %% of a core", 100*used[c].Seconds()/host.took.Seconds())
	}
	b.sum("watching a host on which nothing is hot", cost(watcher), cost(bare), "a bare collector", 1)
	return nil
}

// startWatching starts a collector that watches the host, and a
// bare collector. It waits until both collectors have settled.
func (b *bench) startWatching(ctx context.Context, port int) (watcher, bare *collector, stop func() error, err error) {
	if watcher, err = b.startCollector(ctx, "watcher", watching(port)); err != nil {
		return nil, nil, nil, err
	}
	if bare, err = b.startBare(ctx); err != nil {
		return nil, nil, nil, errors.Join(err, watcher.stop())
	}
	stop = func() error { return errors.Join(bare.stop(), watcher.stop()) }
	if err = sleep(ctx, settle); err != nil {
		return nil, nil, nil, errors.Join(err, stop())
	}
	return watcher, bare, stop, nil
}

// readings are a collector's counters of samples.
type readings struct{ taken, lost float64 }

func (c *collector) readings() (r readings, err error) {
	taken, err1 := c.metric("otelcol_cpu_profiler_samples", "")
	lost, err2 := c.metric("otelcol_cpu_profiler_samples_lost", "")
	return readings{taken: taken, lost: lost}, errors.Join(err1, err2)
}

// watching returns the configuration of a collector whose gates stay closed.
func watching(port int) string {
	return fmt.Sprintf(`
receivers: {cpu_profiler: {max_overhead: 0}}
processors:
  cpu_trigger:
    policies:
      - name: never
        any_of: [{monitor: cpu_utilization, threshold: 1000, average_over: 30s}]
exporters: {otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}}
service:
  pipelines: {profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [otlp_grpc]}}
`, port)
}
