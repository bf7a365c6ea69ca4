// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"math"
	"strconv"
	"time"
)

// Tick is the unit of times in /proc, which is 1/USER_HZ. USER_HZ is 100 on every Linux
// architecture that Go supports.
const Tick = 10 * time.Millisecond

// maxTicks limits start times to 174 years, so that their conversion
// to a duration does not overflow.
const maxTicks = 1 << 39

// BootTime returns the time at which the host booted, according to the current
// wall clock and rounded to a tick. It returns zero if the time is unknown.
// Programs that use btime of /proc/stat show start times up to a second earlier,
// because btime is in whole seconds.
func BootTime() time.Time {
	best, least := time.Time{}, time.Duration(-1)
	for range 3 { // use the least disturbed of three readings
		before := sinceBoot()
		now := time.Now()
		took := sinceBoot() - before
		if before == 0 {
			return time.Time{}
		}
		if least < 0 || took < least {
			best, least = now.Add(-before-took/2), took
		}
	}
	return best.Round(0).UTC().Round(Tick)
}

// TimeOf returns the time that is ticks after boot. It returns zero if boot is zero.
func TimeOf(boot time.Time, ticks uint64) time.Time {
	if boot.IsZero() {
		return boot
	}
	return boot.Add(time.Duration(min(ticks, maxTicks)) * Tick)
}

// Now returns the clock ticks since the host booted.
func Now() uint64 { return uint64(sinceBoot() / Tick) }

// CPUTicks are the summed times of all CPUs in clock ticks, in the order of the first line
// of /proc/stat: user, nice, system, idle, iowait, irq, softirq and steal. user and nice
// include guest time.
type CPUTicks [8]uint64

const (
	userTicks   = 0
	systemTicks = 2
	idleTicks   = 3
	iowaitTicks = 4
)

// ParseCPUTicks parses the first line of /proc/stat without allocating. The rest of the
// file may be missing.
func ParseCPUTicks(b []byte) (t CPUTicks, err error) {
	line, _, ok := bytes.Cut(b, []byte("\n"))
	line, isCPU := bytes.CutPrefix(line, []byte("cpu "))
	if !ok || !isCPU {
		return t, ErrMalformed
	}
	i := 0
	for f := range bytes.FieldsSeq(line) {
		if i == len(t) {
			break
		}
		if t[i], err = strconv.ParseUint(string(f), 10, 64); err != nil {
			return t, ErrMalformed
		}
		i++
	}
	if i <= iowaitTicks {
		return t, ErrMalformed
	}
	return t, nil
}

// Since returns the busy ticks and all ticks since an earlier reading. ok is false if the
// counters were reset. The kernel lets the counters of an idle CPU run backwards a little,
// so Since compares each counter separately.
func (t CPUTicks) Since(before CPUTicks) (busy, total uint64, ok bool) {
	if t[userTicks] < before[userTicks] || t[systemTicks] < before[systemTicks] {
		return 0, 0, false
	}
	for i := range t {
		if t[i] <= before[i] {
			continue
		}
		grown := t[i] - before[i]
		total += grown
		if i != idleTicks && i != iowaitTicks {
			busy += grown
		}
	}
	return busy, total, true
}

// ParseCPUs calls visit with the first and last CPU of each range in a list of the kernel,
// such as "0-3,8,10-11". It returns false if the list is malformed or not in ascending
// order. An empty list is valid. ParseCPUs does not allocate.
func ParseCPUs(list []byte, visit func(first, last int)) bool {
	list = bytes.TrimRight(list, " \n")
	if len(list) == 0 {
		return true
	}
	next := uint64(0)
	for part := range bytes.SplitSeq(list, []byte(",")) {
		from, to, isRange := bytes.Cut(part, []byte("-"))
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(string(from), 10, 16)
		if err != nil || first < next {
			return false
		}
		last, err := strconv.ParseUint(string(to), 10, 16)
		if err != nil || last < first {
			return false
		}
		visit(int(first), int(last))
		next = last + 1
	}
	return true
}

// ParseLoadavg returns the first number of /proc/loadavg. It is the average number of
// threads that were running, runnable or in uninterruptible sleep during the last minute.
func ParseLoadavg(b []byte) (float64, error) {
	first, _, ok := bytes.Cut(b, []byte(" "))
	load, err := strconv.ParseFloat(string(first), 64)
	if !ok || err != nil || !(load >= 0) || math.IsInf(load, 0) {
		return 0, ErrMalformed
	}
	return load, nil
}

// Sysctl returns a numeric kernel setting. path is relative to /proc/sys.
func Sysctl(path string) (int, error) {
	return ParseFile(At("").Path("sys", path), 64, func(b []byte) (int, error) { return strconv.Atoi(string(bytes.TrimSpace(b))) })
}
