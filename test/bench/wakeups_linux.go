// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// idle is the time without a wake-up of the collector after which the next one counts.
// One that follows another at once finds the CPU awake.
const idle = 5 * time.Millisecond

// recordWakeups records every wake-up of the host, until it is stopped.
func (b *bench) recordWakeups() (record *child, file string, err error) {
	perf, err := exec.LookPath("perf")
	if err != nil {
		return nil, "", err
	}
	// perf would mount it, and leave it mounted.
	if _, err := os.Stat("/sys/kernel/tracing/events"); err != nil {
		return nil, "", fmt.Errorf("tracefs is not mounted at /sys/kernel/tracing: %w", err)
	}
	file = filepath.Join(b.dir, "wakeups.data")
	record, err = b.start("perf", exec.Command(perf, "record", "-q", "-a", "-e", "sched:sched_wakeup", "-o", file))
	return record, file, err
}

// wakeups returns how often a thread of the collector was woken, and how often one was
// after none had been for a while.
func (c *collector) wakeups(ctx context.Context, file string) (all, afterIdle int, err error) {
	threads := map[string]bool{}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", c.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for _, t := range tasks {
		threads[t.Name()] = true
	}
	cmd := exec.CommandContext(ctx, "perf", "script", "-i", file, "-F", "time,trace")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	host, all, afterIdle := countWakeups(out, threads)
	if err := cmd.Wait(); err != nil {
		return 0, 0, fmt.Errorf("read the wake-ups that perf recorded: %w", err)
	}
	if host == 0 {
		return 0, 0, errors.New("perf recorded no wake-up of any program")
	}
	return all, afterIdle, nil
}

// wakeup is a line of perf script: its time in seconds, and who was woken.
var wakeup = regexp.MustCompile(`^\s*(\d+\.\d+): .*\bpid=(\d+) prio=`)

// countWakeups returns how many wake-ups there are, and how many of the threads.
func countWakeups(script io.Reader, threads map[string]bool) (host, all, afterIdle int) {
	last := -1.0
	for scan := bufio.NewScanner(script); scan.Scan(); {
		m := wakeup.FindStringSubmatch(scan.Text())
		if m == nil {
			continue
		}
		host++
		if !threads[m[2]] {
			continue
		}
		at, _ := strconv.ParseFloat(m[1], 64)
		all++
		if at-last >= idle.Seconds() {
			afterIdle++
		}
		last = at
	}
	return host, all, afterIdle
}
