// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package agreement

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/process"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// userTick is the resolution of /proc/PID/stat and cpuacct.stat.
const userTick = procfs.Tick

// SchedulerTick returns the interval at which the kernel updates CPU counters. The coarse
// clocks advance at the same ticks.
func SchedulerTick() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &t); err != nil {
		return 0, fmt.Errorf("ask for the scheduler's tick: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// ProcStat reads /proc/PID/stat, which contains the user and system time in whole ticks.
func ProcStat(pid int) Tool {
	return twice("/proc/PID/stat", 2*userTick, userTick, func() (cpuTimes, error) {
		at := time.Now()
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return cpuTimes{}, err
		}
		s, err := procfs.ParseStat(b)
		user, system := time.Duration(s.User)*userTick, time.Duration(s.System)*userTick
		return cpuTimes{at, user + system, user, system}, err
	})
}

// Gopsutil reads the total with gopsutil's Process.Percent, which is a
// percentage of one core over the time since the last call. It reads user and
// system time with Process.Times.
func Gopsutil(pid int) Tool {
	return Tool{Name: "gopsutil", Start: func() (func() (Figures, error), error) {
		p, err := process.NewProcess(int32(pid))
		if err != nil {
			return nil, err
		}
		read := func() (percent float64, t cpuTimes, err error) {
			if percent, err = p.Percent(0); err != nil {
				return 0, t, err
			}
			t.at = time.Now()
			times, err := p.Times()
			if err != nil {
				return 0, t, err
			}
			t.user, t.system = seconds(times.User), seconds(times.System)
			return percent, t, nil
		}
		_, first, err := read()
		return func() (Figures, error) {
			percent, second, err := read()
			f := second.since(first)
			f.Total = percent / 100
			f.TotalStep, f.SplitStep = 2*userTick, userTick
			return f, err
		}, err
	}}
}

// Top runs top in batch mode for two iterations with the given interval. top shows a
// percentage of one core with one decimal. It computes the percentage with the time in
// /proc/uptime, whose resolution is a hundredth of a second. It does not show user and
// system time of a process separately.
func Top(pid int, every time.Duration) Tool {
	return Tool{Name: "top", Least: every, Start: func() (func() (Figures, error), error) {
		cmd := exec.Command("top", "-b", "-n", "2", "-d", strconv.FormatFloat(every.Seconds(), 'f', 2, 64), "-p", strconv.Itoa(pid))
		cmd.Env = []string{"LC_ALL=C", "HOME=/nonexistent", "PATH=" + os.Getenv("PATH"), "TERM=dumb"}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		scan := bufio.NewScanner(out)
		end := func(err error) error {
			if err != nil {
				_ = cmd.Process.Kill()
			}
			return errors.Join(err, cmd.Wait())
		}
		// The line of the process ends only at the next iteration,
		// so only the column is read here.
		if _, err := topColumn(scan); err != nil {
			return nil, end(err)
		}
		return func() (Figures, error) {
			column, err := topColumn(scan)
			if err != nil {
				return Figures{}, end(err)
			}
			percent, err := topPercent(scan, column)
			return topFigures(percent, every), end(err)
		}, nil
	}}
}

func topFigures(percent float64, every time.Duration) Figures {
	cores := percent / 100
	const decimal = 0.001 // resolution of top's percentage, in cores
	return Figures{
		Total: cores, User: math.NaN(), System: math.NaN(), Elapsed: every,
		TotalStep: 2*userTick + seconds(decimal*every.Seconds()),
		Clock:     userTick.Seconds() / every.Seconds(),
	}
}

// topColumn reads up to the header of the next iteration's table. It
// returns the index of the column %CPU.
func topColumn(scan *bufio.Scanner) (int, error) {
	for scan.Scan() {
		if fields := strings.Fields(scan.Text()); slices.Contains(fields, "PID") {
			if column := slices.Index(fields, "%CPU"); column >= 0 {
				return column, nil
			}
		}
	}
	return 0, errors.Join(errors.New("top shows no column %CPU"), scan.Err())
}

// topPercent reads the figure in the given column of the next line.
func topPercent(scan *bufio.Scanner, column int) (float64, error) {
	if scan.Scan() {
		if fields := strings.Fields(scan.Text()); column < len(fields) {
			return strconv.ParseFloat(fields[column], 64)
		}
	}
	return 0, errors.Join(errors.New("top does not show the process"), scan.Err())
}
