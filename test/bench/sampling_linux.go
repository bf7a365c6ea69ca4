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

	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

// run is one measurement of a process that samples the whole host.
type run struct {
	past
	cpu     time.Duration // CPU time of the process during the measurement
	outside time.Duration // CPU time of the process before and after the measurement
	samples int           // samples taken during the measurement
	peak    int64         // maximum resident memory in bytes; 0 if it was not read
}

// perSample returns the CPU time per sample, in microseconds.
// perSecond returns the CPU time as a percentage of one core.
func (r run) perSample() float64 { return r.cpu.Seconds() * 1e6 / float64(r.samples) }
func (r run) perSecond() float64 { return 100 * r.cpu.Seconds() / r.took.Seconds() }

// rates are the default rate and about ten times the default rate. Two rates
// are needed to separate the cost of each sample from the fixed cost.
var rates = []int{97, 997}

// tool is a program that samples. All tools are measured on the same load.
type tool struct {
	name, how string
	rate      int // 0: one sample for each event
	run       func(ctx context.Context, load *child) (run, error)
	runs      []run
	failed    bool
}

// rateText returns the rate for a table.
func (t *tool) rateText() string {
	if t.rate == 0 {
		return "-"
	}
	return fmt.Sprint(t.rate)
}

// sampling measures the cost of each kind of sample in a collector that exports all
// samples. The measurements alternate between the collector and perf record.
func (b *bench) sampling(ctx context.Context, load *child, group *scratch.Cgroup) (err error) {
	perf, noPerf := exec.LookPath("perf")
	var tools []*tool
	ours := func(how string, rate int, sampler, receiver string) *tool {
		t := &tool{name: "otelcol-hotprofile", how: how, rate: rate, run: func(ctx context.Context, load *child) (run, error) {
			return b.collect(ctx, load, sampler, receiver)
		}}
		tools = append(tools, t)
		return t
	}
	perfs := func(how string, rate int, args ...string) *tool {
		t := &tool{name: "perf record", how: how, rate: rate, run: func(ctx context.Context, load *child) (run, error) {
			return b.record(ctx, load, perf, args)
		}}
		if noPerf == nil {
			tools = append(tools, t)
		}
		return t
	}
	const most = "max_overhead: 0"
	byRate := map[int][2]*tool{}
	for _, rate := range rates {
		byRate[rate] = [2]*tool{
			ours("on-CPU, frame pointers, whole host", rate, "on_cpu", fmt.Sprintf("%s, frequency: %d", most, rate)),
			perfs("-a -g", rate, "-a", "-g", "-e", "cpu-clock", "-F", fmt.Sprint(rate)),
		}
	}
	target := fmt.Sprintf(`targets: [{cgroup: "%s"}]`, group.Path)
	dwarf := [2]*tool{
		ours("on-CPU, unwind tables, the load's cgroup", 97, "on_cpu", most+", unwind: dwarf, "+target),
		perfs("--call-graph dwarf,16384 -p", 97, "--call-graph", "dwarf,16384", "-e", "cpu-clock", "-F", "97", "-p", fmt.Sprint(load.cmd.Process.Pid)),
	}

	// with makes the tool measure a process that does the given kind of work.
	with := func(t *tool, kind string, measure func(ctx context.Context, path string, pid int) (run, error)) *tool {
		t.run = func(ctx context.Context, _ *child) (r run, err error) {
			g, err := scratch.Make(fmt.Sprintf("hotprofile-bench-%d-%s", os.Getpid(), kind))
			if err != nil {
				return r, err
			}
			defer func() { err = errors.Join(err, g.Remove()) }()
			w, err := b.startWorker(g, kind, 0)
			if err != nil {
				return r, err
			}
			defer func() { err = errors.Join(err, w.end()) }()
			if err := w.begin(); err != nil {
				return r, err
			}
			return measure(ctx, g.Path, w.cmd.Process.Pid)
		}
		return t
	}
	waits := [2]*tool{
		with(ours("off-CPU, 4,000 waits a second", 0, "", ""), waiting, func(ctx context.Context, path string, _ int) (run, error) {
			return b.collect(ctx, load, "off_cpu", fmt.Sprintf(`cpu: {enabled: false}, off_cpu: {when: always}, targets: [{cgroup: "%s"}]`, path))
		}),
		with(perfs("-e context-switches -c 1 -g -p", 0), waiting, func(ctx context.Context, _ string, pid int) (run, error) {
			return b.record(ctx, load, perf, []string{"-g", "-c", "1", "-e", "context-switches", "-p", fmt.Sprint(pid)})
		}),
	}
	allocations := [2]*tool{
		with(ours("allocations", 0, "", ""), allocating, func(ctx context.Context, path string, _ int) (run, error) {
			return b.collect(ctx, load, "allocations", fmt.Sprintf(`cpu: {enabled: false}, allocations: {when: always, max_samples_per_minute: 0}, targets: [{cgroup: "%s"}]`, path))
		}),
	}

	leastLoad, mostStarts := 100.0, 0.0
	var errs []error
	for round := range b.rounds {
		for _, t := range tools {
			if t.failed {
				continue
			}
			progress("round %d of %d: %s, %s, %s Hz", round+1, b.rounds, t.name, t.how, t.rateText())
			r, err := t.run(ctx, load)
			if ctx.Err() != nil {
				return errors.Join(append(errs, err)...)
			}
			if err != nil {
				progress("%s, %s: %v", t.name, t.how, err)
				errs, t.failed = append(errs, fmt.Errorf("%s, %s: %w", t.name, t.how, err)), true
				continue
			}
			progress("%.1f µs a sample; %v", r.perSample(), r.past)
			t.runs = append(t.runs, r)
			leastLoad, mostStarts = min(leastLoad, r.loadShare()), max(mostStarts, r.startRate())
		}
	}

	fmt.Fprintf(b.out, "### CPU time per exported sample\n\n")
	fmt.Fprintf(b.out, "`cpu_profiler` → `otlp_grpc` with its defaults (gzip, a queue) and no `cpu_trigger`: rings, names, OTLP, compression and sending, to a peer that discards. Beside it `perf record` to a file, which leaves names, and unwinding by tables, to perf report. A program keeps all CPUs busy; beside it, where that is sampled, one waits or one allocates. Median of %d runs by turns of %v each, and their range. The kernel's own work for a sample is charged to the thread that is sampled, with both. The load never had less than %.0f %% of the CPUs, and at most %.1f processes and threads were started a second.\n\n", b.rounds, b.window, leastLoad, mostStarts)
	t := table{"", "what", "Hz", "CPU per sample", "range", "CPU of one core", "samples a run", "before and after", "resident at most"}
	t.head(b.out)
	for _, tool := range tools {
		if len(tool.runs) == 0 {
			continue
		}
		m, least, most := median(tool.runs)
		t.row(b.out, tool.name, tool.how, tool.rateText(), fmt.Sprintf("%.1f µs", m.perSample()),
			fmt.Sprintf("%.1f to %.1f µs", least, most), fmt.Sprintf("%.3f %%", m.perSecond()),
			fmt.Sprint(m.samples), fmt.Sprintf("%.0f ms", 1e3*m.outside.Seconds()), mebibytes(m.peak))
	}
	fmt.Fprintln(b.out)
	for i, who := range []string{"otelcol-hotprofile", "perf record"} {
		low, high := byRate[rates[0]][i], byRate[rates[1]][i]
		if len(low.runs) == 0 || len(high.runs) == 0 {
			continue
		}
		l, _, _ := median(low.runs)
		h, _, _ := median(high.runs)
		each, fixed := split(l, h)
		if each < 0 || fixed < 0 {
			fmt.Fprintf(b.out, "%s: the host did too much else to tell the cost of each sample from the fixed cost.\n\n", who)
			continue
		}
		fmt.Fprintf(b.out, "%s: %.1f µs for each further sample, and %.3f %% of one core, fixed.\n\n", who, each, fixed)
	}
	if noPerf != nil {
		fmt.Fprintf(b.out, "perf record was not measured: %v.\n\n", noPerf)
	}
	for _, kind := range []struct {
		name string
		pair [2]*tool
	}{
		{"on-CPU, 97 Hz", byRate[rates[0]]},
		{"on-CPU, 997 Hz", byRate[rates[1]]},
		{"on-CPU, unwind tables, 97 Hz", dwarf},
		{"off-CPU", waits},
		{"allocations", allocations},
	} {
		cost := func(t *tool) string {
			if t == nil || len(t.runs) == 0 {
				return "-"
			}
			m, _, _ := median(t.runs)
			return fmt.Sprintf("%.1f µs", m.perSample())
		}
		baseline := ""
		if kind.pair[1] != nil {
			baseline = "perf record " + kind.pair[1].how
		}
		b.sum("CPU time per sample, "+kind.name, cost(kind.pair[0]), cost(kind.pair[1]), baseline, b.rounds)
	}
	return errors.Join(errs...)
}

// median returns the run with the middle cost per sample. If there are two middle runs,
// it returns the more expensive run.
func median(runs []run) (middle run, least, most float64) {
	sorted := slices.SortedFunc(slices.Values(runs), func(a, b run) int { return cmp.Compare(a.perSample(), b.perSample()) })
	return sorted[len(sorted)/2], sorted[0].perSample(), sorted[len(sorted)-1].perSample()
}

// split separates the cost of each sample, in microseconds, from the fixed cost, in
// percent of a core. Both figures come from the line through the two runs.
func split(low, high run) (each, fixed float64) {
	perSecond := func(r run) float64 { return float64(r.samples) / r.took.Seconds() }
	each = 1e4 * (high.perSecond() - low.perSecond()) / (perSecond(high) - perSecond(low))
	return each, low.perSecond() - each*perSecond(low)/1e4
}

// collect measures the collector between two exports of a batch, so that no work is
// unfinished at the start or at the end.
func (b *bench) collect(ctx context.Context, load *child, sampler, receiver string) (r run, err error) {
	p, err := startPeer()
	if err != nil {
		return r, err
	}
	defer p.server.Stop()
	c, err := b.startCollector(ctx, "collector", fmt.Sprintf(`
receivers: {cpu_profiler: {%s}}
exporters: {otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}}
service:
  pipelines: {profiles: {receivers: [cpu_profiler], exporters: [otlp_grpc]}}
`, receiver, p.server.Port))
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
	// The collector's own counter is read outside of the measurement.
	taken := func() (float64, error) { return c.metric("otelcol_cpu_profiler_samples", `sampler="`+sampler+`"`) }
	if err := p.batch(ctx, c.child); err != nil {
		return r, err
	}
	before, err := taken()
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
	if err := p.batch(ctx, c.child); err != nil {
		return r, err
	}
	now, err := c.cpu()
	if err != nil {
		return r, err
	}
	if r.past, err = s.end(); err != nil {
		return r, err
	}
	after, err := taken()
	if err != nil {
		return r, err
	}
	if r.cpu, r.samples = now-used, int(after-before); r.samples <= 0 {
		return r, fmt.Errorf("nothing was sampled; last words of the collector:\n%s", c.lastWords())
	}
	_, r.peak, err = c.memory()
	return r, err
}

// record measures perf record. The start and the end of perf are measured separately.
func (b *bench) record(ctx context.Context, load *child, perf string, args []string) (r run, err error) {
	file := filepath.Join(b.dir, "perf.data")
	defer os.Remove(file)
	c, err := b.start("perf", exec.Command(perf, append([]string{"record", "-k", "mono", "-o", file}, args...)...))
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
