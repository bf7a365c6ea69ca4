// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures what whole processes cost, on a host whose CPUs are all
// kept busy: the collector that watches while nothing is hot, beside a bare one,
// and the collector that hands every sample over, beside perf record. It writes
// a report in Markdown to standard output and leaves nothing behind.
//
// It is a command and not a Go benchmark because it measures other processes,
// over minutes, and has to stop them in order when it is interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/hotprofile/hotprofile/internal/hosttest/scratch"
)

// bench is what all measurements share.
type bench struct {
	collector, load string
	dir             string // for configurations, logs and perf's files
	watch, window   time.Duration
	rounds          int
	out             io.Writer
}

func main() {
	b := bench{out: os.Stdout}
	flag.StringVar(&b.collector, "collector", "bin/otelcol-hotprofile", "the distribution's binary")
	flag.StringVar(&b.load, "load", "bin/load", "the load program's binary")
	minutes := flag.Float64("minutes", 2, "how long to watch a busy host on which nothing is hot; 0: not at all")
	flag.DurationVar(&b.window, "window", 20*time.Second, "how long each run that hands samples over is measured")
	flag.IntVar(&b.rounds, "rounds", 3, "how often each of those runs is repeated; 0: not at all")
	flag.Parse()
	b.watch = time.Duration(*minutes * float64(time.Minute))

	// The kernel ends our children when the thread that started them ends, so
	// that even a killed bench leaves no process: keep that thread.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.dir, err = os.MkdirTemp("", "hotprofile-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()

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

	fmt.Fprint(b.out, "# What whole processes cost\n\n")
	hostFacts(b.out)
	if b.watch > 0 {
		if err := b.watching(ctx, load); err != nil {
			return err
		}
	}
	if b.rounds > 0 {
		return b.sampling(ctx, load)
	}
	return nil
}

// longest is when the load ends by itself whatever happens to this process.
func (b *bench) longest() time.Duration {
	return 5*time.Minute + 2*b.watch + time.Duration(4*b.rounds)*(b.window+time.Minute)
}

// progress says what is under way; the report has standard output for itself.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

// sleep waits unless it is interrupted.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return errors.New("interrupted")
	}
}
