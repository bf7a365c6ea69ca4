// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/perfevent/tracefs"
	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

// arm is a state of the host in which the benchmark does work. It also stores the times
// that the work took.
type arm struct {
	name string
	// begin sets up the state. end removes the state again.
	begin func(ctx context.Context) (end func() error, err error)
	took  map[string][]worked // by kind of work
}

// byTurns does each kind of work b.pairs times in
// each arm. The order is random in each round.
func (b *bench) byTurns(ctx context.Context, arms []*arm, do func(a *arm) error) error {
	for round := range b.pairs {
		progress("slowdown: round %d of %d", round+1, b.pairs)
		for _, i := range rand.Perm(len(arms)) {
			end, err := arms[i].begin(ctx)
			if err == nil {
				err = errors.Join(do(arms[i]), end())
			}
			if err != nil {
				return fmt.Errorf("%s: %w", arms[i].name, err)
			}
		}
	}
	return nil
}

func nothing(context.Context) (func() error, error) { return func() error { return nil }, nil }

// slowdowns measures the slowdown of programs while they are sampled.
func (b *bench) slowdowns(ctx context.Context) error {
	fmt.Fprintf(b.out, "### How much slower a program runs\n\n")
	fmt.Fprintf(b.out, "A fixed piece of work, about %v of it, %d times with sampling and %d times without, by turns in an order drawn anew each time; the mean of the pairs' differences and its 95 %% interval (Student's t). The upper end of the interval is what is claimed. The process itself reads both clocks.\n\n", b.piece, b.pairs, b.pairs)
	t := table{"program", "sampled by", "wall time", "CPU time", "pairs"}
	t.head(b.out)
	ofHost := b.slowdownOfHost(ctx, t)
	switches, ofWaits := b.slowdownOfWaits(ctx, t)
	allocates, ofAllocations := b.slowdownOfAllocations(ctx, t)
	fmt.Fprintf(b.out, "\n%s\n\n", strings.TrimSpace(switches+" "+allocates))
	return errors.Join(ofHost, ofWaits, ofAllocations)
}

func (b *bench) slowdownRow(t table, kind string, with, without *arm) (wall, cpu interval) {
	var clocks [2][2][]float64
	for i, a := range []*arm{with, without} {
		for _, w := range a.took[kind] {
			clocks[0][i], clocks[1][i] = append(clocks[0][i], w.wall), append(clocks[1][i], w.cpu)
		}
	}
	wall, cpu = slower(clocks[0][0], clocks[0][1]), slower(clocks[1][0], clocks[1][1])
	t.row(b.out, kind, with.name, wall.String(), cpu.String(), fmt.Sprint(wall.n))
	return wall, cpu
}

// slowdownOfHost measures the default on-CPU sampling of
// the whole host. Every sample is exported.
func (b *bench) slowdownOfHost(ctx context.Context, t table) error {
	p, err := startPeer()
	if err != nil {
		return err
	}
	defer p.server.Stop()
	amounts := map[string]int64{}
	kinds := []string{computing, switching}
	for _, kind := range kinds {
		if amounts[kind], err = b.amountFor(ctx, kind, b.piece); err != nil {
			return err
		}
	}
	settled := func(c interface{ stop() error }, err error) (func() error, error) {
		if err == nil {
			err = sleep(ctx, time.Second)
		}
		return func() error { return c.stop() }, err
	}
	arms := []*arm{{name: "nobody", begin: nothing, took: map[string][]worked{}}, {name: "`cpu_profiler`, whole host, 97 Hz", took: map[string][]worked{}, begin: func(ctx context.Context) (func() error, error) {
		c, err := b.startCollector(ctx, "collector", fmt.Sprintf(`
receivers: {cpu_profiler: {max_overhead: 0, export_interval: 1s}}
exporters: {otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}}
service:
  pipelines: {profiles: {receivers: [cpu_profiler], exporters: [otlp_grpc]}}
`, p.server.Port))
		if err != nil {
			return nil, err
		}
		return settled(c, nil)
	}}}
	if perf, err := exec.LookPath("perf"); err == nil {
		arms = append(arms, &arm{name: "`perf record -a -g -F 97`", took: map[string][]worked{}, begin: func(context.Context) (func() error, error) {
			c, err := b.start("perf", exec.Command(perf, "record", "-a", "-g", "-e", "cpu-clock", "-F", "97", "-o", filepath.Join(b.dir, "perf.data")))
			if err != nil {
				return nil, err
			}
			return settled(c, nil)
		}})
	}
	err = b.byTurns(ctx, arms, func(a *arm) error {
		for _, kind := range kinds {
			r, err := b.work(ctx, nil, kind, amounts[kind], nil)
			if err != nil {
				return err
			}
			a.took[kind] = append(a.took[kind], r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		b.slowdownSum(t, kind, "on-CPU sampling", "perf record -F 97", arms)
	}
	return nil
}

// slowdownSum adds a table row for each arm except the first, and a summary of all results.
// The first arm is the baseline without sampling.
func (b *bench) slowdownSum(t table, kind, what, baseline string, arms []*arm) {
	said := []string{}
	for _, a := range arms[1:] {
		wall, cpu := b.slowdownRow(t, kind, a, arms[0])
		said = append(said, fmt.Sprintf("at most %.2f %% of wall, %.2f %% of CPU time", wall.atMost(), cpu.atMost()))
	}
	b.sum(what+" slows down a program that does nothing but "+map[string]string{
		computing: "compute", switching: "switch between threads", allocating: "allocate", sending: "send small packets", answering: "ask and answer over TCP",
	}[kind], said[0], append(said, "-")[1], baseline, b.pairs)
}

func (b *bench) slowdownOfWaits(ctx context.Context, t table) (said string, err error) {
	arms, amount, err := b.inCgroups(ctx, switching, "off_cpu", "cpu: {enabled: false}, off_cpu: {when: always}", "context-switches")
	if err == nil {
		said = fmt.Sprintf("The switching program alone switches %.0f times a second.", 2*rate(arms[0], switching, amount))
		b.slowdownSum(t, switching, "off-CPU sampling", "perf record -e context-switches -c 1 -g", arms)
	}
	return said, err
}

func (b *bench) slowdownOfAllocations(ctx context.Context, t table) (said string, err error) {
	arms, amount, err := b.inCgroups(ctx, allocating, "allocations", "cpu: {enabled: false}, allocations: {when: always}", "")
	if err == nil {
		said = fmt.Sprintf("The allocating program alone allocates %.1f GB a second.", allocated*rate(arms[0], allocating, amount)/1e9)
		b.slowdownSum(t, allocating, "allocation sampling", "", arms)
	}
	return said, err
}

// slowdownsOfCalls compares the network sampler with perf record on the same tracepoints.
// The sampler and perf both read the tracepoints from tracefs.
func (b *bench) slowdownsOfCalls(ctx context.Context) error {
	if _, err := tracefs.Find("/"); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "### How much slower a program sends\n\n")
	fmt.Fprintf(b.out, "As above, about %v of work, %d pairs: datagrams of %d bytes to a socket that nobody reads, and questions and answers of %d bytes over TCP on loopback, in two threads on one CPU.\n\n", b.piece, b.pairs, packet, packet)
	t := table{"program", "sampled by", "wall time", "CPU time", "pairs"}
	t.head(b.out)
	var errs []error
	said := ""
	for _, work := range []struct{ kind, event string }{
		{sending, "sock:sock_send_length"},
		{answering, "sock:sock_send_length,sock:sock_recv_length"},
	} {
		arms, amount, err := b.inCgroups(ctx, work.kind, "network", "cpu: {enabled: false}, network: {when: always}", work.event)
		if errs = append(errs, err); err != nil {
			continue
		}
		said += fmt.Sprintf("The %s program alone does it %.0f times a second. ", work.kind, rate(arms[0], work.kind, amount))
		b.slowdownSum(t, work.kind, "network sampling", "perf record -e "+work.event+" -c 1 -g", arms)
	}
	fmt.Fprintf(b.out, "\n%s\n\n", strings.TrimSpace(said))
	return errors.Join(errs...)
}

// rate returns the number of units of work that were done per second.
func rate(a *arm, kind string, amount int64) float64 {
	var took float64
	for _, w := range a.took[kind] {
		took += w.wall
	}
	return float64(amount) * float64(len(a.took[kind])) / took
}

// inCgroups starts one collector that samples a cgroup whenever the cgroup exists. Work
// without sampling runs in another cgroup. During this work, the sampled cgroup does not
// exist, so that no events are attached.
func (b *bench) inCgroups(ctx context.Context, kind, sampler, receiver, perfEvent string) (arms []*arm, amount int64, err error) {
	p, err := startPeer()
	if err != nil {
		return nil, 0, err
	}
	defer p.server.Stop()
	if amount, err = b.amountFor(ctx, kind, b.piece); err != nil {
		return nil, 0, err
	}
	name := fmt.Sprintf("hotprofile-bench-%d-", os.Getpid())
	c, err := b.startCollector(ctx, "collector", fmt.Sprintf(`
receivers: {cpu_profiler: {discovery_interval: 100ms, targets: [{cgroup: "/**/%ssampled"}, {cgroup: "/%ssampled"}], %s}}
exporters: {otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}}
service:
  pipelines: {profiles: {receivers: [cpu_profiler], exporters: [otlp_grpc]}}
`, name, name, receiver, p.server.Port))
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()

	attached := func(want bool) error { return c.waitTargets(ctx, sampler, want) }
	arms = []*arm{
		{name: "nobody", begin: nothing, took: map[string][]worked{}},
		{name: "`cpu_profiler`, " + sampler + ", its cgroup", begin: nothing, took: map[string][]worked{}},
	}
	perf, noPerf := exec.LookPath("perf")
	if perfEvent != "" && noPerf == nil {
		arms = append(arms, &arm{name: "`perf record -g -c 1 -e " + perfEvent + "`", begin: nothing, took: map[string][]worked{}})
	}
	err = b.byTurns(ctx, arms, func(a *arm) (err error) {
		suffix := "alone"
		if a == arms[1] {
			suffix = "sampled"
		}
		group, err := scratch.Make(name + suffix)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, group.Remove(), attached(false)) }()
		var beside *child
		r, err := b.work(ctx, group, kind, amount, func(pid int) (err error) {
			switch {
			case a == arms[1]:
				err = attached(true)
			case len(arms) > 2 && a == arms[2]:
				beside, err = b.start("perf", exec.Command(perf, "record", "-g", "-c", "1", "-e", perfEvent, "-p", fmt.Sprint(pid), "-o", filepath.Join(b.dir, "perf.data")))
			}
			return errors.Join(err, sleep(ctx, 500*time.Millisecond))
		})
		if beside != nil {
			_ = beside.stop()
		}
		a.took[kind] = append(a.took[kind], r)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	if err := sleep(ctx, 6*time.Second); err != nil { // longer than an export interval
		return nil, 0, err
	}
	taken, err := c.metric("otelcol_cpu_profiler_samples", `sampler="`+sampler+`"`)
	if err == nil && taken == 0 {
		err = fmt.Errorf("nothing was sampled; last words of the collector:\n%s", c.lastWords())
	}
	progress("%.0f samples of %s", taken, sampler)
	return arms, amount, err
}

// waitTargets waits until the sampler has a target, or until it has no target.
func (c *collector) waitTargets(ctx context.Context, sampler string, want bool) error {
	const limit = time.Minute
	for began := time.Now(); ; {
		n, err := c.metric("otelcol_cpu_profiler_targets", `sampler="`+sampler+`"`)
		if err == nil && (n > 0) == want {
			return nil
		}
		if err == nil {
			err = sleep(ctx, 20*time.Millisecond)
		}
		if err == nil && time.Since(began) > limit {
			err = fmt.Errorf("%s has %v targets after %v; its last words:\n%s", sampler, n, limit, c.lastWords())
		}
		if err != nil {
			return err
		}
	}
}
