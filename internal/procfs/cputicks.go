// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"strconv"
)

// CPUTicks are the times of all CPUs together, in clock ticks, as the first line
// of /proc/stat has them: user, nice, system, idle, iowait, irq, softirq and
// steal. Guest time is within user and nice.
type CPUTicks [8]uint64

const (
	userTicks   = 0
	systemTicks = 2
	idleTicks   = 3
	iowaitTicks = 4
)

// ParseCPUTicks reads the first line of /proc/stat without allocating. What
// follows it may be cut off.
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

// Since returns the ticks that were spent busy, and all, since an earlier
// reading; ok is false where the counters began anew. The kernel lets the time of
// an idle CPU run backwards a little, so each is compared for itself.
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
