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

// idle is the minimum length of an idle period, which is the time between two wake-ups of
// the collector. If one wake-up soon follows another, the CPU is still awake.
const idle = 5 * time.Millisecond

// recordWakeups records every wake-up on the host until perf is stopped.
func (b *bench) recordWakeups() (record *child, file string, err error) {
	perf, err := exec.LookPath("perf")
	if err != nil {
		return nil, "", err
	}
	// tracefs must already be mounted, because perf would mount it and leave it mounted.
	if _, err := os.Stat("/sys/kernel/tracing/events"); err != nil {
		return nil, "", fmt.Errorf("tracefs is not mounted at /sys/kernel/tracing: %w", err)
	}
	file = filepath.Join(b.dir, "wakeups.data")
	record, err = b.start("perf", exec.Command(perf, "record", "-q", "-a", "-e", "sched:sched_wakeup", "-o", file))
	return record, file, err
}

// wakeups returns the number of wake-ups of the collector's threads. afterIdle is the
// number of wake-ups after an idle period.
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

// wakeup matches a line of perf script. The groups are the
// time in seconds and the ID of the woken thread.
var wakeup = regexp.MustCompile(`^\s*(\d+\.\d+): .*\bpid=(\d+) prio=`)

// countWakeups counts the wake-ups of the host, the wake-ups of the
// given threads, and the threads' wake-ups after an idle period.
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
