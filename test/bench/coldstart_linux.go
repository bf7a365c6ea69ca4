// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// coldStart measures the time from the start of a process until the
// process has taken a sample. One CPU of the host is busy.
func (b *bench) coldStart(ctx context.Context) (err error) {
	load, err := b.startWorker(nil, computing, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, load.end()) }()
	if err := load.begin(); err != nil {
		return err
	}
	of := map[string][]float64{} // in milliseconds
	for round := range b.starts {
		progress("cold start: round %d of %d", round+1, b.starts)
		if err := errors.Join(b.coldCollector(ctx, of), b.coldBare(ctx, of), b.coldPerf(ctx, of)); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.out, "### Cold start\n\nFrom starting the process, one CPU busy, in milliseconds: median of %d starts, and their range. The collector exports every 100 ms here; buffers are looked at through its metrics, every 5 ms.\n\n", b.starts)
	t := table{"until", "median", "range"}
	t.head(b.out)
	middle := func(what string) string {
		v := slices.Sorted(slices.Values(of[what]))
		if len(v) == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f ms", v[len(v)/2])
	}
	for _, what := range []string{
		"a bare collector is ready", "hotprofile: ready", "hotprofile: first sample taken", "hotprofile: first sample in the buffer",
		"hotprofile: first export has arrived", "perf record: first sample taken",
		"CPU time: a bare collector, until it is ready", "CPU time: hotprofile, until the first export",
	} {
		if v := of[what]; len(v) > 0 {
			t.row(b.out, what, middle(what), fmt.Sprintf("%.0f to %.0f", slices.Min(v), slices.Max(v)))
		}
	}
	fmt.Fprintln(b.out)
	b.sum("cold start until the first sample is in the buffer, collector included", middle("hotprofile: first sample in the buffer"), middle("perf record: first sample taken"), "perf record, until its first sample", b.starts)
	b.sum("the collector's own start alone", middle("hotprofile: ready"), middle("a bare collector is ready"), "a bare collector", b.starts)
	return nil
}

func since(began time.Time) float64 { return 1e3 * time.Since(began).Seconds() }

func (b *bench) coldCollector(ctx context.Context, of map[string][]float64) (err error) {
	p, err := startPeer()
	if err != nil {
		return err
	}
	defer p.server.Stop()
	began := time.Now()
	c, err := b.startCollector(ctx, "collector", fmt.Sprintf(`
receivers: {cpu_profiler: {max_overhead: 0, export_interval: 100ms}}
exporters: {otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}, sending_queue: {enabled: false}}}
service:
  pipelines: {profiles: {receivers: [cpu_profiler], exporters: [otlp_grpc]}}
`, p.server.Port))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	of["hotprofile: ready"] = append(of["hotprofile: ready"], since(began))
	buffered := 0.0
	var arrived time.Time
	for arrived.IsZero() || buffered == 0 {
		if buffered == 0 {
			usage, err := c.metric("otelcol_cpu_profiler_buffer_usage", `buffer="samples"`)
			if err == nil && usage > 0 || !arrived.IsZero() {
				buffered = since(began)
			}
		}
		if arrived = p.first(); arrived.IsZero() || buffered == 0 {
			err := errors.Join(c.running(), sleep(ctx, 5*time.Millisecond))
			if err == nil && time.Since(began) > time.Minute {
				err = fmt.Errorf("nothing was sampled within a minute; its last words:\n%s", c.lastWords())
			}
			if err != nil {
				return err
			}
		}
	}
	used, err := c.cpu()
	if err != nil {
		return err
	}
	of["hotprofile: first sample in the buffer"] = append(of["hotprofile: first sample in the buffer"], buffered)
	of["hotprofile: first export has arrived"] = append(of["hotprofile: first export has arrived"], 1e3*p.first().Sub(began).Seconds())
	of["hotprofile: first sample taken"] = append(of["hotprofile: first sample taken"], 1e3*p.earliest().Sub(began).Seconds())
	of["CPU time: hotprofile, until the first export"] = append(of["CPU time: hotprofile, until the first export"], 1e3*used.Seconds())
	return nil
}

func (b *bench) coldBare(ctx context.Context, of map[string][]float64) error {
	began := time.Now()
	c, err := b.startBare(ctx)
	if err != nil {
		return err
	}
	ready := since(began)
	used, err := c.cpu()
	of["a bare collector is ready"] = append(of["a bare collector is ready"], ready)
	of["CPU time: a bare collector, until it is ready"] = append(of["CPU time: a bare collector, until it is ready"], 1e3*used.Seconds())
	return errors.Join(err, c.stop())
}

// startBare starts a collector that only waits for OTLP.
func (b *bench) startBare(ctx context.Context) (*collector, error) {
	return b.startCollector(ctx, "bare", `
receivers: {otlp: {protocols: {grpc: {endpoint: "127.0.0.1:0"}}}}
exporters: {debug: }
service:
  pipelines: {profiles: {receivers: [otlp], exporters: [debug]}}
`)
}

func (b *bench) coldPerf(ctx context.Context, of map[string][]float64) error {
	perf, missing := exec.LookPath("perf")
	if missing != nil {
		return nil //nolint:nilerr // the report says that it is not installed
	}
	file := filepath.Join(b.dir, "perf.data")
	began := monotonic()
	c, err := b.start("perf", exec.Command(perf, "record", "-a", "-g", "-e", "cpu-clock", "-F", "97", "-k", "mono", "-o", file))
	if err != nil {
		return err
	}
	if err := errors.Join(sleep(ctx, time.Second), c.stop()); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, perf, "script", "-i", file, "-F", "time").Output()
	if err != nil {
		return fmt.Errorf("read perf's samples: %w", err)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), ":")
	var at float64
	if _, err := fmt.Sscan(first, &at); err != nil {
		return fmt.Errorf("read the time of perf's first sample: %w", err)
	}
	of["perf record: first sample taken"] = append(of["perf record: first sample taken"], 1e3*(at-began))
	return nil
}
