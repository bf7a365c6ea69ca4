// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// monotonic returns the time of the monotonic clock in seconds. perf record uses the
// same clock for its timestamps.
func monotonic() float64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return float64(ts.Nano()) / 1e9
}

// perfSamples returns the number of samples in a
// file that were taken between two moments.
func perfSamples(ctx context.Context, perf, file string, from, to float64) (n int, err error) {
	cmd := exec.CommandContext(ctx, perf, "script", "-i", file, "-F", "time")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	for scan := bufio.NewScanner(out); scan.Scan(); {
		at, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(scan.Text()), ":"), 64)
		if err == nil && at >= from && at < to {
			n++
		}
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("count perf's samples: %w", err)
	}
	if n == 0 {
		return 0, errors.New("perf record took no samples")
	}
	return n, nil
}
