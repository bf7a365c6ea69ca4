// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command pod runs in containers of the test cluster. It either only waits, like the
// container of a pod sandbox, or uses more and more memory.
package main

import (
	"context"
	"flag"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	eatAfter := flag.Duration("eat-after", 0, "compute for this long, then use 4 MiB more each 10 ms; 0: wait only")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if *eatAfter > 0 {
		compute(ctx, time.Now().Add(*eatAfter))
		for eaten := [][]byte(nil); ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			piece := make([]byte, 4<<20)
			for i := 0; i < len(piece); i += 4096 {
				piece[i] = 1
			}
			eaten = append(eaten, piece)
		}
	}
	<-ctx.Done()
}

//go:noinline
func compute(ctx context.Context, until time.Time) {
	for ctx.Err() == nil && time.Now().Before(until) {
	}
}
