// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// rival is a program that is compared with other programs. The programs run in turns.
type rival struct {
	name string
	turn func(ctx context.Context, load *child) (turn, error)
	// turns contains the turns by round. If the rival has no
	// further turns, why is the reason.
	turns map[int]turn
	why   string
}

// turn is one measurement of a rival.
type turn struct {
	run
	resident int64
	switches int64 // voluntary context switches, which happen when a thread begins to wait
}

func (t turn) switchRate() float64 { return float64(t.switches) / t.took.Seconds() }

// compared contains the median and the range of ratios. Each ratio compares the figures of
// two rivals in the same round.
type compared struct{ middle, least, most float64 }

func (c compared) String() string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", c.middle, c.least, c.most)
}

func ratio(a, b *rival, of func(turn) float64) (c compared, ok bool) {
	var each []float64
	for round, t := range a.turns {
		if other, both := b.turns[round]; both && of(other) > 0 {
			each = append(each, of(t)/of(other))
		}
	}
	if len(each) == 0 {
		return c, false
	}
	slices.Sort(each)
	return compared{middle: each[len(each)/2], least: each[0], most: each[len(each)-1]}, true
}

// compare measures programs that sample the whole host at 97 Hz, and an
// idle collector. The programs run in turns on the same load.
func (b *bench) compare(ctx context.Context, load *child) error {
	const sender = `
exporters: {otlp_grpc: {endpoint: "127.0.0.1:%[1]d", tls: {insecure: true}}}
service:
  pipelines: {profiles: {receivers: [%[2]s], exporters: [otlp_grpc]}}
`
	hotprofile := func(name, collector, receiver string) *rival {
		return &rival{name: name, turn: func(ctx context.Context, load *child) (turn, error) {
			return b.export(ctx, load, collector, "receivers: {cpu_profiler: "+receiver+"}"+sender, "cpu_profiler")
		}}
	}
	ours := hotprofile("hotprofile", b.collector, "{max_overhead: 0}")
	flat := hotprofile("hotprofile, frame pointers alone", b.collector, "{max_overhead: 0, unwind: frame_pointer}")
	bare := &rival{name: "a bare collector", turn: func(ctx context.Context, load *child) (turn, error) {
		return b.export(ctx, load, b.collector, `receivers: {otlp: {protocols: {grpc: {endpoint: "127.0.0.1:0"}}}}`+sender, "otlp")
	}}
	perf := func(name string, stacks ...string) *rival {
		return &rival{name: name, turn: func(ctx context.Context, load *child) (t turn, err error) {
			path, err := exec.LookPath("perf")
			if err != nil {
				return t, err
			}
			t.run, err = b.record(ctx, load, path, append([]string{"-a", "-e", "cpu-clock", "-F", "97"}, stacks...))
			t.resident = t.peak
			return t, err
		}}
	}
	ebpf := &rival{name: "the eBPF profiler", turn: func(ctx context.Context, load *child) (t turn, err error) {
		if _, err := os.Stat(b.ebpf); err != nil {
			return t, fmt.Errorf("%w: make build-ebpf builds it", err)
		}
		return b.export(ctx, load, b.ebpf, "receivers: {profiling: {samples_per_second: 97}}"+sender, "profiling")
	}}
	rivals := []*rival{ours, flat, ebpf, perf("perf record -a -g", "-g"), perf("perf record -a --call-graph dwarf", "--call-graph", "dwarf"), bare}
	if b.before != "" {
		rivals = append(rivals, hotprofile("hotprofile before", b.before, "{max_overhead: 0}"))
	}
	leastLoad, mostStarts := 100.0, 0.0
	for round := range b.turns {
		for _, r := range rivals {
			if r.why != "" {
				continue
			}
			progress("round %d of %d: %s", round+1, b.turns, r.name)
			t, err := r.turn(ctx, load)
			if ctx.Err() != nil {
				return err
			}
			if err != nil {
				r.why = strings.Join(strings.Fields(err.Error()), " ")
				progress("%s: %v", r.name, err)
				continue
			}
			progress("%d samples, %.3f %% of a core, %s; %v", t.samples, t.perSecond(), mebibytes(t.resident), t.past)
			if r.turns == nil {
				r.turns = map[int]turn{}
			}
			r.turns[round] = t
			leastLoad, mostStarts = min(leastLoad, t.loadShare()), max(mostStarts, t.startRate())
		}
	}
	b.writeComparison(ours, rivals, leastLoad, mostStarts)
	if len(ours.turns) == 0 {
		return errors.New(ours.why)
	}
	return nil
}

func (b *bench) writeComparison(ours *rival, rivals []*rival, leastLoad, mostStarts float64) {
	fmt.Fprintf(b.out, "### Beside others, by turns\n\n")
	fmt.Fprintf(b.out, "The whole host at 97 Hz, all CPUs busy, OTLP over gRPC with gzip to a peer that discards, nothing gated: %d rounds, in each of which every program has its turn of about %v. `perf record` writes to a file and names nothing, the eBPF profiler names no native code, and the bare collector (`otlp` → `otlp_grpc`) gets nothing. Ratios are of the same round: the middle one, and their range. The load never had less than %.0f %% of the CPUs, and at most %.1f processes and threads were started a second.\n\n", b.turns, b.window, leastLoad, mostStarts)
	perSample := func(t turn) float64 {
		if t.samples == 0 {
			return 0
		}
		return t.perSample()
	}
	figures := []struct {
		name string
		of   func(turn) float64
	}{
		{"CPU time per sample", perSample},
		{"CPU time", func(t turn) float64 { return t.cpu.Seconds() }},
		{"resident memory", func(t turn) float64 { return float64(t.resident) }},
	}
	t := table{"hotprofile's part of", "CPU time per sample", "CPU time", "resident memory"}
	t.head(b.out)
	for _, r := range rivals {
		if r == ours {
			continue
		}
		cells := []string{r.name}
		for _, f := range figures {
			cell := "-"
			if c, ok := ratio(ours, r, f.of); ok {
				cell = c.String()
				b.sum("beside "+r.name+": "+f.name, cell, "1", r.name, len(r.turns))
			}
			cells = append(cells, cell)
		}
		t.row(b.out, cells...)
	}
	fmt.Fprintln(b.out)
	t = table{"", "CPU per sample", "range", "CPU of one core", "samples a second", "waits a second", "resident", "turns"}
	t.head(b.out)
	for _, r := range rivals {
		if len(r.turns) == 0 {
			continue
		}
		var runs []run
		var waits, samples, resident []float64
		for _, one := range r.turns {
			runs = append(runs, one.run)
			waits = append(waits, one.switchRate())
			samples = append(samples, float64(one.samples)/one.took.Seconds())
			resident = append(resident, float64(one.resident))
		}
		each, span := "-", "-"
		m, least, most := median(runs)
		if m.samples > 0 {
			each, span = fmt.Sprintf("%.1f µs", m.perSample()), fmt.Sprintf("%.1f to %.1f µs", least, most)
		} else {
			slices.SortFunc(runs, func(a, b run) int { return int(a.cpu - b.cpu) })
			m = runs[len(runs)/2]
		}
		t.row(b.out, r.name, each, span, fmt.Sprintf("%.3f %%", m.perSecond()), fmt.Sprintf("%.0f", middleOf(samples)),
			fmt.Sprintf("%.0f", middleOf(waits)), mebibytes(int64(middleOf(resident))), strconv.Itoa(len(r.turns)))
	}
	fmt.Fprintln(b.out)
	for _, r := range rivals {
		if r.why != "" {
			fmt.Fprintf(b.out, "%s could not be measured, or not in all rounds: %s\n\n", r.name, r.why)
		}
	}
}

func middleOf(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// export measures a collector that exports the profiles of its receiver. The measurement
// begins and ends when the collector has just exported. A collector with an otlp receiver
// gets no profiles and exports nothing, so its measurement has a fixed duration.
func (b *bench) export(ctx context.Context, load *child, binary, config, receiver string) (t turn, err error) {
	p, err := startPeer()
	if err != nil {
		return t, err
	}
	defer p.server.Stop()
	c, err := b.startCollectorOf(ctx, binary, "collector", fmt.Sprintf(config, p.server.Port, receiver))
	if err != nil {
		return t, err
	}
	defer func() {
		err = errors.Join(err, c.stop())
		t.outside = c.total() - t.cpu
	}()
	quiet := receiver == "otlp"
	exported := func(d time.Duration) error {
		if err := sleep(ctx, d); err != nil || quiet {
			return err
		}
		return p.batch(ctx, c.child)
	}
	wait := b.steady
	if quiet {
		wait = settle
	}
	if err := exported(wait); err != nil {
		return t, err
	}
	used, err := c.cpu()
	if err != nil {
		return t, err
	}
	samples, _ := p.received()
	switches, err := c.switches()
	if err != nil {
		return t, err
	}
	s, err := begin(load)
	if err != nil {
		return t, err
	}
	if err := exported(b.window - time.Second); err != nil {
		return t, err
	}
	now, err := c.cpu()
	if err != nil {
		return t, err
	}
	after, err := c.switches()
	if err != nil {
		return t, err
	}
	if t.past, err = s.end(); err != nil {
		return t, err
	}
	received, _ := p.received()
	t.cpu, t.switches, t.samples = now-used, after-switches, received-samples
	if t.samples == 0 && !quiet {
		return t, fmt.Errorf("nothing was sampled; last words of the collector:\n%s", c.lastWords())
	}
	t.resident, t.peak, err = c.memory()
	return t, err
}

// switches returns the number of voluntary context switches of the child's threads.
func (c *child) switches() (n int64, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		status, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread has ended
		}
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(status)) {
			if value, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				each, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
				if err != nil {
					return 0, fmt.Errorf("%s: %w", file, err)
				}
				n += each
			}
		}
	}
	return n, nil
}

// quiet measures the wake-ups of a collector that watches an otherwise idle host. A bare
// collector runs at the same time.
func (b *bench) quiet(ctx context.Context) (err error) {
	p, err := startPeer()
	if err != nil {
		return err
	}
	defer p.server.Stop()
	watcher, bare, stop, err := b.startWatching(ctx, p.server.Port)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	host, err := readHostCounters()
	if err != nil {
		return err
	}
	collectors := []*collector{watcher, bare}
	used, waits := map[*collector]time.Duration{}, map[*collector]int64{}
	for _, c := range collectors {
		if used[c], err = c.cpu(); err != nil {
			return err
		}
		if waits[c], err = c.switches(); err != nil {
			return err
		}
	}
	record, recorded, perfErr := b.recordWakeups()
	began := time.Now()
	err = sleep(ctx, b.watch)
	took := time.Since(began)
	if perfErr == nil {
		if perfErr = record.running(); perfErr == nil {
			perfErr = record.stop()
		} else {
			_ = record.stop()
		}
	}
	if err != nil {
		return err
	}
	after, err := readHostCounters()
	if err != nil {
		return err
	}
	starts := float64(after.started-host.started) / took.Seconds()
	fmt.Fprintf(b.out, "### Watching a host that does nothing, %v\n\nAs below, without a load: how often a thread of the collector went to wait, how often one was woken, and how often one was after none had been for %v. %.1f processes and threads were started a second; each wakes the collector.\n\n", b.watch, idle, starts)
	t := table{"collector", "waits a second", "wake-ups a second", "wake-ups after idling", "CPU of one core", "resident"}
	t.head(b.out)
	rates := map[*collector]string{}
	for _, c := range collectors {
		now, err := c.switches()
		if err != nil {
			return err
		}
		cpu, err := c.cpu()
		if err != nil {
			return err
		}
		resident, _, err := c.memory()
		if err != nil {
			return err
		}
		waited := fmt.Sprintf("%.1f", float64(now-waits[c])/took.Seconds())
		woken := "-"
		rates[c] = "-"
		if perfErr == nil {
			var all, afterIdle int
			if all, afterIdle, perfErr = c.wakeups(ctx, recorded); perfErr == nil {
				woken, rates[c] = fmt.Sprintf("%.1f", float64(all)/took.Seconds()), fmt.Sprintf("%.1f", float64(afterIdle)/took.Seconds())
			}
		}
		t.row(b.out, c.name, waited, woken, rates[c], fmt.Sprintf("%.3f %%", 100*(cpu-used[c]).Seconds()/took.Seconds()), mebibytes(resident))
	}
	fmt.Fprintln(b.out)
	if perfErr != nil {
		fmt.Fprintf(b.out, "Wake-ups could not be counted: %s\n\n", strings.Join(strings.Fields(perfErr.Error()), " "))
	}
	b.sum(fmt.Sprintf("wake-ups a second, each after %v without one, on a host that does nothing (%.1f starts a second)", idle, starts), rates[watcher], rates[bare], "a bare collector", 1)
	return nil
}
