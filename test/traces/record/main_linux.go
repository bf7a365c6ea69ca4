// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command record runs the load of each schedule in a new cgroup. It reads the cgroup once
// per second, in the same way as the collector, and writes a trace:
//
//	record -out test/traces/recorded test/traces/schedules/*.txt
//
// The command needs root. It ignores the schedules of synthetic traces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hotprofile/hotprofile/test/traces"
)

func main() {
	// This program is also the load, which runs inside the cgroup.
	if len(os.Args) > 1 && os.Args[1] == "burn" {
		if err := burn(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "burn:", err)
			os.Exit(1)
		}
		return
	}
	out := flag.String("out", ".", "directory for the traces")
	atOnce := flag.Int("at-once", 6, "how many loads may run at the same time")
	again := flag.Bool("again", false, "record again what is there already")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *atOnce, *again, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out string, atOnce int, again bool, files []string) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		errs  []error
		slots = make(chan struct{}, max(1, atOnce))
	)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		s, err := traces.ParseSchedule(strings.TrimSuffix(filepath.Base(file), ".txt"), string(text))
		if err != nil {
			return err
		}
		to := filepath.Join(out, s.Name+".csv")
		if _, err := os.Stat(to); !s.Recorded || err == nil && !again {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			if err := record(ctx, s, file, to); err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("%s: %w", s.Name, err))
				mu.Unlock()
				return
			}
			fmt.Println(time.Now().Format(time.TimeOnly), s.Name)
		})
	}
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}
