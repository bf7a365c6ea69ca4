// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hostFacts writes the properties of the host that affect the results.
func hostFacts(w io.Writer) {
	var u unix.Utsname
	_ = unix.Uname(&u)
	fmt.Fprintf(w, "%s, %d CPUs; Linux %s; %s %s/%s; %s\n\n",
		cpuModel(), runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]),
		runtime.Version(), runtime.GOOS, runtime.GOARCH, time.Now().UTC().Format(time.RFC3339))
}

func cpuModel() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}

// hostCounters are counters of the host since boot.
type hostCounters struct {
	busy    time.Duration // CPU time that was not idle
	started int64         // started processes and threads
}

func readHostCounters() (c hostCounters, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(string(stat)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 8 && fields[0] == "cpu":
			var ticks int64
			for i, f := range fields[1:8] {
				n, err := strconv.ParseInt(f, 10, 64)
				if err != nil {
					return c, fmt.Errorf("/proc/stat: %w", err)
				}
				if idle := i == 3 || i == 4; !idle {
					ticks += n
				}
			}
			c.busy = time.Duration(ticks) * (time.Second / 100) // USER_HZ
		case len(fields) == 2 && fields[0] == "processes":
			if c.started, err = strconv.ParseInt(fields[1], 10, 64); err != nil {
				return c, fmt.Errorf("/proc/stat: %w", err)
			}
		}
	}
	if c.busy == 0 || c.started == 0 {
		return c, errors.New("/proc/stat does not say what CPUs did and how many processes were started")
	}
	return c, nil
}

// span is a period of time that has begun.
type span struct {
	load  *child
	began time.Time
	host  hostCounters
	used  time.Duration // CPU time of the load
}

func begin(load *child) (s span, err error) {
	s = span{load: load, began: time.Now()}
	if s.host, err = readHostCounters(); err != nil {
		return s, err
	}
	s.used, err = load.cpu()
	return s, err
}

// end returns the time and the counts since begin.
func (s span) end() (past, error) {
	now, err := begin(s.load)
	return past{
		took:    now.began.Sub(s.began),
		busy:    now.host.busy - s.host.busy,
		load:    now.used - s.used,
		started: now.host.started - s.host.started,
	}, err
}

// past is a period of time, with the activity of the host and of the load.
type past struct {
	took, busy, load time.Duration
	started          int64 // started processes and threads
}

// busyShare and loadShare are percentages of all CPUs. If loadShare is lower than
// busyShare, other programs ran, too. The results then include the cost of sampling these
// programs. If other programs start processes, the results also include the cost of
// looking up the new processes and of opening their files.
func (p past) busyShare() float64 { return share(p.busy, p.took) }
func (p past) loadShare() float64 { return share(p.load, p.took) }

func (p past) startRate() float64 { return float64(p.started) / p.took.Seconds() }

func share(used, of time.Duration) float64 {
	return 100 * used.Seconds() / (of.Seconds() * float64(runtime.NumCPU()))
}

func (p past) String() string {
	return fmt.Sprintf("CPUs busy %.1f %% of the time, %.1f %% with the load; %.1f processes and threads started a second",
		p.busyShare(), p.loadShare(), p.startRate())
}
