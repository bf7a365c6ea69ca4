// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hostFacts writes what results depend on.
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

// hostBusy is the time that the host's CPUs have not been idle, since boot.
func hostBusy() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(stat), "\n")
	fields := strings.Fields(first)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q, which is not what all CPUs did", first)
	}
	var ticks int64
	for i, f := range fields[1:8] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if idle := i == 3 || i == 4; !idle {
			ticks += n
		}
	}
	return time.Duration(ticks) * (time.Second / 100), nil // USER_HZ
}

// span is what the host and the load did while something was measured.
type span struct {
	load  *child
	began time.Time
	busy  time.Duration
	ours  time.Duration
}

func begin(load *child) (span, error) {
	s := span{load: load, began: time.Now()}
	var err error
	if s.busy, err = hostBusy(); err != nil {
		return s, err
	}
	s.ours, err = load.cpu()
	return s, err
}

// end turns what was read at the beginning into what has passed since.
func (s span) end() (past, error) {
	now, err := begin(s.load)
	return past{took: now.began.Sub(s.began), busy: now.busy - s.busy, load: now.ours - s.ours}, err
}

// past is how long something took, and what was spent meanwhile.
type past struct{ took, busy, load time.Duration }

// String says how busy the host was, and with what besides the load: the noise.
func (p past) String() string {
	cores := p.took.Seconds() * float64(runtime.NumCPU())
	return fmt.Sprintf("CPUs busy %.1f %% of the time, %.1f %% with the load",
		100*p.busy.Seconds()/cores, 100*p.load.Seconds()/cores)
}
