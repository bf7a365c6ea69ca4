// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures the cost of hotprofile. Each figure has a baseline from the same
// run. Go benchmarks measure the hot paths. Whole processes are compared with bare
// collectors and with perf record. The command writes a report in Markdown to standard
// output and its progress to standard error. It removes all files, cgroups and processes
// that it created.
//
// The command is not a Go benchmark, because it measures other processes for minutes, and
// has to stop these processes in order when it is interrupted.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

// bench holds the settings and results that all measurements share.
type bench struct {
	collector, load, self string
	ebpf, before          string // distributions for comparison; before may be empty
	source                string // the module's directory
	dir                   string // contains configurations, logs and perf's files

	count     int    // the number of runs of each Go benchmark
	benchTime string // the duration of each of these runs
	watch     time.Duration
	steady    time.Duration // the time that a collector runs before it is compared
	window    time.Duration // the duration of each run of a sampler
	rounds    int           // the number of runs of a sampler
	turns     int           // the number of turns of each rival
	piece     time.Duration // the duration of a piece of work whose slowdown is measured
	pairs     int
	starts    int
	stacksFor time.Duration

	sections bytes.Buffer
	out      io.Writer // writes to sections
	figures  []figureRow
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "work" {
		if err := workMain(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench: work:", err)
			os.Exit(1)
		}
		return
	}
	b := &bench{}
	b.out = &b.sections
	flag.StringVar(&b.collector, "collector", "bin/otelcol-hotprofile", "the distribution's binary")
	flag.StringVar(&b.load, "load", "bin/load", "the load program's binary")
	flag.StringVar(&b.ebpf, "ebpf", "bin/otelcol-hotprofile-ebpf", "the binary of make build-ebpf")
	flag.StringVar(&b.before, "before", "", "another binary of the distribution, to compare with; empty: none")
	flag.StringVar(&b.source, "source", ".", "the module's directory")
	flag.IntVar(&b.count, "count", 5, "how often each Go benchmark is run")
	flag.StringVar(&b.benchTime, "benchtime", "100ms", "how long each time")
	minutes := flag.Float64("minutes", 1, "how long to watch a busy host on which nothing is hot")
	flag.DurationVar(&b.steady, "steady", 36*time.Second, "how long a collector runs before it is compared: in the first seconds it reads the files of programs, and copies of stacks are larger than programs need")
	flag.DurationVar(&b.window, "window", 8*time.Second, "how long each run of a sampler is measured")
	flag.IntVar(&b.rounds, "rounds", 2, "how often each of those runs is repeated")
	flag.IntVar(&b.turns, "turns", 3, "how many turns each program has that is compared")
	flag.DurationVar(&b.piece, "piece", 600*time.Millisecond, "how long a piece of work takes whose slowdown is measured")
	flag.IntVar(&b.pairs, "pairs", 20, "how often it is done with and without")
	flag.IntVar(&b.starts, "starts", 5, "how many cold starts")
	flag.DurationVar(&b.stacksFor, "stacks", 75*time.Second, "how long distinct stacks are made at most")
	only := flag.String("only", "", "parts to measure, by comma: compare, go, slowdown, network, sampling, quiet, watching, cold, stacks; empty: all")
	quick := flag.Bool("quick", false, "see only that everything works: the figures mean little")
	flag.Parse()
	if *quick {
		b.count, b.benchTime, *minutes, b.window, b.rounds, b.turns = 1, "1x", 0.1, 3*time.Second, 1, 1
		b.steady = settle
		b.piece, b.pairs, b.starts, b.stacksFor = 200*time.Millisecond, 2, 1, 10*time.Second
	}
	b.watch = time.Duration(*minutes * float64(time.Minute))

	// The kernel ends our children when the thread that started them ends, so even a killed
	// bench leaves no process. The main goroutine must therefore stay on its thread.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	report, err := b.run(ctx, *only)
	fmt.Print(report)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// part is a part of the measurements that can run alone.
type part struct {
	key, name string
	run       func(context.Context) error
}

// run runs the parts one after the other. If a part fails, the error is in the report
// and the other parts still run.
func (b *bench) run(ctx context.Context, only string) (report string, err error) {
	if b.self, err = os.Executable(); err != nil {
		return "", err
	}
	paths := []*string{&b.collector, &b.load, &b.source, &b.ebpf}
	if b.before != "" {
		paths = append(paths, &b.before)
	}
	for _, path := range paths {
		if *path, err = filepath.Abs(*path); err != nil {
			return "", err
		}
	}
	if b.dir, err = os.MkdirTemp("", "hotprofile-bench-"); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()

	began, load := time.Now(), loadAverage()
	var errs []error
	var missing []string
	if _, err := exec.LookPath("perf"); err != nil {
		missing = append(missing, "perf record, which is not installed")
	}
	for _, p := range []part{
		{"compare", "the comparison by turns", b.busy(func(ctx context.Context, load *child, _ *scratch.Cgroup) error { return b.compare(ctx, load) })},
		{"go", "the hot paths", b.goBenchmarks},
		{"slowdown", "the slowdown of programs", b.slowdowns},
		{"network", "the slowdown of programs that send", b.slowdownsOfCalls},
		{"sampling", "the CPU time of samples", b.busy(b.sampling)},
		{"quiet", "watching a host that does nothing", b.quiet},
		{"watching", "watching", b.busy(b.watching)},
		{"cold", "cold start", b.coldStart},
		{"stacks", "memory and distinct stacks", b.stacks},
	} {
		if only != "" && !strings.Contains(","+only+",", ","+p.key+",") {
			continue
		}
		progress("%s; %v so far", p.name, time.Since(began).Round(time.Second))
		if err := p.run(ctx); err != nil {
			progress("%s: %v", p.name, err)
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
			first, _, _ := strings.Cut(err.Error(), "\n")
			missing = append(missing, p.name+", or a part of it: "+first)
		}
		if ctx.Err() != nil {
			errs = append(errs, errors.New("interrupted"))
			break
		}
	}
	progress("done after %v", time.Since(began).Round(time.Second))
	return b.report(began, load, missing), errors.Join(errs...)
}

// busy returns a part that runs while a load keeps all
// CPUs busy. The load runs in its own cgroup.
func (b *bench) busy(measure func(context.Context, *child, *scratch.Cgroup) error) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		group, err := scratch.Make(fmt.Sprintf("hotprofile-bench-%d", os.Getpid()))
		if err != nil {
			return fmt.Errorf("the load needs a cgroup of its own, so run this as root: %w", err)
		}
		defer func() { err = errors.Join(err, group.Remove()) }()
		cmd := group.Command(b.load, "-threads", fmt.Sprint(runtime.NumCPU()), "-busy", b.longest().String(), "-exit")
		cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME=bench-load")
		load, err := b.start("load", cmd)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, load.stop()) }()
		return measure(ctx, load, group)
	}
}

// longest returns the time after which the load ends
// by itself, even if this process was killed.
func (b *bench) longest() time.Duration {
	return 5*time.Minute + 2*b.watch + time.Duration(9*b.rounds+5*b.turns)*(b.window+time.Minute)
}

// progress prints the current step to standard
// error. Standard output is only for the report.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

// sleep waits for d. It returns an error if it is interrupted.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return errors.New("interrupted")
	}
}
