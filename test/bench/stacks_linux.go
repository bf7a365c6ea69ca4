// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

// stacks measures the memory of a collector that holds many distinct stacks. It collects
// as many stacks as there are samples in an hour at the default frequency. To collect
// them faster, the collector samples running threads at 999 Hz and also samples waits.
func (b *bench) stacks(ctx context.Context) (err error) {
	hour := float64(97 * runtime.NumCPU() * 3600)
	group, err := scratch.Make(fmt.Sprintf("hotprofile-bench-%d-stacks", os.Getpid()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, group.Remove()) }()
	p, err := startPeer()
	if err != nil {
		return err
	}
	defer p.server.Stop()
	c, err := b.startCollector(ctx, "collector", fmt.Sprintf(`
receivers:
  cpu_profiler:
    frequency: 999
    max_overhead: 0
    targets: [{cgroup: "%s"}]
    off_cpu: {when: always, min_duration: 0s, max_events_per_second: 20000}
processors:
  cpu_trigger:
    policies:
      - name: never
        any_of: [{monitor: cpu_utilization, threshold: 1000, average_over: 30s}]
exporters: {otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}}
service:
  pipelines: {profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [otlp_grpc]}}
`, group.Path, p.server.Port))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	w, err := b.startWorker(group, wandering, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.end()) }()

	fmt.Fprintf(b.out, "### Memory and distinct stacks\n\nEvery sample has a stack of its own, 24 calls deep, of a process that is sampled at 999 Hz and whose waits are too, until there have been as many as an hour at 97 Hz on %d CPUs has samples, or for %v. `cpu_trigger` keeps what came last (`pre_trigger`) and passes nothing.\n\n", runtime.NumCPU(), b.stacksFor)
	t := table{"stacks", "after", "resident", "at most"}
	t.head(b.out)
	var atStart, now, peak int64
	began := time.Now()
	look := func() (n float64, err error) {
		for _, sampler := range []string{"on_cpu", "off_cpu"} {
			taken, err := c.metric("otelcol_cpu_profiler_samples", `sampler="`+sampler+`"`)
			if err != nil {
				return 0, err
			}
			n += taken
		}
		now, peak, err = c.memory()
		return n, err
	}
	if _, err := look(); err != nil {
		return err
	}
	atStart = now
	t.row(b.out, "0", "-", mebibytes(now), mebibytes(peak))
	if err := w.begin(); err != nil {
		return err
	}
	n := 0.0
	for next := 0.1; ; {
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		if n, err = look(); err != nil {
			return errors.Join(err, c.running())
		}
		over := n >= hour || time.Since(began) > b.stacksFor
		if over || n >= next*hour {
			progress("%.0f of %.0f stacks, %s", n, hour, mebibytes(now))
			t.row(b.out, fmt.Sprintf("%.0f (%.0f min at 97 Hz)", n, 60*n/hour), time.Since(began).Round(time.Second).String(), mebibytes(now), mebibytes(peak))
			next = n/hour + 0.2
		}
		if over {
			break
		}
	}
	fmt.Fprintln(b.out)
	b.sum(fmt.Sprintf("resident after %.0f distinct stacks, %.0f minutes at 97 Hz", n, 60*n/hour), mebibytes(now), mebibytes(atStart), "the same collector before them", 1)
	return nil
}
