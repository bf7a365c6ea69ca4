// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// run is one measurement of a process that samples the whole host.
type run struct {
	past
	cpu     time.Duration // of the process, while measured
	outside time.Duration // of the process, before and after that
	samples int           // that were taken while measured
	peak    int64         // resident bytes; 0 where it was not read
}

// perSample is CPU time per sample in microseconds, perSecond the share of one
// core in percent.
func (r run) perSample() float64 { return r.cpu.Seconds() * 1e6 / float64(r.samples) }
func (r run) perSecond() float64 { return 100 * r.cpu.Seconds() / r.took.Seconds() }

// The rates tell what each sample costs from what it costs to be there: the
// default, and ten times as much.
var rates = []int{97, 997}

// sampling measures a collector that hands over every sample beside perf record,
// by turns.
func (b *bench) sampling(ctx context.Context, load *child) error {
	type tool struct {
		name string
		run  func(ctx context.Context, load *child, rate int) (run, error)
	}
	tools := []tool{{"otelcol-hotprofile", b.collect}}
	perf, noPerf := exec.LookPath("perf")
	if noPerf == nil {
		tools = append(tools, tool{"perf record", func(ctx context.Context, load *child, rate int) (run, error) {
			return b.record(ctx, load, perf, rate)
		}})
	}
	runs := map[string][]run{}
	leastLoad, mostStarts := 100.0, 0.0
	key := func(t tool, rate int) string { return fmt.Sprint(t.name, rate) }
	for round := range b.rounds {
		for _, rate := range rates {
			for _, t := range tools {
				progress("round %d of %d: %s at %d Hz", round+1, b.rounds, t.name, rate)
				r, err := t.run(ctx, load, rate)
				if err != nil {
					return fmt.Errorf("%s at %d Hz: %w", t.name, rate, err)
				}
				progress("%.1f µs a sample; %v", r.perSample(), r.past)
				runs[key(t, rate)] = append(runs[key(t, rate)], r)
				leastLoad, mostStarts = min(leastLoad, r.loadShare()), max(mostStarts, r.startRate())
			}
		}
	}

	fmt.Fprintf(b.out, "## Handing over every sample of a whole host\n\n")
	fmt.Fprintf(b.out, "`cpu_profiler` → `otlp_grpc` with its defaults (gzip, a queue) and no `cpu_trigger`: rings, names, OTLP, compression and sending, to a peer that discards. Beside it `perf record -a -g -e cpu-clock` to a file, which leaves names to perf report. Median of %d runs by turns of %v each, and their range. The kernel's own work for a sample is charged to the thread that is sampled, with both. The load never had less than %.0f %% of the CPUs, and at most %.1f processes and threads were started a second.\n\n", b.rounds, b.window, leastLoad, mostStarts)
	t := table{"", "Hz", "CPU per sample", "range", "CPU of one core", "samples", "before and after", "resident at most"}
	t.head(b.out)
	for _, tool := range tools {
		for _, rate := range rates {
			m, least, most := median(runs[key(tool, rate)])
			peak := "-"
			if m.peak > 0 {
				peak = mebibytes(m.peak)
			}
			t.row(b.out, tool.name, fmt.Sprint(rate), fmt.Sprintf("%.1f µs", m.perSample()),
				fmt.Sprintf("%.1f to %.1f µs", least, most), fmt.Sprintf("%.3f %%", m.perSecond()),
				fmt.Sprint(m.samples), fmt.Sprintf("%.0f ms", 1e3*m.outside.Seconds()), peak)
		}
	}
	fmt.Fprintln(b.out)
	for _, tool := range tools {
		low, _, _ := median(runs[key(tool, rates[0])])
		high, _, _ := median(runs[key(tool, rates[1])])
		each, fixed := split(low, high)
		if each < 0 || fixed < 0 {
			fmt.Fprintf(b.out, "%s: the host did too much else to tell what each sample costs from what it costs to be there.\n\n", tool.name)
			continue
		}
		fmt.Fprintf(b.out, "%s: %.1f µs for each further sample, and %.3f %% of one core to be there.\n\n", tool.name, each, fixed)
	}
	if noPerf != nil {
		fmt.Fprintf(b.out, "perf record was not measured: %v.\n\n", noPerf)
	}
	return nil
}

// median is the run with the middle cost per sample, the worse of two middle ones.
func median(runs []run) (middle run, least, most float64) {
	sorted := slices.SortedFunc(slices.Values(runs), func(a, b run) int { return cmp.Compare(a.perSample(), b.perSample()) })
	return sorted[len(sorted)/2], sorted[0].perSample(), sorted[len(sorted)-1].perSample()
}

// split is the cost of each sample in microseconds and the rest in percent of a
// core, from the line through both.
func split(low, high run) (each, fixed float64) {
	perSecond := func(r run) float64 { return float64(r.samples) / r.took.Seconds() }
	each = 1e4 * (high.perSecond() - low.perSecond()) / (perSecond(high) - perSecond(low))
	return each, low.perSecond() - each*perSecond(low)/1e4
}

// collect measures the collector between two moments at which it has just
// handed over a batch.
func (b *bench) collect(ctx context.Context, load *child, rate int) (r run, err error) {
	p, err := startPeer()
	if err != nil {
		return r, err
	}
	defer p.server.Stop()
	c, err := b.startCollector(ctx, "collector", fmt.Sprintf(`
receivers: {cpu_profiler: {frequency: %d}}
exporters: {otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}}
service:
  pipelines: {profiles: {receivers: [cpu_profiler], exporters: [otlp_grpc]}}
`, rate, p.server.Port))
	if err != nil {
		return r, err
	}
	defer func() {
		err = errors.Join(err, c.stop())
		r.outside = c.total() - r.cpu
	}()
	if err := sleep(ctx, settle); err != nil {
		return r, err
	}
	before, err := p.batch(ctx, c.child)
	if err != nil {
		return r, err
	}
	used, err := c.cpu()
	if err != nil {
		return r, err
	}
	s, err := begin(load)
	if err != nil {
		return r, err
	}
	if err := sleep(ctx, b.window-time.Second); err != nil {
		return r, err
	}
	after, err := p.batch(ctx, c.child)
	if err != nil {
		return r, err
	}
	now, err := c.cpu()
	if err != nil {
		return r, err
	}
	if r.past, err = s.end(); err != nil {
		return r, err
	}
	r.cpu, r.samples = now-used, after-before
	_, r.peak, err = c.memory()
	return r, err
}

// record measures perf record, start and end apart.
func (b *bench) record(ctx context.Context, load *child, perf string, rate int) (r run, err error) {
	file := filepath.Join(b.dir, "perf.data")
	defer os.Remove(file)
	c, err := b.start("perf", exec.Command(perf, "record", "-a", "-g", "-e", "cpu-clock", "-F", fmt.Sprint(rate), "-k", "mono", "-o", file))
	if err != nil {
		return r, err
	}
	defer func() {
		if c.running() == nil {
			err = errors.Join(err, c.stop())
		}
	}()
	if err := sleep(ctx, settle); err != nil {
		return r, err
	}
	from := monotonic()
	used, err := c.cpu()
	if err != nil {
		return r, err
	}
	s, err := begin(load)
	if err != nil {
		return r, err
	}
	if err := sleep(ctx, b.window); err != nil {
		return r, err
	}
	to := monotonic()
	now, err := c.cpu()
	if err != nil {
		return r, err
	}
	if r.past, err = s.end(); err != nil {
		return r, err
	}
	r.cpu = now - used
	if _, r.peak, err = c.memory(); err != nil {
		return r, err
	}
	if err := c.stop(); err != nil {
		return r, err
	}
	r.outside = c.total() - r.cpu
	r.samples, err = perfSamples(ctx, perf, file, from, to)
	return r, err
}
