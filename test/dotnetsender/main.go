// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command dotnetsender sends requests to the .NET profile server of cpu_profiler, like the
// exporter plugin of a .NET service, for users without such a service. The requests contain
// generated or recorded buffers, whose times are moved to now.
//
// The command ends by itself and prints the numbers of sent buffers and their outcomes. Its
// exit status is 1 if a buffer was neither accepted nor answered with a request to wait.
//
//	dotnetsender -for 1m -rate 2 testdata/dotnet/web
//	dotnetsender -socket /run/hotprofile/dotnet.sock -senders 64 -rate 0 -for 10s
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dotnetsender:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var c config
	flags := flag.NewFlagSet("dotnetsender", flag.ExitOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "dotnetsender [flags] [file.KIND.bin or folder of such]...\n"+
			"KIND is threads, allocations or selected. Without files, buffers are made.")
		flags.PrintDefaults()
	}
	flags.StringVar(&c.endpoint, "endpoint", "http://localhost:4319", "the intake")
	flags.StringVar(&c.socket, "socket", "", "the Unix socket that the intake listens on, instead of TCP")
	flags.Float64Var(&c.rate, "rate", 1, "buffers a second from each sender; 0: one after the other")
	flags.IntVar(&c.senders, "senders", 1, "senders, each with a connection of its own")
	flags.DurationVar(&c.duration, "for", 10*time.Second, "end after this time; 0: after -count")
	flags.IntVar(&c.count, "count", 0, "end after this many buffers from each sender; 0: after -for")
	flags.StringVar(&c.compression, "compression", "none", "none or gzip")
	flags.StringVar(&c.resource, "resource", "service.name=dotnetsender",
		"the service's resource, in the form of OTEL_RESOURCE_ATTRIBUTES; {sender} stands for the sender's number")
	flags.StringVar(&c.authorization, "authorization", "", "the value of an Authorization header")
	flags.DurationVar(&c.interval, "interval", 500*time.Millisecond, "the interval of thread sampling that is told")
	flags.DurationVar(&c.selectedInterval, "selected-interval", 50*time.Millisecond, "the interval of selective sampling that is told")
	flags.DurationVar(&c.timeout, "timeout", 5*time.Second, "deadline of one export")
	flags.BoolVar(&c.recordedTimes, "recorded-times", false, "leave the times of recorded buffers as they are")
	made := madeBuffers{}
	flags.IntVar(&made.threads, "threads", 12, "threads of made buffers")
	flags.IntVar(&made.depth, "depth", 20, "frames of each thread of made buffers")
	_ = flags.Parse(args) // exits on an error

	var err error
	if flags.NArg() > 0 {
		c.buffers, err = readBuffers(flags.Args())
	} else {
		c.buffers, err = made.buffers()
	}
	if err != nil {
		return err
	}
	r, err := send(ctx, c)
	if err != nil {
		return err
	}
	fmt.Println(r)
	if r.failed > 0 {
		return errors.New("not all buffers were taken; the first failure: " + r.firstFailure)
	}
	return nil
}
